"""Intervals for means: runs are what is resampled, and sequences within them.

R runs, E sequences (examples) of a run, X cells (points of a curve), n bootstrap draws.
A percentile interval over few runs is too narrow, so its levels are widened as by Hesterberg (2015, "What teachers should
know about the bootstrap", expanded percentile): with 3 runs it reaches the extremes of the draws, with 12 the 1.1 and
98.9 percentiles.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from mnemolab.errors import BadRequest

__all__ = [
    "bootstrap_totals",
    "hierarchical_bootstrap",
    "iqm",
    "levels",
    "mean_interval",
    "nan_mean",
    "performance_profile",
    "run_interval",
    "wilson",
]

Floats = NDArray[np.float64]
# More sequences than this are summed into blocks first: same variance, bounded work.
_BLOCKS = 256


def levels(runs: int, confidence: float = 0.95) -> tuple[float, float]:
    """Lower and upper percentile (0 to 1) of the expanded percentile interval for `runs` runs; one run: no widening."""
    tail = (1 - confidence) / 2
    if runs > 1:
        tail = float(stats.norm.cdf(-np.sqrt(runs / (runs - 1)) * stats.t.ppf(1 - tail, runs - 1)))
    return tail, 1 - tail


def mean_interval(
    values: ArrayLike, *, confidence: float = 0.95, seed: int = 0, draws: int = 2000
) -> tuple[float, float, float]:
    """Mean of one value a run, with an interval over runs (`run_interval`). Equal values give a point; so does one run.

    Raises BadRequest for no values or for values that are not finite.
    """
    return run_interval(values, np.mean, confidence=confidence, seed=seed, draws=draws)


# A bootstrap over n runs cannot reach beyond the runs themselves, which holds their mean in 1 - 2^(1-n) of cases at most:
# .5, .75, .875 and .94 for 2 to 5 runs.
_FEW = 6


def run_interval(
    values: ArrayLike,
    statistic: Callable[..., NDArray] = np.mean,
    *,
    confidence: float = 0.95,
    seed: int = 0,
    draws: int = 2000,
) -> tuple[float, float, float]:
    """`statistic(values, axis=)` over runs with a bootstrap interval (R,) -> (estimate, low, high).

    The mean of 2 to 5 runs gets Student's t interval: a bootstrap of so few cannot cover 95%.
    """
    x = np.asarray(values, dtype=float)
    if x.size == 0:
        raise BadRequest("an interval needs at least one run; got none")
    if not np.isfinite(x).all():
        raise BadRequest(
            f"an interval needs finite values; got {int((~np.isfinite(x)).sum())} of {x.size} that are not"
        )
    estimate = float(statistic(x, axis=0))
    if x.size == 1 or np.all(x == x[0]):
        return estimate, estimate, estimate
    if statistic is np.mean and x.size < _FEW:
        half = float(stats.t.ppf(0.5 + confidence / 2, x.size - 1) * x.std(ddof=1) / np.sqrt(x.size))
        return estimate, estimate - half, estimate + half
    picks = np.random.default_rng(seed).integers(0, x.size, size=(x.size, draws))
    low, high = np.quantile(statistic(x[picks], axis=0), levels(x.size, confidence))
    return estimate, float(low), float(high)


def hierarchical_bootstrap(
    sums: Sequence[ArrayLike],
    counts: Sequence[ArrayLike],
    *,
    confidence: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> tuple[Floats, Floats, Floats]:
    """Mean over runs of each run's ratio, with an interval that resamples runs and, within them, sequences.

    `sums[r]` and `counts[r]` (E,X): what each sequence of run r adds to the numerator and denominator of X cells. Returns
    estimate, low, high (X,). A run without queries in a cell does not count there; a cell that no run has is NaN, which
    callers drop. Equal samples give a point.
    """
    if not len(sums):
        raise BadRequest("hierarchical bootstrap: no runs")
    tables = [
        np.concatenate([np.asarray(s, float), np.asarray(c, float)], 1) for s, c in zip(sums, counts, strict=True)
    ]

    def ratio(totals: Floats) -> Floats:
        cells = totals.shape[-1] // 2
        return _ratio(totals[..., :cells], totals[..., cells:])

    estimate, low, high, _ = bootstrap_totals(tables, ratio, confidence=confidence, draws=draws, seed=seed)
    return estimate, low, high


def bootstrap_totals(
    tables: Sequence[ArrayLike],
    statistic: Callable[[Floats], Floats],
    *,
    confidence: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    combine: Callable[[Floats], Floats] | None = None,
) -> tuple[Floats, Floats, Floats, Floats]:
    """The hierarchical bootstrap of any statistic of a run's totals.

    `tables[r]` (E,M): what each sequence of run r adds to M totals. `statistic`: totals (...,M) -> (...,X), NaN where a run
    cannot say. `combine`: values of runs (...,R,X) -> (...,Y), by default their mean. Returns the combined value, low, high
    (Y,), and each run's value (R,X).
    """
    if not len(tables):
        raise BadRequest("hierarchical bootstrap: no runs")
    rng = np.random.default_rng(seed)
    values, resampled = [], []
    for table in tables:
        blocks = _blocks(np.asarray(table, dtype=float))
        values.append(statistic(blocks.sum(0)))
        weights = rng.multinomial(len(blocks), np.full(len(blocks), 1 / len(blocks)), size=draws).astype(float)
        resampled.append(statistic(weights @ blocks))
    per_run, within = np.stack(values), np.stack(resampled)  # (R,X), (R,n,X)
    picks = rng.integers(0, len(per_run), size=(draws, len(per_run)))
    # each slot of a draw takes its run's next unused resample, so that a run picked twice is resampled twice
    slots = rng.permuted(np.tile(np.arange(draws)[:, None], (1, len(per_run))), axis=0)
    join = combine or (lambda values: nan_mean(values, -2))
    drawn = join(within[picks, slots])  # (n,Y)
    estimate = join(per_run)
    told = ~np.isnan(per_run)
    count = told.sum(0) if per_run.shape[1] == len(estimate) else np.full(len(estimate), told.any(1).sum())
    low, high = estimate.copy(), estimate.copy()
    for x in np.flatnonzero(~np.isnan(estimate)):
        some = drawn[:, x][~np.isnan(drawn[:, x])]
        if some.size:
            ends = levels(int(count[x]), confidence)
            # no interpolation: an infinite end must stay infinite, not become NaN
            low[x], high[x] = (np.quantile(some, q, method="nearest") for q in ends)
    return estimate, np.minimum(low, estimate), np.maximum(high, estimate), per_run


def wilson(successes: float, trials: float, confidence: float = 0.95) -> tuple[float, float, float]:
    """Share with its Wilson score interval: (share, low, high). Raises BadRequest when trials < 1 or out of range."""
    if trials < 1 or not 0 <= successes <= trials:
        raise BadRequest(
            f"wilson: successes={successes}, trials={trials}; need trials >= 1 and 0 <= successes <= trials"
        )
    z = stats.norm.ppf(0.5 + confidence / 2)
    share = successes / trials
    middle = (share + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z * np.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2)) / (1 + z**2 / trials)
    return share, float(max(0.0, min(middle - half, share))), float(min(1.0, max(middle + half, share)))


def iqm(values: ArrayLike, axis: int = 0) -> NDArray:
    """Interquartile mean: the mean of the middle half (Agarwal et al. 2021), trimming floor(n/4) at each end.

    Raises BadRequest for no scores or scores that are not numbers.
    """
    return stats.trim_mean(_scores(values, "interquartile mean"), 0.25, axis=axis)


def performance_profile(values: ArrayLike, thresholds: ArrayLike) -> NDArray:
    """Share of runs (and tasks) that score above each threshold (Agarwal et al. 2021): any shape -> (len(thresholds),).

    Raises BadRequest for no scores or scores that are not numbers.
    """
    flat = _scores(values, "performance profile").ravel()
    return (flat[None, :] > np.asarray(thresholds, dtype=float)[:, None]).mean(1)


def _scores(values: ArrayLike, what: str) -> Floats:
    x = np.asarray(values, dtype=float)
    if x.size == 0:
        raise BadRequest(f"{what}: no scores")
    if np.isnan(x).any():
        raise BadRequest(f"{what}: {int(np.isnan(x).sum())} of {x.size} scores are not numbers")
    return x


def _blocks(x: Floats) -> Floats:
    """(E,X) -> (min(E, blocks), X): sums over blocks of sequences."""
    if len(x) <= _BLOCKS:
        return x
    out = np.zeros((_BLOCKS, x.shape[1]))
    np.add.at(out, np.arange(len(x)) % _BLOCKS, x)
    return out


def _ratio(s: Floats, c: Floats) -> Floats:
    return np.divide(s, c, out=np.full(np.shape(s), np.nan), where=c > 0)


def nan_mean(x: Floats, axis: int) -> Floats:
    """Mean of the entries that are not NaN; NaN, without a warning, where there are none."""
    good = ~np.isnan(x)
    return _ratio(np.where(good, x, 0).sum(axis), good.sum(axis).astype(float))
