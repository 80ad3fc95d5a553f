"""Interference: what earlier and later bindings do to a memory, and whose value a wrong answer gives.

An intrusion is a wrong answer that was right for something else: a stale value of the same key (by age, 1 = the version
just before), a value of another key, a value never presented, or no value at all. Each is given as a share of queries and
as an excess over chance: guessing among presented values gives each of them one share of `chance`.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from mnemolab.analysis.cells import codes_of, curves, numbers
from mnemolab.analysis.indices import contrast, index, release, slope
from mnemolab.analysis.paradigms import (
    directed_forgetting,
    fan,
    latest_mask,
    load_interference,
    output_interference,
    proactive,
    release_from_interference,
    retroactive,
    serial_position,
    spacing,
    version_slope,
)
from mnemolab.analysis.records import complete, require
from mnemolab.errors import BadRequest

__all__ = [
    "CLASSES",
    "accuracy_by_versions",
    "contrast",
    "directed_forgetting",
    "fan",
    "index",
    "intrusions",
    "latest_mask",
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
    complete(records, ["correct", "chance"], "accuracy by versions")
    frame, latest = _with_versions(records, ["correct", "chance"], by)
    found = curves(frame, "versions", {"correct": "correct", "chance": "chance"}, by, seed=seed, where=latest)
    chance = found["chance"][[*by, "versions", "mean"]].rename(columns={"mean": "chance"})
    return found["correct"].merge(chance, on=[*by, "versions"], how="left")


def intrusions(
    records: pd.DataFrame, axis: str | None = "versions", by: Sequence[str] = ("arm",), seed: int = 0
) -> pd.DataFrame:
    """Share of queries of each answer class, and its excess over guessing among presented values.

    Columns `by`, axis, outcome, mean, low, high, runs, queries, chance, excess, excess_low, excess_high.
    """
    complete(records, ["outcome", "n_stale", "chance"], "intrusions")
    needed = ["outcome", "n_stale", "chance"]
    if axis == "versions":
        frame, where = _with_versions(records, needed, by)
    else:
        frame, where = records, np.ones(len(records), dtype=bool)
    outcome, labels = codes_of(frame["outcome"])
    values: dict[str, ArrayLike] = {}
    for name in CLASSES:
        share = outcome == labels.index(name) if name in labels else np.zeros(len(frame), dtype=bool)
        values |= {name: share, f"{name} excess": share - _chance_of(frame, name)}
    found = curves(frame, axis, values, by, seed=seed, where=where)
    return pd.concat([_beside(found[n], found[f"{n} excess"]).assign(outcome=n) for n in CLASSES], ignore_index=True)


def stale_ages(
    records: pd.DataFrame, by: Sequence[str] = ("arm",), oldest: int | None = None, seed: int = 0
) -> pd.DataFrame:
    """Stale answers by age: columns `by`, age, mean (share of queries), low, high, runs, queries, chance, excess*.

    Only queries whose key has a value of that age count, so each age has the same chance to intrude.
    """
    complete(records, ["stale_age", "n_stale", "chance"], "intrusions by age")
    latest, held = latest_mask(records), records["n_stale"].to_numpy()
    deepest = int(held[latest].max(initial=0)) if oldest is None else oldest
    age_given, chance = records["stale_age"].to_numpy(), numbers(records["chance"])
    frames = []
    for age in range(1, deepest + 1):
        where = latest & (held >= age)
        if where.any():
            share = age_given == age
            found = curves(records, None, {"share": share, "excess": share - chance}, by, seed=seed, where=where)
            frames.append(_beside(found["share"], found["excess"]).drop(columns="cell").assign(age=age))
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
    frame, latest = _with_versions(records, ["log_odds_stale"], by)
    odds = -numbers(frame["log_odds_stale"])
    known = latest & np.isfinite(odds)
    if not known.any():
        raise BadRequest("stale/new ratio: no key was overwritten; no query has a stale value")
    out = curves(frame, axis, {"odds": odds}, by, seed=seed, where=known)["odds"]
    out[["mean", "low", "high"]] = np.exp(out[["mean", "low", "high"]])
    return out.rename(columns={"mean": "ratio"})


def _with_versions(records: pd.DataFrame, needed: Sequence[str], by: Sequence[str]) -> tuple[pd.DataFrame, np.ndarray]:
    """The needed columns with `versions`, and which queries ask for the latest value."""
    require(records, ["version"], "versions")
    latest = latest_mask(records)
    if not latest.any():
        raise BadRequest("versions: no query asks for the latest value of its key")
    columns = list(dict.fromkeys([*by, "run_id", "example", *needed]))
    require(records, columns, "versions")
    versions = records["versions"] if "versions" in records else records["version"] + 1
    return records[columns].assign(versions=versions), latest


def _chance_of(frame: pd.DataFrame, outcome: str) -> np.ndarray:
    """Share of class `outcome` when the answer is a guess among presented values."""
    each = numbers(frame["chance"])
    if outcome == "correct":
        return each
    stale = each * frame["n_stale"].to_numpy()
    if outcome == "stale":
        return stale
    return 1 - each - stale if outcome == "other_key" else np.zeros(len(frame), dtype=each.dtype)


def _beside(share: pd.DataFrame, excess: pd.DataFrame) -> pd.DataFrame:
    out = share.copy()
    out["excess"], out["excess_low"], out["excess_high"] = excess["mean"], excess["low"], excess["high"]
    out["chance"] = out["mean"] - out["excess"]
    return out
