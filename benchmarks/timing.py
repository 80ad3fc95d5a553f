"""Timing on a machine that others use too: cases take turns, and ratios are formed within a round."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter

__all__ = ["Times", "interleaved"]


@dataclass(frozen=True)
class Times:
    """Seconds of every round."""

    rounds: tuple[float, ...]

    @property
    def least(self) -> float:
        """The round that others disturbed least."""
        return min(self.rounds)

    @property
    def median(self) -> float:
        return median(self.rounds)


def interleaved(
    cases: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    clock: Callable[[], float] = perf_counter,
    slow: float = 0.3,
) -> dict[str, Times]:
    """Run every case once to warm up, then `repeats` rounds of one call each; a case slower than `slow` s gets a third."""
    first = {}
    for name, case in cases.items():
        start = clock()
        case()
        first[name] = clock() - start
    rounds: dict[str, list[float]] = {name: [] for name in cases}
    for n in range(repeats):
        for name, case in cases.items():
            if first[name] > slow and n % 3:
                continue
            start = clock()
            case()
            rounds[name].append(clock() - start)
    return {name: Times(tuple(times)) for name, times in rounds.items()}
