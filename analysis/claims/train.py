"""Train what the claims need, in pieces: finished runs are skipped, and a piece that is out of time saves its runs and stops."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mnemolab.trainers.engines import run_sweep
from mnemolab.trainers.events import Event
from mnemolab.trainers.folder import is_finished
from mnemolab.trainers.sweep import Sweep

__all__ = ["Piece", "train_piece"]


class _TimeUp(Exception):
    """Raised from an event of the sweep: the engine then lets its workers save their runs."""


@dataclass(frozen=True)
class _Named(Sweep):
    """A sweep whose runs have names already: its fields differ in so many places that a list of them names nothing."""

    names: Mapping[str, str] = field(default_factory=dict)

    def labels(self) -> dict[str, str]:
        return {run.run_id: self.names.get(run.run_id, run.label) for run in self.runs}


@dataclass(frozen=True)
class Piece:
    """What one piece left: runs that are finished, that failed, and that are still to do."""

    done: int
    failed: tuple[str, ...]
    left: int


def train_piece(
    name: str,
    runs: Sequence[Any],
    out: Path,
    *,
    workers: int | None = None,
    minutes: float | None = None,
    on_event: Callable[[Event], None] | None = None,
    plugins: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
) -> Piece:
    """Bring `runs` below `out` to their end, or as far as `minutes` go; unfinished ones go on from their checkpoints.

    `names`: run id -> what its events call it.
    """
    sweep = _Named(name, tuple({run.run_id: run for run in runs}.values()), names=names or {})
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    failed: dict[str, str] = {}

    def hear(event: Event) -> None:
        if on_event is not None:
            on_event(event)
        if deadline is not None and time.monotonic() > deadline:
            raise _TimeUp

    try:
        outcome = run_sweep(sweep, out, workers=workers, on_event=hear, plugins=plugins)
        failed = dict.fromkeys(outcome.failed, "")
    except _TimeUp:
        pass
    left = [run for run in sweep.runs if not is_finished(out / run.run_id)]
    return Piece(len(sweep.runs) - len(left), tuple(failed), len([run for run in left if run.run_id not in failed]))
