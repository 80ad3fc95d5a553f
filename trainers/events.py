"""What a sweep tells while it runs. Every event names its run; progress bars and tables are drawn from these alone."""

from dataclasses import dataclass
from typing import Any

__all__ = ["Event", "Failed", "Finished", "Progress", "Skipped", "Started", "SweepOutcome"]


@dataclass(frozen=True)
class Started:
    """A worker took the run."""

    run_id: str
    label: str
    worker: int


@dataclass(frozen=True)
class Progress:
    """`step` of `steps` are done; the last validation accuracy, when there was one."""

    run_id: str
    step: int
    steps: int
    accuracy: float | None


@dataclass(frozen=True)
class Finished:
    """The run has its `result.json`."""

    run_id: str
    label: str
    result: dict[str, Any]


@dataclass(frozen=True)
class Failed:
    """The run did not finish; `traceback` may be empty when its worker died."""

    run_id: str
    label: str
    error: str
    traceback: str = ""


@dataclass(frozen=True)
class Skipped:
    """The run was finished before."""

    run_id: str
    label: str


Event = Started | Progress | Finished | Failed | Skipped


@dataclass(frozen=True)
class SweepOutcome:
    """Run ids by what became of them. `chosen`: the runs whose test stream was read, when the sweep chooses on validation."""

    done: tuple[str, ...]
    failed: tuple[str, ...]
    skipped: tuple[str, ...]
    chosen: tuple[str, ...] | None = None
