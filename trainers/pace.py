"""How many steps to take before looking up: to the next event of the run, and no longer than a fraction of a second."""

import time

__all__ = ["Pace"]

SECONDS = 0.5
MOST = 1024  # steps; a stepper logs each one until it is read


class Pace:
    """`next(step)` gives the length of the coming segment. Its choice never changes what is computed, only when we look."""

    def __init__(self, steps: int, evaluate_every: int, log_every: int, *, fixed: bool = False):
        self.steps, self.marks = steps, (evaluate_every, log_every)
        self.fixed = fixed  # every rank of a distributed run must take the same segments
        self._rate: float | None = None
        self._began = 0.0

    def next(self, step: int) -> int:
        self._began = time.perf_counter()
        to_mark = min(mark - step % mark for mark in self.marks)
        if self.fixed:
            limit = to_mark
        elif self._rate is None:
            limit = 1
        else:
            limit = max(1, int(self._rate * SECONDS))
        return min(to_mark, self.steps - step, limit, MOST)

    def done(self, count: int) -> float:
        """Call when the segment's results are on the host. Returns its seconds."""
        seconds = time.perf_counter() - self._began
        self._rate = count / max(seconds, 1e-9)
        return seconds
