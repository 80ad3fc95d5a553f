"""Retention: accuracy, chance-corrected accuracy and log-odds against lag, serial position or load.

Definitions: reference lag l in tokens (`lag_tokens`) or in writes (`lag_writes`); p accuracy; g chance, here one over the
number of values presented before the query; p' = (p - g) / (1 - g).
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from mnemolab.analysis.cells import curves, numbers
from mnemolab.analysis.families import FAMILIES
from mnemolab.analysis.fits import Cells, Fit, fit, fit_all, fit_runs, predict
from mnemolab.analysis.records import require

__all__ = ["AXES", "FAMILIES", "Cells", "Fit", "corrected", "curve", "fit", "fit_all", "fit_runs", "predict"]

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
    where: np.ndarray | None = None,
) -> pd.DataFrame:
    """Accuracy against `axis`: columns `by`, axis, mean, low, high, runs, queries, and where the records have them
    `corrected*` (chance-corrected), `log_odds*` (target against the best other presented value), `chance`.

    `where` chooses queries (a boolean per row). Intervals are 95% over runs and sequences (`analysis.cells.curve`). Raises BadRequest when columns are missing.
    """
    require(records, [axis, "correct"], f"retention against {axis}")
    values: dict[str, ArrayLike | str] = {"correct": "correct"}
    if "chance" in records:
        values["chance"] = "chance"
        above = corrected(records)
        if np.isfinite(above).any():  # one needle alone is the only value to guess: chance is 1, nothing to correct
            values["corrected"] = above
    if "log_odds_other" in records and bool(np.isfinite(numbers(records["log_odds_other"])).any()):
        values["log_odds"] = "log_odds_other"
    # -1: this query has no such thing, as when the answer is NONE
    known = records[axis].to_numpy() >= 0
    found = curves(records, axis, values, by, bins, seed=seed, where=known if where is None else known & where)
    out = found["correct"]
    for name in ("corrected", "log_odds"):
        if name in found:
            renamed = found[name].rename(columns={"mean": name, "low": f"{name}_low", "high": f"{name}_high"})
            out = out.merge(renamed[[*by, axis, name, f"{name}_low", f"{name}_high"]], on=[*by, axis], how="left")
    if "chance" in found:
        chance = found["chance"][[*by, axis, "mean"]].rename(columns={"mean": "chance"})
        out = out.merge(chance, on=[*by, axis], how="left")
    return out
