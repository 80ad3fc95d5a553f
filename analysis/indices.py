"""Indices of interference, each computed in every run and then averaged over runs.

Proactive interference (A-B, then A-C, asked C) and retroactive interference (A-B, then A-C or other keys, asked B) are
both (p_control - p_experiment) / p_control, with a control of the same lag and length in which nothing interferes. Release
(Wickens 1970): (p_shift - p_no_shift) / (p_first - p_no_shift).
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mnemolab.analysis.cells import Grid, axis_bins, codes_of, numbers
from mnemolab.analysis.matching import Strata, overlap_weights
from mnemolab.analysis.records import require
from mnemolab.analysis.statistics.intervals import bootstrap_totals, nan_mean
from mnemolab.errors import BadRequest

__all__ = ["contrast", "index", "matched_index", "release", "slope"]

Array = NDArray[np.float64]
Mask = ArrayLike | str | Sequence[str]
# With fewer right answers in the control than this, an index is mostly noise: its standard error is above a third.
_FEW = 10


def index(
    records: pd.DataFrame,
    experiment: Mask,
    control: Mask,
    axis: str | None = None,
    by: Sequence[str] = ("arm",),
    *,
    pooled_control: bool = False,
    bins: int | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """(p_control - p_experiment) / p_control along `axis`, with 95% intervals over runs and sequences.

    `experiment` and `control` choose queries: a boolean per row, or the name(s) of a condition. The control is taken at the
    same cell of `axis`, or over all of it with `pooled_control`. Columns `by`, axis, control, experiment, index, low, high,
    difference*, runs (that have an index), queries, note. Where the control is never right the index is undefined, and
    where it is right fewer than 10 times in a run that ratio is unstable: `note` says so.
    """
    masks = [_mask(records, experiment, "experiment"), _mask(records, control, "control")]
    groups, x, labels = _totals(records, masks, axis, by, bins)
    if pooled_control:
        for _, tables in groups:
            for table in tables:
                part = table.reshape(len(table), 2, 2, len(x))
                part[:, 1] = part[:, 1].sum(-1, keepdims=True)
    queries = [np.sum(tables, axis=(0, 1)).reshape(2, 2, len(x))[0, 1] for _, tables in groups]
    return _index_rows(groups, queries, labels, axis, draws, seed)


def matched_index(
    records: pd.DataFrame,
    axis: str,
    by: Sequence[str] = ("arm",),
    *,
    match: str = "lag_tokens",
    bins: int = 12,
    draws: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """`index` of every cell of `axis` against the lowest cell that the arm has, at the same `match` (a lag).

    Each cell is compared with the queries of the lowest one that stand at its lags, with shared weights
    (`analysis.matching`). Columns as `index`. Raises BadRequest when no lag has both, as when axis and lag go together.
    """
    what = f"interference index over {axis}"
    require(records, [axis, "correct"], what)
    strata = Strata.of(records, match, what)
    grid = Grid.of(records, None, by)
    run = grid.at // (grid.shape[1] * grid.shape[2])
    cell = axis_bins(records[axis].to_numpy(), bins)
    cells = int(cell.max()) + 1
    labels = (np.bincount(cell, weights=records[axis].to_numpy()) / np.bincount(cell)).tolist()
    right = numbers(records["correct"]).astype(float)
    groups, counts = [], []
    for key, rows in grid.groups(by):
        mine = np.isin(run, rows)
        lowest = int(cell[mine].min())
        control = mine & (cell == lowest)
        parts, queries = [], np.zeros(cells)
        for at in range(cells):
            tried = mine & (cell == at) if at != lowest else np.zeros(len(cell), dtype=bool)
            pair = overlap_weights(tried, control, strata, run)
            queries[at] = (pair[0] > 0).sum()
            parts.append(np.stack([[grid.sums(w * right)[0][rows, :, 0], grid.sums(w)[0][rows, :, 0]] for w in pair]))
        table = np.moveaxis(np.stack(parts, -1), (2, 3), (0, 1))  # (runs, E, mask, sum or count, cell)
        groups.append((key, list(table.reshape(len(rows), grid.shape[1], -1))))
        counts.append(queries)
    try:
        return _index_rows(groups, counts, labels, axis, draws, seed)
    except BadRequest as reason:
        raise BadRequest(
            f"{what}: {axis} and {match} go together in these records, so their effects cannot be told apart; "
            "vary one with the other held"
        ) from reason


def _index_rows(
    groups: list[tuple[dict, list[Array]]],
    queries: list[Array],
    labels: list,
    axis: str | None,
    draws: int,
    seed: int,
) -> pd.DataFrame:
    """The table of `index` from tables (E, mask * (sum, count) * cell) of each group's runs."""
    cells = len(labels)

    def statistic(totals: Array) -> Array:
        part = totals.reshape(*totals.shape[:-1], 2, 2, cells)
        tried, calm = (_divide(part[..., m, 0, :], part[..., m, 1, :]) for m in (0, 1))
        return np.concatenate([_divide(calm - tried, calm), calm - tried, tried, calm], -1)

    rows = []
    for (key, tables), counted in zip(groups, queries, strict=True):
        mean, low, high, per_run = bootstrap_totals(tables, statistic, draws=draws, seed=seed)
        for at in range(cells):
            if not np.isfinite(mean[cells + at]):
                continue
            right = np.array([table[:, 2 * cells + at].sum() for table in tables])  # of each run's control
            asked = np.array([table[:, 3 * cells + at].sum() for table in tables]) > 0
            rows.append(
                {
                    **key,
                    (axis or "cell"): labels[at],
                    "control": mean[3 * cells + at],
                    "experiment": mean[2 * cells + at],
                    "index": mean[at],
                    "low": low[at],
                    "high": high[at],
                    "difference": mean[cells + at],
                    "difference_low": low[cells + at],
                    "difference_high": high[cells + at],
                    "runs": int(np.isfinite(per_run[:, at]).sum()),
                    "queries": int(counted[at]),
                    "note": _control_note(right[asked], mean[at]),
                }
            )
    if not rows:
        raise BadRequest(
            f"interference index: experiment and control share no cell of {axis}; pool the control, or change axis"
        )
    return pd.DataFrame(rows)


