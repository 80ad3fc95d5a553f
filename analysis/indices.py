"""Indices of interference, each computed in every run and then averaged over runs.

Proactive interference (A-B, then A-C, asked C) and retroactive interference (A-B, then A-C or other keys, asked B) are
both (p_control - p_experiment) / p_control, with a control of the same lag and length in which nothing interferes. Release
(Wickens 1970): (p_shift - p_no_shift) / (p_first - p_no_shift).
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mnemolab.analysis.cells import Grid, codes_of, numbers
from mnemolab.analysis.records import require
from mnemolab.analysis.statistics.intervals import bootstrap_totals
from mnemolab.errors import BadRequest

__all__ = ["contrast", "index", "release", "slope"]

Array = NDArray[np.float64]
Mask = ArrayLike | str | Sequence[str]


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
    difference*, runs, queries, note. Where the control is never right the index is undefined and `note` says so.
    """
    masks = [_mask(records, experiment, "experiment"), _mask(records, control, "control")]
    groups, x, labels = _totals(records, masks, axis, by, bins)
    cells = len(x)

    def shares(totals: Array) -> tuple[Array, Array]:
        part = totals.reshape(*totals.shape[:-1], 2, 2, cells)  # mask, (sum, count), cell
        if pooled_control:
            part = part.copy()
            part[..., 1, :, :] = part[..., 1, :, :].sum(-1, keepdims=True)
        return _divide(part[..., 0, 0, :], part[..., 0, 1, :]), _divide(part[..., 1, 0, :], part[..., 1, 1, :])

    def statistic(totals: Array) -> Array:
        tried, calm = shares(totals)
        return np.concatenate([_divide(calm - tried, calm), calm - tried, tried, calm], -1)

    rows = []
    for key, tables in groups:
        mean, low, high, per_run = bootstrap_totals(tables, statistic, draws=draws, seed=seed)
        queries = np.sum(tables, axis=(0, 1)).reshape(2, 2, cells)[0, 1]
        for at in range(cells):
            if not np.isfinite(mean[cells + at]):
                continue
            undefined = not np.isfinite(mean[at])
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
                    "runs": int(np.isfinite(per_run[:, cells + at]).sum()),
                    "queries": int(queries[at]),
                    "note": "the control is never right: the index is undefined" if undefined else "",
                }
            )
    if not rows:
        raise BadRequest(
            f"interference index: experiment and control share no cell of {axis}; pool the control, or change axis"
        )
    return pd.DataFrame(rows)


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

    Columns `by`, slope, low, high (per unit of ln axis), half_point, half_low, half_high: where the mean has fallen to half
    of its first cell, between cells in ln axis; infinite when it never does. Raises BadRequest when the axis has one value.
    """
    require(records, [axis, value], f"slope on {axis}")
    known = records[value].notna().to_numpy()
    groups, x, _ = _totals(records, [known], axis, by, bins, value)
    if len(x) < 2:
        raise BadRequest(f"slope on {axis}: it has one value, {x[0]:g}; a slope needs two")
    if log and x.min() <= 0:
        raise BadRequest(f"slope on ln {axis}: its least value is {x.min():g}; use log=False or add 1")
    along = np.log(x) if log else x

    def statistic(totals: Array) -> Array:
        part = totals.reshape(*totals.shape[:-1], 2, len(x))
        mean, weight = _divide(part[..., 0, :], part[..., 1, :]), part[..., 1, :]
        filled = np.nan_to_num(mean)
        centre = _divide((weight * along).sum(-1), weight.sum(-1))[..., None]
        top = (weight * (along - centre) * filled).sum(-1)
        gradient = _divide(top, (weight * (along - centre) ** 2).sum(-1))
        return np.stack([gradient, _half_point(mean, along, log)], -1)

    rows = []
    for key, tables in groups:
        mean, low, high, _ = bootstrap_totals(tables, statistic, draws=draws, seed=seed)
        if np.isnan(mean[0]):
            continue  # this arm has one value of the axis
        row = {**key, "slope": mean[0], "low": low[0], "high": high[0], "half_point": mean[1]}
        rows.append(row | {"half_low": low[1], "half_high": high[1], "runs": len(tables)})
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
    For the return to the first topic (A-B-A) give its queries as `shifted`. Columns `by`, release, low, high, difference*
    (p_shift - p_no_shift), p_shift, p_no_shift, p_first, runs, note. Where nothing was lost the release is undefined.
    """
    masks = [_mask(records, m, n) for m, n in ((shifted, "shifted"), (unshifted, "unshifted"), (first, "first"))]
    groups, _, _ = _totals(records, masks, None, by, None)

    def statistic(totals: Array) -> Array:
        part = totals.reshape(*totals.shape[:-1], 3, 2)
        p = _divide(part[..., 0], part[..., 1])
        gained, lost = p[..., 0] - p[..., 1], p[..., 2] - p[..., 1]
        ratio = np.where(lost > 0, _divide(gained, lost), np.nan)
        return np.stack([ratio, gained, p[..., 0], p[..., 1], p[..., 2]], -1)

    rows = []
    for key, tables in groups:
        mean, low, high, per_run = bootstrap_totals(tables, statistic, draws=draws, seed=seed)
        missing = [n for n, v in zip(("shifted", "unshifted", "first"), mean[2:], strict=True) if np.isnan(v)]
        note = f"no {', '.join(missing)} queries" if missing else ""
        if not note and np.isnan(mean[0]):
            note = "nothing was lost without a shift: the release is undefined"
        rows.append(
            {
                **key,
                "release": mean[0],
                "low": low[0],
                "high": high[0],
                "difference": mean[1],
                "difference_low": low[1],
                "difference_high": high[1],
                "p_shift": mean[2],
                "p_no_shift": mean[3],
                "p_first": mean[4],
                "runs": int(np.isfinite(per_run[:, 1]).sum()),
                "note": note,
            }
        )
    return pd.DataFrame(rows)


