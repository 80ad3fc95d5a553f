"""Where a run stands: everything besides weights and optimiser moments that a resumed run needs."""

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["TrainState"]


@dataclass
class TrainState:
    """`step` optimiser steps are done, in `seconds`. `wall`: seconds of earlier attempts at the run, up to their last
    checkpoints. `losses` and `norms` wait for the next row of `metrics.jsonl`."""

    step: int = 0
    seconds: float = 0.0
    wall: float = 0.0
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    validation: dict[str, float] | None = None
    best_accuracy: float = 0.0
    steps_to_solved: int | None = None
    stopped: str | None = None
    resumed: int = 0

    def take(self, rows: list[tuple[int, float, float]], seconds: float) -> None:
        """Add the steps of one segment: (step, loss, gradient norm)."""
        for step, loss, norm in rows:
            self.step = step
            self.losses.append(loss)
            self.norms.append(norm)
        self.seconds += seconds

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrainState":
        """Raises TypeError for what `to_dict` does not make."""
        made = cls(**values)
        numbers = (made.step, made.resumed, made.seconds, made.wall, made.best_accuracy)
        if any(isinstance(n, bool) or not isinstance(n, int | float) or n < 0 for n in numbers):
            raise TypeError(f"not where a run stands: {values!r:.200}")
        if not isinstance(made.step, int) or not isinstance(made.losses, list) or not isinstance(made.norms, list):
            raise TypeError(f"not where a run stands: {values!r:.200}")
        return made
