"""Interference: what earlier and later bindings do to a memory, and whose value a wrong answer gives.

An intrusion is a wrong answer that was right for something else: a stale value of the same key (by age, 1 = the version
just before), a value of another key, a value never presented, or no value at all. Each is given as a share of queries and
as an excess over chance: guessing among presented values gives each of them one share of `chance`.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mnemolab.analysis.cells import curve
from mnemolab.analysis.indices import contrast, index, release, slope
from mnemolab.analysis.paradigms import (
    directed_forgetting,
    fan,
    latest_only,
    load_interference,
    output_interference,
    proactive,
    release_from_interference,
    retroactive,
    serial_position,
    spacing,
    version_slope,
)
from mnemolab.analysis.records import require

__all__ = [
    "CLASSES",
    "accuracy_by_versions",
    "contrast",
    "directed_forgetting",
    "fan",
    "index",
    "intrusions",
    "load_interference",
    "output_interference",
    "proactive",
    "release",
    "release_from_interference",
    "retroactive",
    "serial_position",
    "slope",
    "spacing",
    "stale_ages",
    "stale_new_ratio",
    "version_slope",
]

# In the order of `mnemolab.tasks.outcomes.OUTCOMES`.
CLASSES = ("correct", "stale", "other_key", "absent", "invalid")


def accuracy_by_versions(records: pd.DataFrame, by: Sequence[str] = ("arm",), seed: int = 0) -> pd.DataFrame:
    """Accuracy against `versions`, the bindings that the asked key had in all (1 = never overwritten).

    Columns `by`, versions, mean, low, high, runs, queries, chance.
    """
    frame = _with_versions(records)
    out = curve(frame, "versions", "correct", by, seed=seed)
    chance = curve(frame, "versions", "chance", by, draws=1)[[*by, "versions", "mean"]]
    return out.merge(chance.rename(columns={"mean": "chance"}), on=[*by, "versions"], how="left")


def intrusions(
    records: pd.DataFrame, axis: str | None = "versions", by: Sequence[str] = ("arm",), seed: int = 0
) -> pd.DataFrame:
    """Share of queries of each answer class, and its excess over guessing among presented values.

    Columns `by`, axis, outcome, mean, low, high, runs, queries, chance, excess, excess_low, excess_high.
    """
    require(records, ["outcome", "n_stale", "chance"], "intrusions")
    frame = _with_versions(records) if axis == "versions" else records
    frames = []
    for name in CLASSES:
        share = (frame["outcome"] == name).to_numpy(dtype=float)
        frames.append(_with_excess(frame, axis, share, _chance_of(frame, name), by, seed).assign(outcome=name))
    return pd.concat(frames, ignore_index=True)


def stale_ages(
    records: pd.DataFrame, by: Sequence[str] = ("arm",), oldest: int | None = None, seed: int = 0
) -> pd.DataFrame:
    """Stale answers by age: columns `by`, age, mean (share of queries), low, high, runs, queries, chance, excess*.

    Only queries whose key has a value of that age count, so each age has the same chance to intrude.
    """
    require(records, ["stale_age", "n_stale", "chance"], "intrusions by age")
    records = latest_only(records)
    deepest = int(records["n_stale"].max() if len(records) else 0) if oldest is None else oldest
    frames = []
    for age in range(1, deepest + 1):
        frame = records[records["n_stale"].to_numpy() >= age]
        if len(frame):
            share = (frame["stale_age"].to_numpy() == age).astype(float)
            chance = frame["chance"].to_numpy(dtype=float)
            frames.append(_with_excess(frame, None, share, chance, by, seed).drop(columns="cell").assign(age=age))
    if not frames:
        return pd.DataFrame(columns=[*by, "age", "mean", "low", "high", "runs", "queries", "chance", "excess"])
    return pd.concat(frames, ignore_index=True)


def stale_new_ratio(
    records: pd.DataFrame, axis: str | None = "versions", by: Sequence[str] = ("arm",), seed: int = 0
) -> pd.DataFrame:
    """Odds of the best stale value against the right one, exp(mean of stale minus target logit), over queries with a stale value.

    1: the two weigh the same (an additive memory); below 1: the new value wins. Columns `by`, axis, ratio, low, high, runs,
    queries. Raises BadRequest when no query has a stale value.
    """
    require(records, ["log_odds_stale", "version"], "stale/new ratio")
    frame = _with_versions(records)
    frame = frame[np.isfinite(frame["log_odds_stale"].to_numpy(dtype=float))]
    require(frame, [], "stale/new ratio (no key was overwritten)")
    out = curve(frame, axis, -frame["log_odds_stale"].to_numpy(dtype=float), by, seed=seed)
    out[["mean", "low", "high"]] = np.exp(out[["mean", "low", "high"]])
    return out.rename(columns={"mean": "ratio"})


def _with_versions(records: pd.DataFrame) -> pd.DataFrame:
    """Queries for the latest value, with `versions`."""
    require(records, ["version"], "versions")
    frame = latest_only(records)
    require(frame, [], "versions (no query asks for the latest value of its key)")
    return frame if "versions" in frame else frame.assign(versions=frame["version"] + 1)


def _chance_of(frame: pd.DataFrame, outcome: str) -> np.ndarray:
    """Share of class `outcome` when the answer is a guess among presented values."""
    each = frame["chance"].to_numpy(dtype=float)
    if outcome == "correct":
        return each
    stale = each * frame["n_stale"].to_numpy(dtype=float)
    if outcome == "stale":
        return stale
    return 1 - each - stale if outcome == "other_key" else np.zeros(len(frame))


def _with_excess(
    frame: pd.DataFrame, axis: str | None, share: np.ndarray, chance: np.ndarray, by: Sequence[str], seed: int
) -> pd.DataFrame:
    out = curve(frame, axis, share, by, seed=seed)
    excess = curve(frame, axis, share - chance, by, seed=seed)
    out["excess"], out["excess_low"], out["excess_high"] = excess["mean"], excess["low"], excess["high"]
    out["chance"] = out["mean"] - out["excess"]
    return out
