"""Times of cases that take turns on one device, and statistics of them with intervals over the rounds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from time import perf_counter, process_time

import numpy as np
import torch
from numpy.typing import NDArray

from mnemolab.analysis.claims.checks.check import device_kind
from mnemolab.analysis.statistics.intervals import levels
from mnemolab.benchmarks.timing import interleaved, recorded

__all__ = ["Estimate", "Floats", "estimate", "exponent", "one_thread", "ratio", "replayed", "rounds"]

Floats = NDArray[np.float64]
# value, (low, high)
Estimate = tuple[float, tuple[float, float]]
DRAWS = 2000


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch's work on the CPU, so that processor seconds are those of an idle machine's clock."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def rounds(cases: Mapping[str, Callable[[], object]], repeats: int, device: str) -> dict[str, Floats]:
    """Seconds of every case in each of `repeats` rounds, (R,); a case is called once before the first round.

    On the CPU these are processor seconds of one thread, which other processes do not lengthen as they do the clock's; on
    CUDA the clock's, with the device waited for before and after.
    """
    if device_kind(device) == "cpu":
        with one_thread():
            times = interleaved(cases, repeats, clock=process_time, slow=inf)
    else:
        times = interleaved(cases, repeats, clock=partial(_synchronised, device), slow=inf)
    return {name: np.asarray(found.rounds) for name, found in times.items()}


def replayed(run: Callable[[], object], device: str) -> Callable[[], object]:
    """`run` as a CUDA graph, where `device` is one: then its time is the device's. Called step by step, a small model's time is
    that of Python and the driver, which is the same whatever the device does. Elsewhere `run` itself.

    Every replay does what the one recorded did: a decoded token stands at the same place again.
    """
    if device_kind(device) != "cuda":
        return run
    return recorded(run, device)


def _synchronised(device: str) -> float:
    torch.cuda.synchronize(device)
    return perf_counter()


def estimate(times: Sequence[Floats], statistic: Callable[[Floats], Floats], seed: int = 0) -> Estimate:
    """`statistic` of the cases' medians, with a 95% bootstrap interval over rounds.

    `statistic` maps (..., cases) to (...). All cases of a draw come from the same rounds, so what slowed a round slows them
    alike.
    """
    table = np.stack(times, 1)
    R = len(table)
    picks = np.random.default_rng(seed).integers(0, R, size=(DRAWS, R))
    drawn = statistic(np.median(table[picks], axis=1))
    low, high = np.quantile(drawn, levels(R))
    return float(statistic(np.median(table, axis=0))), (float(low), float(high))


def exponent(sizes: Sequence[float]) -> Callable[[Floats], Floats]:
    """The statistic: p in time ~ size^p, by least squares over the cases, one a size."""
    x = np.log(np.asarray(sizes, dtype=float))
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    return lambda medians: np.log(medians) @ weights


def ratio(medians: Floats) -> Floats:
    """The statistic: the first case over the second."""
    return medians[..., 0] / medians[..., 1]
