"""Facts that last among facts that change: what one decay for all channels leaves of them."""

import numpy as np
import pandas as pd

from mnemolab.analysis.claims.claim import Judgement, Sample
from mnemolab.analysis.claims.evidence import Evidence, Ran
from mnemolab.analysis.claims.judges.reading import kept_shares

__all__ = ["CLASSES", "matched_difference", "scalar_decay_uniform"]

CLASSES = ("persistent", "volatile")


def scalar_decay_uniform(evidence: Evidence) -> Judgement:
    """Share that decay alone leaves of persistent facts minus volatile ones, at equal lag, additive writes.

    Scalar decay: within the margin of 0. "Channel decay need not" is shown by a stage that keeps lasting facts longer; one
    that does not use its freedom would not refute it. Placebo: two halves of the persistent facts cannot be told apart by
    channel decay either, so "channel decay retains them differently" must not pass.
    """
    arms = ["additive scalar", "additive channel"]
    found = evidence.values("retention", lambda run: _kept_difference(run), arms=arms)
    halves = evidence.values("retention", lambda run: _kept_difference(run, halves=True), arms=arms)
    answers = evidence.values("retention", lambda run: _class_difference(run), arms=arms)
    return Judgement(
        samples=[
            Sample("scalar decay: persistent minus volatile", found.of("additive scalar"), "equivalent"),
            Sample("channel decay: persistent minus volatile", found.of("additive channel"), "possible"),
        ],
        placebo=[Sample("channel decay: two halves of one class differ", halves.of("additive channel"))],
        numbers=[
            *found.rows("decay leaves: persistent minus volatile at equal lag"),
            *answers.rows("accuracy: persistent minus volatile at equal lag"),
        ],
    )


def _kept_difference(run: Ran, halves: bool = False) -> float:
    kept = kept_shares(run, erase=False)
    frame = kept.merge(run.records[["example", "query", "condition"]], on=["example", "query"])
    if halves:
        frame = frame[frame["condition"] == "persistent"]
        frame = frame.assign(condition=np.where(frame["example"] % 2 == 0, *CLASSES))
    return matched_difference(frame, "kept")


def _class_difference(run: Ran) -> float:
    return matched_difference(run.records, "correct")


def matched_difference(frame: pd.DataFrame, value: str) -> float:
    """Persistent minus volatile mean of `value` at equal `lag_tokens`, lags weighted by the lesser count. NaN without overlap."""
    cells = frame.groupby(["lag_tokens", "condition"], observed=True)[value].agg(["mean", "size"]).unstack()
    if not all(("mean", name) in cells for name in CLASSES):
        return float("nan")
    both = cells.dropna()
    weight = np.minimum(both["size"][CLASSES[0]], both["size"][CLASSES[1]])
    difference = both["mean"][CLASSES[0]] - both["mean"][CLASSES[1]]
    return float(np.average(difference, weights=weight)) if len(both) else float("nan")
