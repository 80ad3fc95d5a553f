"""Curves from records: the mean of a column in every cell of an axis, with intervals that respect runs and sequences.

Group sums are taken once with numpy over integer codes (run, block of sequences, cell), never by looping over rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mnemolab.analysis.records import require
from mnemolab.analysis.statistics.intervals import hierarchical_bootstrap

__all__ = ["CellSums", "axis_bins", "cell_sums", "codes_of", "curve", "per_run"]

_BLOCKS = 512
# An axis with at most this many different values is not binned.
_PLAIN = 24


@dataclass(frozen=True)
class CellSums:
    """Group sums of one column. G groups are the runs (within an arm), E blocks of sequences, X cells of the axis.

    `keys`: one row a group with the `by` columns and run_id. `x` (X,): mean of the axis in each cell. `sums`, `counts`
    (G,E,X).
    """

    keys: pd.DataFrame
    x: NDArray[np.float64]
    sums: NDArray[np.float64]
    counts: NDArray[np.float64]


def axis_bins(values: ArrayLike, bins: int | None = None) -> NDArray[np.int64]:
    """Cell number of each value: one cell a value when there are few, else `bins` cells of about equal counts (default 12)."""
    x = np.asarray(values)
    plain = np.unique(x)
    if (bins is None and len(plain) <= _PLAIN) or (bins is not None and len(plain) <= bins):
        return np.searchsorted(plain, x)
    edges = np.unique(np.quantile(x, np.linspace(0, 1, (bins or 12) + 1)))
    return np.clip(np.searchsorted(edges, x, side="right") - 1, 0, len(edges) - 2)


def codes_of(column: pd.Series) -> tuple[NDArray[np.int64], list]:
    """Integer codes and their labels, sorted for numbers, in category order for names."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        used = column.cat.remove_unused_categories()
        return used.cat.codes.to_numpy().astype(np.int64), list(used.cat.categories)
    labels, codes = np.unique(column.to_numpy(), return_inverse=True)
    return codes.astype(np.int64), list(labels)


def cell_sums(
    records: pd.DataFrame,
    axis: str | None,
    value: str | ArrayLike = "correct",
    by: Sequence[str] = ("arm",),
    bins: int | None = None,
) -> CellSums:
    """Sums and counts of `value` (a column, or one number a row) over (run, block of sequences, cell of `axis`).

    Rows whose value is NaN are left out. `axis=None` is one cell. Raises BadRequest for missing columns or no rows.
    """
    named = [value] if isinstance(value, str) else []
    require(
        records, [c for c in (axis, *named, *by, "run_id", "example") if c is not None], f"curve over {axis or 'all'}"
    )
    weight = (records[value] if isinstance(value, str) else pd.Series(np.asarray(value))).to_numpy(
        dtype=float, na_value=np.nan
    )
    good = np.isfinite(weight)
    if axis is not None and pd.api.types.is_numeric_dtype(records[axis]):
        good &= np.isfinite(records[axis].to_numpy(dtype=float, na_value=np.nan))
    if not good.all():
        records, weight = records[good], weight[good]
        require(records, [], f"curve over {axis or 'all'}")

    group = np.zeros(len(records), dtype=np.int64)
    parts = []
    for name in (*by, "run_id"):
        codes, labels = codes_of(records[name])
        group = group * len(labels) + codes
        parts.append((name, labels))
    groups, group = np.unique(group, return_inverse=True)
    keys, rest = {}, groups
    for name, labels in reversed(parts):
        keys[name] = [labels[i] for i in rest % len(labels)]
        rest = rest // len(labels)

    if axis is None:
        cell = np.zeros(len(records), dtype=np.int64)
        x = np.zeros(1)
    elif pd.api.types.is_numeric_dtype(records[axis]):
        along = records[axis].to_numpy(dtype=float)
        _, cell = np.unique(axis_bins(along, bins), return_inverse=True)
        x = np.bincount(cell, weights=along) / np.bincount(cell)
    else:
        cell, labels = codes_of(records[axis])
        x = np.arange(len(labels), dtype=float)

    block = records["example"].to_numpy() % _BLOCKS
    shape = (len(groups), int(block.max()) + 1, len(x))
    at = (group * shape[1] + block) * shape[2] + cell
    sums = np.bincount(at, weights=weight, minlength=int(np.prod(shape))).astype(float).reshape(shape)
    counts = np.bincount(at, minlength=int(np.prod(shape))).reshape(shape).astype(float)
    return CellSums(pd.DataFrame(keys)[[n for n, _ in parts]], x, sums, counts)


def curve(
    records: pd.DataFrame,
    axis: str | None,
    value: str | ArrayLike = "correct",
    by: Sequence[str] = ("arm",),
    bins: int | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Mean of `value` against `axis`: columns `by`, axis, mean, low, high, runs, queries. 95% hierarchical bootstrap.

    With one run the interval is over its sequences alone; `runs` says so. Cells without queries have no row.
    """
    cells = cell_sums(records, axis, value, by, bins)
    frames = []
    for key, rows in cells.keys.groupby(list(by), sort=False, observed=True).indices.items():
        mean, low, high = hierarchical_bootstrap(
            list(cells.sums[rows]), list(cells.counts[rows]), draws=draws, seed=seed
        )
        counts = cells.counts[rows].sum(1)  # (runs,X)
        frame = pd.DataFrame({axis or "cell": cells.x, "mean": mean, "low": low, "high": high})
        frame["runs"], frame["queries"] = (counts > 0).sum(0), counts.sum(0).astype(np.int64)
        for at, (name, label) in enumerate(zip(by, key if isinstance(key, tuple) else (key,), strict=True)):
            frame.insert(at, name, str(label) if isinstance(label, str) else label)  # type: ignore[arg-type]
        frames.append(frame[frame["queries"] > 0])
    out = pd.concat(frames, ignore_index=True)
    if axis is not None and not pd.api.types.is_numeric_dtype(records[axis]):
        _, labels = codes_of(records[axis])
        out[axis] = [labels[int(i)] for i in out[axis]]
    return out


def per_run(
    records: pd.DataFrame,
    axis: str | None,
    value: str | ArrayLike = "correct",
    by: Sequence[str] = ("arm",),
    bins: int | None = None,
) -> pd.DataFrame:
    """The same means run by run: columns `by`, run_id, axis, mean, successes (the sum), queries."""
    cells = cell_sums(records, axis, value, by, bins)
    sums, counts = cells.sums.sum(1), cells.counts.sum(1)  # (G,X)
    rows, at = np.nonzero(counts)
    out = cells.keys.iloc[rows].reset_index(drop=True)
    out[axis or "cell"] = cells.x[at]
    out["successes"], out["queries"] = sums[rows, at], counts[rows, at].astype(np.int64)
    out["mean"] = out["successes"] / out["queries"]
    if axis is not None and not pd.api.types.is_numeric_dtype(records[axis]):
        _, labels = codes_of(records[axis])
        out[axis] = [labels[int(i)] for i in out[axis]]
    return out
