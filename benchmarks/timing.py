"""Timing on a machine that others use too: cases take turns, and ratios are formed within a round."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

__all__ = ["WARM", "Times", "interleaved", "recorded"]

# calls before a recording, in which kernels are compiled and libraries set up
WARM = 3


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


def recorded(run: Callable[[], Any], device: Any = None) -> Callable[[], None]:
    """`run` as a CUDA graph on `device` (None: the current one), after WARM calls.

    A graph holds addresses and owns nothing: what is returned keeps `run`, what it closes over, and what it gave.
    """
    import torch

    with torch.cuda.device(device):
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            for _ in range(WARM):
                run()
        here.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = (run, run())

    def replay(kept: Any = kept) -> None:
        graph.replay()

    return replay