def _control_note(right: Array, found: float) -> str:
    """What is wrong with the denominators: right answers of each run's control."""
    never, few = int((right <= 0).sum()), int(((right > 0) & (right < _FEW)).sum())
    if np.isnan(found):
        return "the control is never right: the index is undefined"
    parts = [f"unstable: the control is right fewer than {_FEW} times in {few} of {len(right)} runs"] if few else []
    parts += [f"undefined in {never} of {len(right)} runs, whose control is never right"] if never else []
    return "; ".join(parts)


def slope(
    records: pd.DataFrame,
    axis: str,
    value: str = "correct",
    by: Sequence[str] = ("arm",),
    *,
    log: bool = True,
    bins: int | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Slope of the mean of `value` on ln(axis) (or on the axis itself), weighted by queries, and the half-point.

    Columns `by`, slope, low, high (per unit of ln axis), half_point, half_low, half_high, runs, never, note. The half-point
    is where a run's mean has fallen to half of that in the first cell of its arm, between cells in ln axis, infinite when
    it never does; given is the median over runs, and `never` counts the runs that never fall. Cells without queries are
    passed over; runs without the first cell have no half-point, which `note` says. Raises BadRequest when the axis has one
    value.
    """
    require(records, [axis, value], f"slope on {axis}")
    known = records[value].notna().to_numpy()
    groups, x, _ = _totals(records, [known], axis, by, bins, value)
    if len(x) < 2:
        raise BadRequest(f"slope on {axis}: it has one value, {x[0]:g}; a slope needs two")
    if log and x.min() <= 0:
        raise BadRequest(f"slope on ln {axis}: its least value is {x.min():g}; use log=False or add 1")
    along = np.log(x) if log else x

    def statistic(totals: Array, first: int) -> Array:
        part = totals.reshape(*totals.shape[:-1], 2, len(x))
        mean, weight = _divide(part[..., 0, :], part[..., 1, :]), part[..., 1, :]
        filled = np.nan_to_num(mean)
        centre = _divide((weight * along).sum(-1), weight.sum(-1))[..., None]
        top = (weight * (along - centre) * filled).sum(-1)
        gradient = _divide(top, (weight * (along - centre) ** 2).sum(-1))
        return np.stack([gradient, _half_point(mean, along, log, first)], -1)

    rows = []
    for key, tables in groups:
        first = int(np.argmax(np.sum(tables, axis=(0, 1))[len(x) :] > 0))
        mean, low, high, per_run = bootstrap_totals(
            tables,
            lambda totals, first=first: statistic(totals, first),
            combine=_mean_and_median,
            draws=draws,
            seed=seed,
        )
        if np.isnan(mean[0]):
            continue  # this arm has one value of the axis
        halves = per_run[:, 1]
        row = {**key, "slope": mean[0], "low": low[0], "high": high[0], "half_point": mean[1]}
        row |= {"half_low": low[1], "half_high": high[1], "runs": len(tables), "never": int(np.isinf(halves).sum())}
        lacking = int(np.isnan(halves).sum())
        note = f"no half-point in {lacking} of {len(tables)} runs: nothing at {axis} {x[first]:g} to halve"
        rows.append(row | {"note": note if lacking else ""})
    if not rows:
        raise BadRequest(f"slope on {axis}: no {' and '.join(by)} has two values of it")
    return pd.DataFrame(rows)


def release(
    records: pd.DataFrame,
    shifted: Mask,
    unshifted: Mask,
    first: Mask,
    by: Sequence[str] = ("arm",),
    *,
    draws: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Share of what proactive interference took that a shift of topic gives back: 0 none, 1 all.

    `shifted`, `unshifted` and `first` choose the queries of the last block after a shift, after none, and of a first block.
    For the return to the first topic (A-B-A) give its queries as `shifted`. The release is the ratio of the means over runs,
    since a run in which little was lost has no ratio of its own; runs that lack one of the three do not count. Columns `by`, release, low, high, difference* (p_shift -
    p_no_shift), lost* (p_first - p_no_shift), p_shift, p_no_shift, p_first, runs, note. Where the interval of what was lost
    reaches 0 the release is undefined and `note` says so.
    """
    masks = [_mask(records, m, n) for m, n in ((shifted, "shifted"), (unshifted, "unshifted"), (first, "first"))]
    groups, _, _ = _totals(records, masks, None, by, None)

    def statistic(totals: Array) -> Array:
        part = totals.reshape(*totals.shape[:-1], 3, 2)
        p = _divide(part[..., 0], part[..., 1])
        p = np.where(np.isnan(p).any(-1, keepdims=True), np.nan, p)  # both means of the ratio are over the same runs
        return np.stack([p[..., 0] - p[..., 1], p[..., 2] - p[..., 1], p[..., 0], p[..., 1], p[..., 2]], -1)

    def combine(values: Array) -> Array:
        means = nan_mean(values, -2)
        return np.concatenate([_divide(means[..., :1], means[..., 1:2]), means], -1)

    rows = []
    for key, tables in groups:
        mean, low, high, per_run = bootstrap_totals(tables, statistic, combine=combine, draws=draws, seed=seed)
        asked = np.sum(tables, axis=(0, 1)).reshape(3, 2)[:, 1] > 0
        missing = [n for n, there in zip(("shifted", "unshifted", "first"), asked, strict=True) if not there]
        note = f"no {', '.join(missing)} queries" if missing else ""
        if not note and np.isnan(mean[1]):
            note = "no run has shifted, unshifted and first queries"
        if not note and low[2] <= 0:
            note = (
                f"nothing was surely lost without a shift, {mean[2]:.3f} ({low[2]:.3f} to {high[2]:.3f}): "
                "the release is undefined"
            )
        if note:
            mean[0] = low[0] = high[0] = np.nan
        row = {**key, "release": mean[0], "low": low[0], "high": high[0]}
        for name, at in (("difference", 1), ("lost", 2)):
            row |= {name: mean[at], f"{name}_low": low[at], f"{name}_high": high[at]}
        row |= {"p_shift": mean[3], "p_no_shift": mean[4], "p_first": mean[5]}
        rows.append(row | {"runs": int(np.isfinite(per_run[:, :2]).all(1).sum()), "note": note})
    return pd.DataFrame(rows)


def contrast(
    records: pd.DataFrame,
    a: Mask,
    b: Mask,
    value: str = "correct",
    by: Sequence[str] = ("arm",),
    seed: int = 0,
    *,
    match: str | None = None,
) -> pd.DataFrame:
    """Mean of `value` over queries `a` minus that over `b`, in each run: columns `by`, difference, low, high, a, b, runs.

    With `match` (a lag) at equal lag, with shared weights (`analysis.matching`); raises BadRequest when no lag has both.
    """
    require(records, [value], "contrast")
    masks = [_mask(records, a, "a"), _mask(records, b, "b")]
    if match is None:
        groups, _, _ = _totals(records, masks, None, by, None, value)
    else:
        strata = Strata.of(records, match, "contrast")
        y = numbers(records[value]).astype(float)
        known = np.isfinite(y)
        grid = Grid.of(records, None, by, where=(masks[0] | masks[1]) & known)
        run = np.where(grid.at >= 0, grid.at // (grid.shape[1] * grid.shape[2]), -1)
        parts = [
            grid.sums(v)[0]
            for w in overlap_weights(masks[0], masks[1], strata, run)
            for v in (w * np.where(known, y, 0), w)
        ]
        tables = np.concatenate(parts, -1)  # (G,E,4)
        groups = [(key, list(tables[rows])) for key, rows in grid.groups(by)]

    def statistic(totals: Array) -> Array:
        part = totals.reshape(*totals.shape[:-1], 2, 2)
        p = _divide(part[..., 0], part[..., 1])
        return np.stack([p[..., 0] - p[..., 1], p[..., 0], p[..., 1]], -1)

    rows = []
    for key, tables in groups:
        mean, low, high, per_run = bootstrap_totals(tables, statistic, seed=seed)
        if match is not None and not np.isfinite(mean[0]):
            continue
        runs = int(np.isfinite(per_run[:, 0]).sum())
        rows.append(
            {**key, "difference": mean[0], "low": low[0], "high": high[0], "a": mean[1], "b": mean[2], "runs": runs}
        )
    if not rows:
        raise BadRequest(f"contrast: the two sets of queries share no {match}; vary one with the other held")
    return pd.DataFrame(rows)


def _mask(records: pd.DataFrame, chosen: Mask, what: str) -> NDArray[np.bool_]:
    """A boolean per row; condition names become one. Raises BadRequest for an unknown condition or no query."""
    if isinstance(chosen, str) or (isinstance(chosen, list | tuple) and chosen and isinstance(chosen[0], str)):
        names = [chosen] if isinstance(chosen, str) else [str(name) for name in chosen]
        require(records, ["condition"], what)
        codes, labels = codes_of(records["condition"])
        texts = [str(label) for label in labels]
        chosen = np.isin(codes, [texts.index(name) for name in names if name in texts])
        if not chosen.any() or any(name not in texts for name in names):
            have = sorted({texts[c] for c in np.unique(codes[codes >= 0])})
            raise BadRequest(f"{what}={', '.join(names)}: no query has this condition; have: {', '.join(have)}")
        return chosen
    mask = np.asarray(chosen, dtype=bool)
    if mask.shape != (len(records),) or not mask.any():
        raise BadRequest(f"{what}: chooses {int(mask.sum())} of {len(records)} queries; need at least one")
    return mask


def _totals(
    records: pd.DataFrame,
    masks: Sequence[NDArray[np.bool_]],
    axis: str | None,
    by: Sequence[str],
    bins: int | None,
    value: str = "correct",
) -> tuple[list[tuple[dict, list[Array]]], Array, list]:
    """Per group of `by`: its key and a table (E, masks * 2 * X) for each run; then x (X,) and the cells' labels."""
    require(records, [c for c in (axis, *by, "run_id", "example", value) if c], "interference index")
    any_mask = np.logical_or.reduce(masks)
    grid = Grid.of(records, axis, by, bins, any_mask)
    weight = numbers(records[value])
    tables = np.concatenate([half for mask in masks for half in grid.sums(weight, mask)], -1)  # (G, E, masks * 2 * X)
    return [(key, list(tables[rows])) for key, rows in grid.groups(by)], grid.x, grid.labels


def _half_point(mean: Array, along: Array, log: bool, first: int) -> Array:
    """Where (...,X) means first fall to half of that in cell `first`, linear between the cells that are not NaN; inf when
    they never do, NaN when cell `first` is empty. A mean that starts at or below 0, as a margin can, has no half: inf."""
    target = mean[..., first] / 2
    found = np.full(target.shape, np.inf)
    before, place = mean[..., first], np.full(target.shape, along[first])
    for at in range(first + 1, len(along)):
        here = mean[..., at]
        falls = np.isinf(found) & (here <= target) & (target > 0)
        share = np.clip(_divide(before - target, before - here), 0, 1)
        found = np.where(falls, place + share * (along[at] - place), found)
        known = ~np.isnan(here)
        before, place = np.where(known, here, before), np.where(known, along[at], place)
    return np.where(np.isnan(target), np.nan, np.exp(found) if log else found)


def _mean_and_median(values: Array) -> Array:
    """Over runs (...,R,2): the mean of the slopes, the median of the half-points (which a run without one does not spoil)."""
    slopes, halves = values[..., 0], values[..., 1]
    n = (~np.isnan(halves)).sum(-1, keepdims=True)
    ranked = np.sort(halves, -1)  # NaN last
    middle = [np.take_along_axis(ranked, np.maximum(k, 0), -1)[..., 0] for k in ((n - 1) // 2, n // 2)]
    # of an even number the lower one, unless both are known: half of the runs have fallen by then
    median = np.where(np.isfinite(middle[1]), (middle[0] + middle[1]) / 2, middle[0])
    return np.stack([nan_mean(slopes, -1), median], -1)


def _divide(a: Array, b: Array) -> Array:
    return np.divide(a, b, out=np.full(np.broadcast_shapes(a.shape, b.shape), np.nan), where=np.abs(b) > 1e-12)
