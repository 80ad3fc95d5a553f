"""`mnemolab report FOLDER`: figures, tables and one HTML page from finished runs, or from judged claims."""

import argparse
from pathlib import Path

SUMMARY = "one HTML page with figures and tables from a folder of finished runs, or of judged claims"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", type=Path, help="a run folder, a folder of runs, or what `mnemolab claims` wrote"
    )
    parser.add_argument("--out", metavar="DIR", type=Path, help="where the page goes (default: FOLDER/report)")
    parser.add_argument(
        "--replication",
        action="append",
        default=[],
        metavar="DIR",
        type=Path,
        help="judged claims of the tier replicate, to be shown beside FOLDER's; give it again for each further folder, "
        "which holds other claims",
    )
    parser.add_argument("--title", help="heading of the page", metavar="TEXT")


def run(args: argparse.Namespace) -> int:
    from mnemolab.errors import BadRequest
    from mnemolab.files import existing

    existing(args.folder, "folder of runs")
    out = args.out or args.folder / "report"
    if (args.folder / "claims.json").is_file():
        from mnemolab.analysis.claims import page

        print(page.build(args.folder, out, args.title or "What memory claims hold", args.replication))
        return 0
    if args.replication:
        raise BadRequest(
            f"--replication {args.replication[0]}: {args.folder} holds runs; it goes with a folder of judged claims"
        )
    from mnemolab.analysis import report

    print(report.build(args.folder, out, title=args.title or "What the models remember"))
    return 0
