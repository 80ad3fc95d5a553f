"""Curves from records: the mean of a column in every cell of an axis, with intervals that respect runs and sequences.

Group sums are taken with numpy over integer codes (run, block of sequences, cell): no loop over rows, no sort of a big
column, no copy of the table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mnemolab.analysis.records import require
from mnemolab.analysis.statistics.intervals import bootstrap_totals
from mnemolab.errors import BadRequest

__all__ = ["Grid", "axis_bins", "codes_of", "curve", "curves", "numbers", "per_run"]

_BLOCKS = 256
# An axis with at most this many different values is not binned.
_PLAIN = 24
# Integers within this range are counted rather than sorted.
_RANGE = 1 << 20


@dataclass(frozen=True)
class Grid:
    """Where each row falls. G groups (a run within an arm), E blocks of sequences, X cells of the axis.

    `keys`: one row a group with the `by` columns and run_id. `x` (X,): mean of the axis in each cell; `labels` (X,): what to
    call it. `at` (N,): flat index into (G,E,X) of each row, -1 for rows left out.
    """

    keys: pd.DataFrame
    x: NDArray[np.float64]
    labels: list
    at: NDArray[np.int64]
    shape: tuple[int, int, int]

    @classmethod
    def of(
        cls,
        records: pd.DataFrame,
        axis: str | None,
        by: Sequence[str] = ("arm",),
        bins: int | None = None,
        where: NDArray[np.bool_] | None = None,
    ) -> "Grid":
        """`where` chooses rows. Raises BadRequest for missing columns or when no row is left."""
        require(records, [c for c in (axis, *by, "run_id", "example") if c is not None], f"curve over {axis or 'all'}")
        use = np.ones(len(records), dtype=bool) if where is None else np.asarray(where, dtype=bool)
        along = None
        if axis is not None and pd.api.types.is_numeric_dtype(records[axis]):
            along = records[axis].to_numpy() if records[axis].dtype.kind in "iu" else numbers(records[axis])
            use = use & np.isfinite(along) if along.dtype.kind == "f" else use
        if not use.any():
            raise BadRequest(f"curve over {axis or 'all'}: no query is left to analyse; check the filter, or the task")

        group = np.zeros(len(records), dtype=np.int64)
        parts = []
        for name in (*by, "run_id"):
            codes, labels = codes_of(records[name])
            if (codes < 0).any():
                raise BadRequest(
                    f"curve over {axis or 'all'}: {name} is missing in {(codes < 0).sum()} rows; leave them out"
                )
            group = group * len(labels) + codes
            parts.append((name, labels))
        present = np.flatnonzero(np.bincount(group[use]))
        lookup = np.zeros(int(present[-1]) + 1 if len(present) else 1, dtype=np.int64)
        lookup[present] = np.arange(len(present))
        keys, rest = {}, present
        for name, labels in reversed(parts):
            keys[name] = [labels[i] for i in rest % len(labels)]
            rest = rest // len(labels)

        if axis is None:
            cell, x, labels = np.zeros(len(records), dtype=np.int64), np.zeros(1), [0]
        elif along is not None:
            cell = np.zeros(len(records), dtype=np.int64)
            inside = along[use]
            cell[use] = _dense(axis_bins(inside, bins))
            n = np.bincount(cell[use])
            x = np.bincount(cell[use], weights=inside) / n
            labels = [float(v) for v in x]
        else:
            cell, labels = codes_of(records[axis])
            use = use & (cell >= 0)
            if not use.any():
                raise BadRequest(f"curve over {axis}: no query has a {axis}")
            cell = np.maximum(cell, 0)
            x = np.arange(len(labels), dtype=float)
        block, _ = codes_of(records["example"])
        if (block < 0).any():
            raise BadRequest(f"curve over {axis or 'all'}: example is missing in {(block < 0).sum()} rows")
        block %= _BLOCKS  # of dense codes: numbers in strides must not fall into one block
        shape = (len(present), int(block.max()) + 1, len(x))
        at = (np.where(use, lookup[np.minimum(group, len(lookup) - 1)], 0) * shape[1] + block) * shape[2] + cell
        at[~use] = -1
        return cls(pd.DataFrame(keys)[[n for n, _ in parts]], x, labels, at, shape)

    def sums(
        self, weight: NDArray | None = None, mask: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Sums of `weight` (N,) and counts of rows, each (G,E,X), over rows in `mask` whose weight is not NaN."""
        good = self.at >= 0 if mask is None else (self.at >= 0) & mask
        if weight is not None and weight.dtype.kind == "f":
            good &= np.isfinite(weight)
        whole = good.all()
        at = self.at if whole else self.at[good]
        size = int(np.prod(self.shape))
        counts = np.bincount(at, minlength=size).astype(float).reshape(self.shape)
        if weight is None:
            return counts, counts
        used = weight if whole else weight[good]
        sums = np.bincount(at, weights=used, minlength=size).astype(float)
        return sums.reshape(self.shape), counts

    def groups(self, by: Sequence[str]) -> list[tuple[dict, NDArray[np.int64]]]:
        """(values of the `by` columns, rows of `keys`) for each arm."""
        found = self.keys.groupby(list(by), sort=False, observed=True).indices.items()
        return [
            (dict(zip(by, key if isinstance(key, tuple) else (key,), strict=True)), np.asarray(rows))
            for key, rows in found
        ]


