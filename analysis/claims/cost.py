"""What a tier costs on the GPU that it is planned for, counted from its configs without one."""

from collections.abc import Iterable
from typing import Any

__all__ = ["gpu_seconds"]

# One H200, 8 runs at a time, steps replayed as graphs, one to eight layers of width 64 and 128 at 32 to 640 tokens, float32 and
# bf16 alike: tokens x layers x (width + 64) a second together, with all starts and tests. Of 2026-11-30: the first 1,380 runs, 1.03e13 of
# them as planned, took 1,475 s; the next 1,236, smaller and more different ones, 1.36e13 of them, 2,066 s (an eighth and a tenth of the
# steps were not needed, since runs that race end when they have learned). Smaller steps were not seen to come faster than some 3,500 a second.
WORK_PER_SECOND = 6.6e9
STEPS_PER_SECOND = 3500.0
# of a run, to load, evaluate and test it while others train
AROUND = 0.05


def gpu_seconds(runs: Iterable[Any]) -> float:
    """Seconds that `runs` take together on one H200."""
    return sum(_steps(run) + AROUND for run in runs)


def _steps(run: Any) -> float:
    tokens = run.budget.batch_size * run.task["length"]
    work = tokens * run.model["depth"] * (run.model["width"] + 64)
    return run.budget.steps * max(1 / STEPS_PER_SECOND, work / WORK_PER_SECOND)
