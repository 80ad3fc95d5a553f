"""What a tier costs on the GPU that it is planned for, counted from its configs without one."""

from collections.abc import Iterable
from typing import Any

__all__ = ["gpu_seconds"]

# One H200, steps replayed as graphs (`mnemolab bench training`, 2026-11-30): 355 steps a second at 256 x 256 tokens, two
# layers of width 128, bf16; as tokens x layers x (width + 64) a second. The rest is assumed, not measured: float32 half as fast;
# of small shapes, which launches bound, 700 steps a second among the runs that share the GPU.
WORK_PER_SECOND = {"bf16": 8.9e9, "fp32": 4.4e9}
STEPS_PER_SECOND = 700.0
# assumed seconds of the GPU's time to compile, evaluate and test a run, four at a time
AROUND = 1.5


def gpu_seconds(runs: Iterable[Any]) -> float:
    """Seconds that `runs` take together on one H200."""
    return sum(_steps(run) + AROUND for run in runs)


def _steps(run: Any) -> float:
    tokens = run.budget.batch_size * run.task["length"]
    work = tokens * run.model["depth"] * (run.model["width"] + 64)
    return run.budget.steps * max(1 / STEPS_PER_SECOND, work / WORK_PER_SECOND[run.precision])
