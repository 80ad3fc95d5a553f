"""Facts that last among facts that change: what one decay for all channels can do, and what one decay a channel can."""

import numpy as np
import pandas as pd

from mnemolab.analysis.claims.claim import Judgement, Sample
from mnemolab.analysis.claims.evidence import Evidence, Ran, Values
from mnemolab.analysis.claims.judges.reading import kept_shares

__all__ = ["HALF_LIVES", "channel_selects", "class_accuracy", "matched_difference", "scalar_decay_uniform"]

CLASSES = ("persistent", "volatile")
HALF_LIVES = ("short", "mid", "long")


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


def channel_selects(evidence: Evidence) -> Judgement:
    """KDA's frontier of persistent and volatile facts against Gated DeltaNet's, at every initial half-life.

    Dominance: the mean of the two accuracies is higher by the margin, and neither is lower by more than it. Placebo: KDA
    with its decay averaged over channels, which is a scalar decay, judged as KDA is.
    """
    classes = {c: evidence.values("retention", lambda run, c=c: class_accuracy(run.records, c)) for c in CLASSES}
    averaged = {
        c: evidence.values(
            "retention", lambda run, c=c: _averaged(run, c), arms=[f"channel delta {h}" for h in HALF_LIVES]
        )
        for c in CLASSES
    }
    samples, placebo = [], []
    for h in HALF_LIVES:
        pair = f"channel delta {h}", f"scalar delta {h}"
        samples += _dominance(h, {c: v.minus(*pair) for c, v in classes.items()})
        placebo += _dominance(h, {c: _minus(averaged[c].of(pair[0]), classes[c].of(pair[1])) for c in CLASSES})
    twins = [
        Sample(f"mean of both classes: {arm} against itself", _middle({c: _double(v, arm) for c, v in classes.items()}))
        for arm in classes[CLASSES[0]].doubles
    ]
    return Judgement(
        samples=samples,
        placebo=placebo,
        twins=twins,
        numbers=[row for c, v in classes.items() for row in v.rows(f"accuracy, {c}")],
    )


def _dominance(h: str, differences: dict[str, dict[int, float]]) -> list[Sample]:
    return [
        Sample(f"half-life {h}: mean of both classes", _middle(differences)),
        *(Sample(f"half-life {h}: {c} not lower", d, "no worse") for c, d in differences.items()),
    ]


def _middle(differences: dict[str, dict[int, float]]) -> dict[int, float]:
    a, b = differences.values()
    return {seed: (a[seed] + b[seed]) / 2 for seed in a if seed in b}


def _double(values: Values, arm: str) -> dict[int, float]:
    return _minus(values.of(arm), dict(values.doubles[arm]))


def _minus(a: dict[int, float], b: dict[int, float]) -> dict[int, float]:
    return {seed: a[seed] - b[seed] for seed in a if seed in b}


def class_accuracy(records: pd.DataFrame, name: str) -> float:
    """Accuracy of the facts of one class."""
    return float(records.loc[records["condition"] == name, "correct"].mean())


def _averaged(run: Ran, name: str) -> float:
    """Accuracy of a class with the decay averaged over channels, on the first test sequences."""
    from mnemolab.analysis.interventions import effects

    rows, _ = effects(run.model, run.task, ["mean-over-channels"], examples=len(run.batch), seed=run.seed)
    code = list(run.task.conditions).index(name)
    condition = run.batch.queries["condition"].numpy()[rows["example"], rows["query"]]
    return float(rows.loc[condition == code, "correct"].mean())
