"""`mnemolab probe RUN_OR_FOLDER`: look into finished runs."""

import argparse
from pathlib import Path

SUMMARY = "retention, interference, decay and interventions of finished runs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN_OR_FOLDER", type=Path, help="a run folder, or a folder of runs")
    parser.add_argument(
        "--probe",
        default="all",
        metavar="NAME,...",
        help="which probes, by comma (`mnemolab list probes`); default: all",
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="where tables, figures and page go (default: FOLDER/probe)"
    )


def run(args: argparse.Namespace) -> int:
    from mnemolab.analysis.probes import PROBES, run_probes

    names = list(PROBES) if args.probe == "all" else [name.strip() for name in args.probe.split(",")]
    for name in names:
        PROBES.entry(name)  # an unknown name is answered before anything heavy is imported
    from mnemolab.analysis.records import Study

    print(run_probes(Study.of(args.folder), names, args.out or args.folder / "probe"))
    return 0
