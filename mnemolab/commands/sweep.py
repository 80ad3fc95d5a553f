"""`mnemolab sweep FILE`: many runs, by worker processes or a Ray cluster."""

import argparse
import sys

SUMMARY = "train every run of a YAML sweep; finished runs are skipped"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="YAML of the sweep; see configs/sweeps")
    parser.add_argument("--out", metavar="DIR", default="runs", help="run folders go below it (default: runs)")
    parser.add_argument("--engine", default="local", metavar="E", help="local (default) or ray")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="runs at a time (default: one a core, or several a GPU)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the runs and an estimate of time, and train nothing"
    )
    parser.add_argument("--collect", action="store_true", help="only write the tables of what is finished")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON on stdout")


def run(args: argparse.Namespace) -> int:
    from mnemolab.errors import BadRequest, unknown
    from mnemolab.files import output_folder
    from mnemolab.trainers.engines import ENGINES, run_sweep
    from mnemolab.trainers.live import SweepTable
    from mnemolab.trainers.sweep import Sweep

    if args.engine not in ENGINES:
        raise unknown("engine", args.engine, ENGINES)
    if args.workers is not None and args.workers < 1:
        raise BadRequest(f"--workers {args.workers}: use at least 1")
    sweep = Sweep.from_yaml(args.file)
    if args.dry_run:
        return _dry_run(args, sweep)
    out = output_folder(args.out)
    if args.collect:
        from mnemolab.trainers.collect import collect, kept_choice

        written = collect(out, sweep.runs, kept_choice(sweep, out))
        if not written:
            raise BadRequest(f"--out {out}: no run of {sweep.name} is finished there; nothing to collect")
        if args.json:
            import json

            print(json.dumps({name: str(path) for name, path in written.items()}, indent=2))
        else:
            print(*written.values(), sep="\n")
        return 0
    table = SweepTable(sweep.expected)
    try:
        outcome = run_sweep(sweep, out, args.engine, args.workers, table, args.plugin)
    finally:
        table.close()
    if args.json:
        import json
        from dataclasses import asdict

        print(json.dumps(asdict(outcome), indent=2))
    else:
        print(out / "sweep.parquet")
    done, failed, skipped = (len(group) for group in (outcome.done, outcome.failed, outcome.skipped))
    print(f"{sweep.name}: {done} done, {skipped} finished before, {failed} failed", file=sys.stderr)
    for run_id in outcome.failed:
        print(f"  {out / run_id / 'failure.json'}", file=sys.stderr)
    return 1 if outcome.failed else 0


def _dry_run(args: argparse.Namespace, sweep) -> int:
    from pathlib import Path

    from mnemolab.trainers.estimate import estimate
    from mnemolab.trainers.live import clock
    from mnemolab.trainers.local import default_workers

    workers = args.workers or default_workers()[0]
    found = estimate(sweep, Path(args.out), workers)
    if args.json:
        import json

        print(json.dumps(found, indent=2))
        return 0
    for row in found["runs"]:
        state = "finished" if row["finished"] else clock(row["seconds"])
        print(f"{row['run_id']}  {state:>9}  {row['label']}")
    print(
        f"{found['left']} of {found['total']} runs left, about {clock(found['seconds'])} with {workers} workers "
        f"({found['how']})",
        file=sys.stderr,
    )
    return 0
