"""What a tier costs on the GPU that it is planned for, counted from its configs without one."""

from collections.abc import Iterable
from typing import Any

__all__ = ["gpu_seconds"]

# One H200, 7 to 9 runs at a time, steps replayed as graphs, one to eight layers of width 64 and 128 at 32 to 640 tokens, float32
# and bf16 alike (98 runs, 2026-11-30): 5e9 to 8e9 tokens x layers x (width + 64) a second together. Smaller steps were not seen
# to come faster than some 3,500 a second.
WORK_PER_SECOND = 6e9
STEPS_PER_SECOND = 3500.0
# to load, evaluate and test a run, a share of one of them
AROUND = 0.5


def gpu_seconds(runs: Iterable[Any]) -> float:
    """Seconds that `runs` take together on one H200."""
    return sum(_steps(run) + AROUND for run in runs)


def _steps(run: Any) -> float:
    tokens = run.budget.batch_size * run.task["length"]
    work = tokens * run.model["depth"] * (run.model["width"] + 64)
    return run.budget.steps * max(1 / STEPS_PER_SECOND, work / WORK_PER_SECOND)
