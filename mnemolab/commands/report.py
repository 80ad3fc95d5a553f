"""`mnemolab report FOLDER`: figures, tables and one HTML page from finished runs."""

import argparse
from pathlib import Path

SUMMARY = "one HTML page with figures and tables from a folder of finished runs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="a run folder, or a folder of runs")
    parser.add_argument("--out", metavar="DIR", type=Path, help="where the page goes (default: FOLDER/report)")
    parser.add_argument("--title", help="heading of the page", default="What the models remember")


def run(args: argparse.Namespace) -> int:
    from mnemolab.files import existing

    existing(args.folder, "folder of runs")
    from mnemolab.analysis import report

    print(report.build(args.folder, args.out or args.folder / "report", title=args.title))
    return 0
