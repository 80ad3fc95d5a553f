"""Old values of a rebound key: whether they blend in, and whether separate gates keep them out better."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from mnemolab.analysis.claims.claim import Judgement, Sample
from mnemolab.analysis.claims.evidence import Evidence
from mnemolab.analysis.paradigms import in_pairs
from mnemolab.analysis.records import require

__all__ = ["additive_blend", "excess_growth", "gdn2_decouples", "interference"]


def additive_blend(evidence: Evidence) -> Judgement:
    """Growth, from 2 versions to the most, of stale answers beyond their share of the presented values.

    Predicted: it grows with additive writes; with delta writes the excess at the most versions is not above the margin (it is
    negative where stale values are avoided).
    Placebo: on the controls, whose other bindings went to another key, that key's values must not grow into answers.
    """
    growth = evidence.values("overwrite", lambda run: excess_growth(run.records, "stale"))
    excess = evidence.values("overwrite", lambda run: excess_at(run.records, "stale"))
    control = evidence.values("overwrite", lambda run: excess_growth(run.records, "other_key", control=True))
    return Judgement(
        samples=[
            Sample("additive, no decay: stale excess grows with versions", growth.of("additive")),
            Sample("stale excess at the most versions, additive minus delta", excess.minus("additive", "delta")),
            Sample("delta, no decay: stale excess not above the margin", _negative(excess.of("delta")), "no worse"),
        ],
        placebo=[Sample("controls: excess of other keys' values grows", control.of("additive"))],
        twins=growth.twins("growth of stale excess"),
        numbers=[*growth.rows("growth of stale excess"), *excess.rows("stale excess at the most versions")],
    )


def _negative(values: Mapping[int, float]) -> dict[int, float]:
    return {seed: -value for seed, value in values.items()}


def excess_growth(records: pd.DataFrame, outcome: str, control: bool = False) -> float:
    """`excess_at` the most versions minus that at 2. On controls `versions` is their twin's."""
    return excess_at(records, outcome, control=control) - excess_at(records, outcome, 2, control)


def excess_at(records: pd.DataFrame, outcome: str, versions: int | None = None, control: bool = False) -> float:
    """Share of answers of class `outcome` beyond what guessing among presented values gives, at the most versions or at
    `versions`. NaN without such queries."""
    chosen = records[(records["condition"] == "control") == control]
    if "ask" in chosen:
        chosen = chosen[chosen["ask"] == 0]  # the latest value is asked
    number = chosen["paired_versions"] if control else chosen["version"] + 1
    part = chosen[number == (number.max() if versions is None else versions)]
    if part.empty:
        return float("nan")
    share = part["chance"] * part["n_stale"]
    if outcome == "other_key":
        share = 1 - part["chance"] - share
    return float(np.mean((part["outcome"] == outcome) - share))


def gdn2_decouples(evidence: Evidence) -> Judgement:
    """Proactive interference at the most versions with one beta (KDA) minus that with separate gates, parameters matched. Each
    control is compared with the query of the same key in its twin.

    The arms with one gate split only (erase by channel, or write by channel) say which half does it. Placebo: the same
    difference in accuracy on keys bound once, where nothing interferes.
    """
    lost = evidence.values("interference", lambda run: interference(run.records))
    right = evidence.values("interference", lambda run: float(run.records["correct"].mean()))
    fresh = evidence.values("interference", lambda run: _accuracy(run.records, run.records["condition"] == "fresh"))
    return Judgement(
        samples=[
            Sample(
                "interference, one beta minus separate gates",
                lost.minus("one beta", "decoupled"),
                ground=Sample("interference that one beta leaves", lost.of("one beta")),
            )
        ],
        placebo=[Sample("accuracy on fresh keys, separate gates minus one beta", fresh.minus("decoupled", "one beta"))],
        twins=lost.twins("interference"),
        numbers=[
            *lost.rows("interference (control minus rebound)"),
            *fresh.rows("accuracy on fresh keys"),
            *right.rows("accuracy"),
        ],
    )


def interference(records: pd.DataFrame) -> float:
    """What the older values cost: accuracy of the controls of the most versions minus that of the same keys in their twins, where
    they were rebound (`paradigms.in_pairs`).

    With `control: one` a sequence has a single control; keys of as many versions that have none do not count. Raises
    BadRequest where no control of the most versions has its twin in the records.
    """
    what = "interference at the most versions"
    require(records, ["paired_versions", "correct"], what)
    most = records[records["paired_versions"] == records["paired_versions"].max()]
    right = most[in_pairs(most, what)].groupby("condition", observed=True)["correct"].mean()
    return float(right["control"] - right["rebound"])


def _accuracy(records: pd.DataFrame, chosen: pd.Series) -> float:
    return float(records.loc[chosen, "correct"].mean()) if chosen.any() else float("nan")
