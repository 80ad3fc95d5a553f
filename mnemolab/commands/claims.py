"""`mnemolab claims`: train what the claims need, judge them by their frozen rules, and write verdicts with their evidence."""

import argparse
from pathlib import Path
from typing import Any

SUMMARY = "train, judge and write the verdict on every claim about memory, with its evidence"
TIERS = ("quick", "full", "replicate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tier", default="quick", metavar="T", help="quick (default), full or replicate")
    parser.add_argument("--only", metavar="ID,...", help="these claims only (`mnemolab list claims`)")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="runs, verdicts and figures go below it (default: claims/TIER)"
    )
    parser.add_argument("--dry-run", action="store_true", help="count runs, steps and minutes, and train nothing")
    parser.add_argument(
        "--minutes", type=float, metavar="M", help="train for about M minutes, save, and stop; run it again to go on"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="runs at a time (default: one a core, several a GPU)")
    parser.add_argument(
        "--device", default="auto", metavar="D", help="where checks and benchmarks run: auto, cpu, cuda"
    )
    parser.add_argument(
        "--freeze",
        action="store_true",
        help="run the pilot of this tier, choose learning rates, and freeze them with hashes",
    )


def run(args: argparse.Namespace) -> int:
    from mnemolab.analysis.claims.catalogue import CLAIMS
    from mnemolab.errors import BadRequest, unknown

    if args.tier not in TIERS:
        raise unknown("tier", args.tier, TIERS)
    if args.workers is not None and args.workers < 1:
        raise BadRequest(f"--workers {args.workers}: use at least 1")
    if args.minutes is not None and args.minutes <= 0:
        raise BadRequest(f"--minutes {args.minutes}: use more than 0")
    ids = list(CLAIMS)
    if args.only is not None:
        ids = [name.strip() for name in args.only.split(",") if name.strip()]
        for name in ids:
            CLAIMS.entry(name)  # an unknown name is answered before anything heavy is imported
    if not ids:
        raise BadRequest("--only names no claim; see `mnemolab list claims`")

    from mnemolab.analysis.claims.command import dry_run, freeze_tier, judge_tier

    options: dict[str, Any] = {
        "out": args.out or Path("claims") / args.tier,
        "workers": args.workers,
        "minutes": args.minutes,
        "plugins": args.plugin,
    }
    if args.freeze:
        return freeze_tier(args.tier, **options)
    if args.dry_run:
        return dry_run(args.tier, ids, options["out"], args.workers)
    return judge_tier(args.tier, ids, device=args.device, **options)
