"""Retention: accuracy, chance-corrected accuracy and log-odds against lag, serial position or load.

Definitions: reference lag l in tokens (`lag_tokens`) or in writes (`lag_writes`); p accuracy; g chance, here one over the
number of values presented before the query; p' = (p - g) / (1 - g).
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mnemolab.analysis.cells import curve as _curve
from mnemolab.analysis.records import require

__all__ = ["AXES", "corrected", "curve"]

# What retention is plotted against, where the records have it and it varies.
AXES = ("lag_tokens", "lag_writes", "serial_position", "load")


def corrected(records: pd.DataFrame) -> np.ndarray:
    """p' of each query, (correct - chance) / (1 - chance): its mean is the chance-corrected accuracy. NaN where chance is 1."""
    require(records, ["correct", "chance"], "chance correction")
    right, chance = records["correct"].to_numpy(dtype=float), records["chance"].to_numpy(dtype=float)
    return np.divide(right - chance, 1 - chance, out=np.full(len(right), np.nan), where=chance < 1)


def curve(
    records: pd.DataFrame,
    axis: str = "lag_tokens",
    by: Sequence[str] = ("arm",),
    bins: int | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Accuracy against `axis`: columns `by`, axis, mean, low, high, runs, queries, and where the records have them
    `corrected*` (chance-corrected), `log_odds*` (target against the best other presented value), `chance`.

    Intervals are 95% over runs and sequences (`analysis.cells.curve`). Raises BadRequest when columns are missing.
    """
    require(records, [axis, "correct"], f"retention against {axis}")
    records = records[records[axis].to_numpy() >= 0]  # -1: this query has no such thing, as when the answer is NONE
    out = _curve(records, axis, "correct", by, bins, seed=seed)
    on = [*by, axis]
    if "chance" in records:
        out = _beside(out, _curve(records, axis, corrected(records), by, bins, seed=seed), on, "corrected")
        chance = _curve(records, axis, "chance", by, bins, draws=1)[[*on, "mean"]]
        out = out.merge(chance.rename(columns={"mean": "chance"}), on=on, how="left")
    if "log_odds_other" in records and np.isfinite(records["log_odds_other"].to_numpy(dtype=float)).any():
        out = _beside(out, _curve(records, axis, "log_odds_other", by, bins, seed=seed), on, "log_odds")
    return out


def _beside(left: pd.DataFrame, right: pd.DataFrame, on: list[str], name: str) -> pd.DataFrame:
    renamed = right.rename(columns={"mean": name, "low": f"{name}_low", "high": f"{name}_high"})
    return left.merge(renamed[[*on, name, f"{name}_low", f"{name}_high"]], on=on, how="left")
