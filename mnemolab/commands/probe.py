"""`mnemolab probe RUN_OR_FOLDER`: look into finished runs, or into the predictions of a model not trained here."""

import argparse
from pathlib import Path

SUMMARY = "retention, interference, decay and interventions of finished runs, or of predictions for exported data"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        metavar="RUN_OR_FOLDER",
        type=Path,
        help="a run folder, a folder of runs, or predictions (.parquet, .jsonl, .csv) with columns example, query, prediction",
    )
    parser.add_argument(
        "--probe",
        default="all",
        metavar="NAME,...",
        help="which probes, by comma (`mnemolab list probes`); default: all",
    )
    parser.add_argument(
        "--data",
        metavar="FILE",
        type=Path,
        help="predictions only: the examples of `mnemolab data` that they answer, or their NAME.task.json",
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="where tables, figures and page go (default: FOLDER/probe)"
    )
    parser.add_argument(
        "--runs", metavar="N", type=int, default=3, help="runs of each model that are opened; 0: all (default: 3)"
    )
    parser.add_argument(
        "--sequences", metavar="N", type=int, default=48, help="test sequences whose gates are traced (default: 48)"
    )
    parser.add_argument(
        "--examples",
        metavar="N",
        type=int,
        default=128,
        help="test sequences answered under interventions (default: 128)",
    )
    parser.add_argument(
        "--wipe-at", metavar="TOKEN", type=int, help="where the state is wiped (default: the middle of the context)"
    )


def run(args: argparse.Namespace) -> int:
    from mnemolab.analysis.probes import PROBES
    from mnemolab.errors import BadRequest
    from mnemolab.files import existing

    names = list(PROBES) if args.probe == "all" else [name.strip() for name in args.probe.split(",") if name.strip()]
    for name in names:
        PROBES.entry(name)  # an unknown name is answered before anything heavy is imported
    answers = args.folder.suffix in (".parquet", ".jsonl", ".csv") and not args.folder.is_dir()
    if args.data is not None and not answers:
        raise BadRequest(f"--data {args.data}: goes with a file of predictions, and {args.folder} is none")

    existing(args.folder, "run, folder of runs or file of predictions")
    from mnemolab.analysis.probes import run_probes
    from mnemolab.analysis.records import Depth, Study

    depth = Depth(args.runs, args.sequences, args.examples, args.wipe_at)
    if answers:
        from mnemolab.analysis.foreign import foreign_study

        study = foreign_study(args.folder, args.data)
        names = names if args.probe != "all" else ["retention", "interference"]  # there is no model to open
    else:
        study = Study.of(args.folder, depth)
    home = args.folder.parent if answers else args.folder
    print(run_probes(study, names, args.out or home / "probe"))
    return 0