def axis_bins(values: ArrayLike, bins: int | None = None) -> NDArray[np.int64]:
    """Cell number of each value: one cell a value when there are few, else `bins` cells of about equal counts (default 12)."""
    x = np.asarray(values)
    few = _PLAIN if bins is None else bins
    plain, counts = _counted(x)
    if len(plain) <= few:
        return _find(plain, x)
    # cells end at the values where the running count passes each quantile
    share = (np.cumsum(counts) - counts / 2) / counts.sum()
    cell_of_plain = np.minimum((share * (bins or 12)).astype(np.int64), (bins or 12) - 1)
    return _dense(cell_of_plain)[_find(plain, x)]


def codes_of(column: pd.Series) -> tuple[NDArray[np.int64], list]:
    """Integer codes and their labels, sorted for numbers, in category order for names; -1 where the value is missing."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.cat.codes.to_numpy().astype(np.int64), list(column.cat.categories)
    values = column.to_numpy()
    if values.dtype.kind in "iub":
        plain, _ = _counted(values)
        return _find(plain, values), plain.tolist()
    codes, labels = pd.factorize(column, sort=True)
    return codes.astype(np.int64), list(labels)


def numbers(column: pd.Series | ArrayLike) -> NDArray:
    """A column as numbers: bools and integers as they are, the rest as floats with NaN for what is missing."""
    if isinstance(column, pd.Series):
        if column.dtype.kind in "biu":
            return column.to_numpy()
        return column.to_numpy(dtype=np.float32 if column.dtype == np.float32 else float, na_value=np.nan)
    return np.asarray(column)


def curves(
    records: pd.DataFrame,
    axis: str | None,
    values: Mapping[str, str | ArrayLike],
    by: Sequence[str] = ("arm",),
    bins: int | None = None,
    draws: int = 1000,
    seed: int = 0,
    where: NDArray[np.bool_] | None = None,
) -> dict[str, pd.DataFrame]:
    """`curve` for several values over one grid and the same resamples: name -> table."""
    grid = Grid.of(records, axis, by, bins, where)
    for value in values.values():
        if isinstance(value, str):
            require(records, [value], f"curve over {axis or 'all'}")
    pairs = [grid.sums(numbers(records[v] if isinstance(v, str) else v)) for v in values.values()]
    cells = len(grid.x)
    tables = np.concatenate([half for pair in pairs for half in pair], -1)  # (G,E, values * 2 * X)

    def ratios(totals: NDArray) -> NDArray:
        part = totals.reshape(*totals.shape[:-1], len(values), 2, cells)
        top, bottom = part[..., 0, :], part[..., 1, :]
        means = np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom > 0)
        return means.reshape(*totals.shape[:-1], -1)

    frames: dict[str, list[pd.DataFrame]] = {name: [] for name in values}
    for key, rows in grid.groups(by):
        mean, low, high, _ = bootstrap_totals(list(tables[rows]), ratios, draws=draws, seed=seed)
        for n, name in enumerate(values):
            span = slice(n * cells, (n + 1) * cells)
            counts = pairs[n][1][rows].sum(1)  # (runs,X)
            frame = pd.DataFrame(
                {axis or "cell": grid.labels, "mean": mean[span], "low": low[span], "high": high[span]}
            )
            frame["runs"], frame["queries"] = (counts > 0).sum(0), counts.sum(0).astype(np.int64)
            for at, (column, label) in enumerate(key.items()):
                frame.insert(at, column, label)
            frames[name].append(frame[frame["queries"] > 0])
    out = {name: pd.concat(parts, ignore_index=True) for name, parts in frames.items()}
    for name, table in out.items():
        if table.empty:
            raise BadRequest(
                f"curve over {axis or 'all'}: no query is left to analyse ({name} is missing in all of them)"
            )
    return out


def curve(
    records: pd.DataFrame,
    axis: str | None,
    value: str | ArrayLike = "correct",
    by: Sequence[str] = ("arm",),
    bins: int | None = None,
    draws: int = 1000,
    seed: int = 0,
    where: NDArray[np.bool_] | None = None,
) -> pd.DataFrame:
    """Mean of `value` (a column, or one number a row) against `axis`: columns `by`, axis, mean, low, high, runs, queries.

    95% intervals by the hierarchical bootstrap. With one run the interval is over its sequences alone; `runs` says so.
    Cells without queries have no row; rows whose value is NaN do not count. `axis=None` is one cell.
    """
    return curves(records, axis, {"value": value}, by, bins, draws, seed, where)["value"]


def per_run(
    records: pd.DataFrame,
    axis: str | None,
    value: str | ArrayLike = "correct",
    by: Sequence[str] = ("arm",),
    bins: int | None = None,
    where: NDArray[np.bool_] | None = None,
) -> pd.DataFrame:
    """The same means run by run: columns `by`, run_id, axis, mean, successes (the sum), queries."""
    grid = Grid.of(records, axis, by, bins, where)
    sums, counts = (s.sum(1) for s in grid.sums(numbers(records[value] if isinstance(value, str) else value)))  # (G,X)
    rows, at = np.nonzero(counts)
    out = grid.keys.iloc[rows].reset_index(drop=True)
    out[axis or "cell"] = [grid.labels[i] for i in at]
    out["successes"], out["queries"] = sums[rows, at], counts[rows, at].astype(np.int64)
    out["mean"] = out["successes"] / out["queries"]
    return out


def _counted(x: NDArray) -> tuple[NDArray, NDArray[np.int64]]:
    """Different values in order, and how often each occurs."""
    if x.dtype.kind in "iub" and len(x):
        low, high = int(x.min()), int(x.max())
        if high - low < _RANGE:
            counts = np.bincount(x.astype(np.int64) - low)
            plain = np.flatnonzero(counts)
            return plain + low, counts[plain]
    return np.unique(x, return_counts=True)


def _find(plain: NDArray, x: NDArray) -> NDArray[np.int64]:
    """Index of each x in the sorted `plain`."""
    if x.dtype.kind in "iub" and len(plain) and int(plain[-1]) - int(plain[0]) < _RANGE:
        low = int(plain[0])
        lookup = np.zeros(int(plain[-1]) - low + 1, dtype=np.int64)
        lookup[plain.astype(np.int64) - low] = np.arange(len(plain))
        return lookup[x.astype(np.int64) - low]
    return np.searchsorted(plain, x)


def _dense(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same order, without gaps."""
    present = np.flatnonzero(np.bincount(codes))
    lookup = np.zeros(int(present[-1]) + 1, dtype=np.int64)
    lookup[present] = np.arange(len(present))
    return lookup[codes]