def contrast(
    records: pd.DataFrame, a: Mask, b: Mask, value: str = "correct", by: Sequence[str] = ("arm",), seed: int = 0
) -> pd.DataFrame:
    """Mean of `value` over queries `a` minus that over `b`, in each run: columns `by`, difference, low, high, a, b, runs."""
    require(records, [value], "contrast")
    groups, _, _ = _totals(records, [_mask(records, a, "a"), _mask(records, b, "b")], None, by, None, value)

    def statistic(totals: Array) -> Array:
        part = totals.reshape(*totals.shape[:-1], 2, 2)
        p = _divide(part[..., 0], part[..., 1])
        return np.stack([p[..., 0] - p[..., 1], p[..., 0], p[..., 1]], -1)

    rows = []
    for key, tables in groups:
        mean, low, high, per_run = bootstrap_totals(tables, statistic, seed=seed)
        runs = int(np.isfinite(per_run[:, 0]).sum())
        rows.append(
            {**key, "difference": mean[0], "low": low[0], "high": high[0], "a": mean[1], "b": mean[2], "runs": runs}
        )
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
            have = sorted({texts[c] for c in np.unique(codes)})
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


def _half_point(mean: Array, along: Array, log: bool) -> Array:
    """Where (...,X) means first fall to half of the first one, linear between cells of `along`; inf when they never do."""
    target = mean[..., :1] / 2
    below = mean <= target
    found = below.any(-1) & (target[..., 0] > 0)  # a mean that starts below 0, as a margin can, has no half
    at = np.maximum(below.argmax(-1), 1)[..., None]
    high, low = np.take_along_axis(mean, at - 1, -1), np.take_along_axis(mean, at, -1)
    share = np.clip(np.nan_to_num(_divide(high - target, high - low)[..., 0]), 0, 1)
    where = along[at[..., 0] - 1] + share * (along[at[..., 0]] - along[at[..., 0] - 1])
    where = np.where(found, where, 0.0)  # anything finite
    return np.where(found, np.exp(where) if log else where, np.inf)


def _divide(a: Array, b: Array) -> Array:
    return np.divide(a, b, out=np.full(np.broadcast_shapes(a.shape, b.shape), np.nan), where=np.abs(b) > 1e-12)
