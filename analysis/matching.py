"""Comparisons at equal lag, so that forgetting with time does not pass for interference.

Queries are stratified by lag, run by run. Between two conditions every stratum weighs the same on both sides: a query weighs
by the share of the *other* condition in its stratum (overlap weights, Li, Morgan and Zaslavsky 2018), which makes the
difference sum_l w_l (p_a - p_b) with w_l = n_a n_b / (n_a + n_b). Along a graded factor the slope is the one within strata
(fixed effects), of which that difference is the case of two grades. Where a factor is a function of the lag there is nothing
left to compare, and the request is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mnemolab.analysis.cells import Grid, axis_bins, numbers
from mnemolab.analysis.records import require
from mnemolab.analysis.statistics.intervals import bootstrap_totals
from mnemolab.errors import BadRequest

__all__ = ["Strata", "matched_slope", "overlap_weights"]

Array = NDArray[np.float64]
# Up to so many different lags each is a stratum of its own; beyond it, strata hold about equal numbers of queries.
_EXACT, _CELLS = 512, 256
# Less than this share of a factor's variance inside the strata: the factor is the lag in other words.
_LEAST_WITHIN = 1e-3


@dataclass(frozen=True)
class Strata:
    """`code` (N,): the stratum of each query. `exact`: a stratum is one lag. `column`: which lag."""

    code: NDArray[np.int64]
    exact: bool
    column: str

    @classmethod
    def of(cls, records: pd.DataFrame, column: str, what: str) -> "Strata":
        """Raises BadRequest when the column is missing; `what` names the analysis. Unknown lags (-1) are one stratum."""
        require(records, [column], f"{what} at matched lag")
        lag = records[column].to_numpy()
        exact = bool(np.unique(lag).size <= _EXACT)
        return cls(axis_bins(lag, _EXACT if exact else _CELLS), exact, column)


def overlap_weights(
    a: NDArray[np.bool_], b: NDArray[np.bool_], strata: Strata, run: NDArray[np.int64]
) -> tuple[Array, Array]:
    """Weights (N,) of the queries of `a` and those of `b`, 0 elsewhere: within a run both sides have the same total in
    every stratum. All 0 where the two never share a stratum. `run` (N,) numbers the runs, -1 for rows that are left out."""
    width = int(strata.code.max(initial=0)) + 1
    key = np.maximum(run, 0) * width + strata.code
    a, b = a & (run >= 0), b & (run >= 0)
    size = int(key.max(initial=0)) + 1
    n_a, n_b = np.bincount(key[a], minlength=size), np.bincount(key[b], minlength=size)
    both = np.maximum(n_a + n_b, 1)
    if not strata.exact:  # neighbours that touch in a wide stratum are not matched
        few = np.minimum(n_a, n_b) < 0.05 * both
        n_a, n_b = np.where(few, 0, n_a), np.where(few, 0, n_b)
    return np.where(a, (n_b / both)[key], 0.0), np.where(b, (n_a / both)[key], 0.0)


def matched_slope(
    records: pd.DataFrame,
    axis: str,
    value: str = "correct",
    by: Sequence[str] = ("arm",),
    *,
    match: str = "lag_tokens",
    log: bool = True,
    draws: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Slope of `value` on ln(axis) (or the axis) among queries of the same lag: columns `by`, slope, low, high, within, runs.

    `within` is the share of the factor's variance that is left inside the strata; runs in which it is under .001 do not
    count. Raises BadRequest when that is all of them, or when the axis has one value.
    """
    what = f"slope on {axis}"
    require(records, [axis, value], what)
    strata = Strata.of(records, match, what)
    x, y = numbers(records[axis]).astype(float), numbers(records[value]).astype(float)
    if log and x.min() <= 0:
        raise BadRequest(f"slope on ln {axis}: its least value is {x.min():g}; use log=False or add 1")
    if x.min() == x.max():
        raise BadRequest(f"{what}: it has one value, {x.min():g}; a slope needs two")
    x = np.log(x) if log else x
    use = np.isfinite(x) & np.isfinite(y)
    grid = Grid.of(records, None, by, where=use)
    run = np.where(grid.at >= 0, grid.at // (grid.shape[1] * grid.shape[2]), -1)
    width = int(strata.code.max()) + 1
    key = np.where(use, run * width + strata.code, 0)
    factor, answer = _within(x, key, use), _within(y, key, use)
    if not strata.exact:  # what a wide stratum leaves of the lag
        lag = _within(numbers(records[match]).astype(float), key, use)
        factor = factor - lag * _per_run(factor * lag, lag * lag, run, use)
    whole = _within(x, np.where(use, run, 0), use)
    top, bottom, total = (grid.sums(v)[0][..., 0] for v in (factor * answer, factor * factor, whole * whole))  # (G,E)
    within = np.divide(bottom.sum(1), total.sum(1), out=np.zeros(len(bottom)), where=total.sum(1) > 0)
    tables = np.stack([top, bottom], -1)
    rows = []
    for named, groups in grid.groups(by):
        good = groups[within[groups] >= _LEAST_WITHIN]
        if not len(good):
            continue
        mean, low, high, _ = bootstrap_totals(list(tables[good]), _ratio, draws=draws, seed=seed)
        row = {**named, "slope": mean[0], "low": low[0], "high": high[0]}
        rows.append(row | {"within": float(within[good].mean()), "runs": len(good)})
    if not rows:
        raise BadRequest(
            f"{what}: {axis} and {match} go together in these records, so their effects cannot be told apart; "
            "vary one with the other held"
        )
    return pd.DataFrame(rows)


def _ratio(totals: Array) -> Array:
    top, bottom = totals[..., 0], totals[..., 1]
    return np.divide(top, bottom, out=np.full(np.shape(top), np.nan), where=bottom > 1e-12)[..., None]


def _within(values: Array, key: NDArray[np.int64], use: NDArray[np.bool_]) -> Array:
    """Values minus the mean of their stratum; 0 for rows left out."""
    n = np.bincount(key[use])
    mean = np.bincount(key[use], weights=values[use]) / np.maximum(n, 1)
    return np.where(use, values - mean[key], 0.0)


def _per_run(top: Array, bottom: Array, run: NDArray[np.int64], use: NDArray[np.bool_]) -> Array:
    """Sum of `top` over sum of `bottom` in each run, one number a row."""
    sums = [np.bincount(run[use], weights=v[use]) for v in (top, bottom)]
    return np.divide(sums[0], sums[1], out=np.zeros(len(sums[0])), where=sums[1] > 0)[np.maximum(run, 0)]
