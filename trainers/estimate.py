"""What a sweep would cost: its runs, which of them are finished, and about how long the rest takes."""

import json
import time
from pathlib import Path
from typing import Any

import torch

from mnemolab.trainers.config import RunConfig
from mnemolab.trainers.folder import is_finished, load_run
from mnemolab.trainers.run import resolve_device
from mnemolab.trainers.steps import EagerSteps, make_optimiser
from mnemolab.trainers.sweep import Sweep

__all__ = ["estimate"]

MEASURE_SECONDS = 30.0  # for all kinds of run together; later kinds are scaled from those measured
TIMED_STEPS = 3


def estimate(sweep: Sweep, out: Path, workers: int) -> dict[str, Any]:
    """{"runs": one row a run, "total", "left", "seconds", "how"}. Trains a few steps of each kind of run; writes nothing.

    Runs are of one kind when they differ in seed and optimiser only. A kind that has a finished run below `out` takes that
    run's speed. Steps are timed alone on one thread; workers that share cores or a GPU will be slower. On a GPU they are timed
    eagerly; a run there replays graphs, which is faster.
    """
    speeds: dict[str, float] = {}
    per_token: list[float] = []
    finished = {run.run_id for run in sweep.runs if is_finished(out / run.run_id)}
    results = {name: load_run(out / name).result for name in finished}
    shares = _shares(sweep, results)
    for run in sweep.runs:
        if run.run_id in finished:
            result = results[run.run_id]
            if result["steps"] and result["train_seconds"] and not result["resumed"]:
                speeds[_kind(run)] = result["train_seconds"] / result["steps"]
    known = len(speeds)
    began = time.perf_counter()
    rows, labels = [], sweep.labels()
    for run in sweep.runs:
        if not shares[run.run_id]:
            continue
        kind = _kind(run)
        if kind not in speeds and (not per_token or time.perf_counter() - began < MEASURE_SECONDS):
            speeds[kind] = _seconds_per_step(run)
            per_token.append(speeds[kind] / _size(run))
        step = speeds.get(kind) or _size(run) * sorted(per_token)[len(per_token) // 2]
        seconds = 0.0 if run.run_id in finished else step * run.budget.steps * shares[run.run_id]
        done = run.run_id in finished
        rows.append({"run_id": run.run_id, "label": labels[run.run_id], "finished": done, "seconds": seconds})
    left = [row for row in rows if not row["finished"]]
    longest = max((row["seconds"] for row in left), default=0.0)
    return {
        "runs": rows,
        "total": len(rows),
        "left": round(sum(shares[row["run_id"]] for row in left)),
        "seconds": max(longest, sum(row["seconds"] for row in left) / max(1, workers)),
        "how": f"{len(speeds) - known} kinds of run timed now, {known} known from finished runs",
    }


def _shares(sweep: Sweep, results: dict[str, Any]) -> dict[str, float]:
    """Run id -> how likely it runs: of a cell's candidates only the chosen one goes on beyond the pilot seeds."""
    pilots, chosen = ({run.run_id for run in runs} for runs in (sweep.pilots, sweep.chosen(results)))
    found: dict[str, float] = {}
    for candidates in sweep.cells().values():
        names = [run.run_id for runs in candidates.values() for run in runs]
        decided = all(name in results for name in names if name in pilots)
        for name in names:
            if name in pilots or name in results:
                found[name] = 1.0
            else:
                found[name] = float(name in chosen) if decided else 1 / len(candidates)
    return found


def _kind(run: RunConfig) -> str:
    values = run.to_dict()
    values["budget"] = values["budget"]["batch_size"]
    return json.dumps({k: v for k, v in values.items() if k not in ("seed", "optimiser")}, sort_keys=True)


def _size(run: RunConfig) -> float:
    """Roughly in proportion to the work of a step: tokens x depth x (width plus a constant)."""
    return run.budget.batch_size * run.task["length"] * run.model["depth"] * (run.model["width"] + 64)


def _seconds_per_step(run: RunConfig) -> float:
    device = resolve_device(run.device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = run.make_model().to(device)
        steps = EagerSteps(model, make_optimiser(model, run, device), run.make_task(), run, device)
        # A call that makes examples costs about as much as a small step, however few it makes, and a run makes those of a
        # whole block of steps in one: here too a step bears its share of one call, not a call of its own.
        began = time.perf_counter()
        batch = steps.feed(0)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        data = (time.perf_counter() - began) / steps.feed.block
        steps.feed = lambda step: batch  # pyright: ignore[reportAttributeAccessIssue]
        steps.advance(1)
        steps.drain()
        count = min(TIMED_STEPS, run.budget.steps - 1) or 1
        steps.rates = steps.rates * 2  # a budget of one step still has a step to time
        began = time.perf_counter()
        steps.advance(count)
        steps.drain()
        return data + (time.perf_counter() - began) / count
    finally:
        torch.set_num_threads(threads)
