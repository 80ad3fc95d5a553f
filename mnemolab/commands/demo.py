"""`mnemolab demo`: the main job in minutes on a CPU, from training to a report."""

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from mnemolab.trainers.sweep import Sweep

SUMMARY = "train five stages on two memory tasks in minutes on a CPU, and make the curves and a report"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", default="demo", help="runs and report go below it (default: demo)")
    parser.add_argument("--workers", type=int, metavar="N", help="runs at a time (default: one a core)")
    parser.add_argument(
        "--minutes",
        type=float,
        default=4.0,
        metavar="M",
        help="training time that the second task may fill (default: 4)",
    )


def run(args: argparse.Namespace) -> int:
    from mnemolab.errors import BadRequest
    from mnemolab.files import output_folder

    if args.workers is not None and args.workers < 1:
        raise BadRequest(f"--workers {args.workers}: use at least 1")
    began = time.monotonic()
    out = output_folder(args.out)

    from mnemolab.trainers.sweep import Sweep

    first = Sweep.from_yaml(_config("key_overwrite"))
    failed = _train(first, out / "runs", args.workers)
    spent = time.monotonic() - began
    second = _within(Sweep.from_yaml(_config("associative_recall")), first, spent, 60 * args.minutes - spent)
    if second.runs:
        failed += _train(second, out / "runs", args.workers)
    else:
        print("associative_recall: left out, key_overwrite took the time (give more with --minutes)", file=sys.stderr)

    from mnemolab.analysis import load_records, report

    print(_table(load_records(out / "runs")))
    page = report.build(out / "runs", out / "report", title="What five memories keep, overwrite and confuse")
    print(f"\n{page}")
    return 1 if failed else 0


def _config(name: str) -> Path:
    from importlib.resources import files

    return Path(str(files("mnemolab.configs") / "demo" / f"{name}.yaml"))


def _train(sweep: "Sweep", out: Path, workers: int | None) -> int:
    """Bring the sweep to its end; the number of failed runs."""
    from mnemolab.trainers.engines import run_sweep
    from mnemolab.trainers.live import SweepTable

    print(f"{sweep.name}: {len(sweep.runs)} runs", file=sys.stderr)
    table = SweepTable(len(sweep.runs))
    try:
        outcome = run_sweep(sweep, out, workers=workers, on_event=table)
    finally:
        table.close()
    for run_id in outcome.failed:
        print(f"failed: {out / run_id / 'failure.json'}", file=sys.stderr)
    return len(outcome.failed)


def _within(second: "Sweep", first: "Sweep", spent: float, left: float) -> "Sweep":
    """`second` with as many whole seeds as `left` seconds hold, at the rate that `first` went in `spent` seconds."""
    from dataclasses import replace

    from mnemolab.trainers.config import RunConfig

    def work(run: RunConfig) -> float:
        return run.budget.steps * run.budget.batch_size * run.task["length"]

    rate = sum(map(work, first.runs)) / spent
    seeds = sorted({run.seed for run in second.runs})
    while seeds and sum(work(run) for run in second.runs if run.seed in seeds) / rate > left:
        seeds.pop()
    return replace(second, runs=tuple(run for run in second.runs if run.seed in seeds))


def _table(records: "pd.DataFrame") -> str:
    """Accuracy and stale answers by number of versions, one line a stage, as plain text."""
    from mnemolab.analysis.interference import intrusions
    from mnemolab.analysis.style import label
    from mnemolab.models import STAGES

    found = intrusions(records[records["task"] == "key_overwrite"])
    versions = sorted(found["versions"].unique())
    lines = ["", "key_overwrite: share of answers by versions of the key, with 95% intervals over seeds", ""]
    cells = "".join(f"{f'{v:.0f} version' + ('s' if v > 1 else ''):>18}" for v in versions)
    lines.append(f"{'':<20}{'':<9}{cells}")
    order = list(STAGES)
    for arm, rows in sorted(found.groupby("arm"), key=lambda pair: order.index(str(pair[0]))):
        for outcome, name in (("correct", "right"), ("stale", "stale")):
            chosen = rows[rows["outcome"] == outcome].sort_values("versions")
            cells = "".join(f"{f'{r.mean:.2f} [{r.low:.2f}, {r.high:.2f}]':>18}" for r in chosen.itertuples())
            lines.append(f"{label(str(arm)) if outcome == 'correct' else '':<20}{name:<9}{cells}")
    return "\n".join(lines)
