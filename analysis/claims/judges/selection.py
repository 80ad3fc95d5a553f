"""Facts that last among facts that change: whether one decay a channel answers both better than one decay for all."""

import pandas as pd

from mnemolab.analysis.claims.claim import Judgement, Sample
from mnemolab.analysis.claims.evidence import Evidence, Ran, Values, difference
from mnemolab.analysis.claims.judges.retention import CLASSES

__all__ = ["EXPERIMENT", "HALF_LIVES", "channel_selects", "class_accuracy", "late_gain"]

EXPERIMENT = "selection"
HALF_LIVES = ("short", "mid", "long")
# the first look at the validation stream that counts as late, as a share of the steps
_LATE = 0.8


def channel_selects(evidence: Evidence) -> Judgement:
    """KDA's frontier of persistent and volatile facts against Gated DeltaNet's, at every initial half-life.

    Dominance: the mean of the two accuracies is higher by the margin, and neither is lower by more than it. Placebo: KDA
    with its decay averaged over channels, which is a scalar decay, judged as KDA is. Whether the runs have converged is
    reported: what the last fifth of the steps added to the answers of the validation stream.
    """
    classes = {c: evidence.values(EXPERIMENT, lambda run, c=c: class_accuracy(run.records, c)) for c in CLASSES}
    averaged = {
        c: evidence.values(
            EXPERIMENT, lambda run, c=c: _averaged(run, c), arms=[f"channel delta {h}" for h in HALF_LIVES]
        )
        for c in CLASSES
    }
    late = evidence.values(EXPERIMENT, late_gain)
    samples, placebo = [], []
    for h in HALF_LIVES:
        pair = f"channel delta {h}", f"scalar delta {h}"
        samples += _dominance(h, {c: v.minus(*pair) for c, v in classes.items()})
        placebo += _dominance(h, {c: difference(averaged[c].of(pair[0]), classes[c].of(pair[1])) for c in CLASSES})
    twins = [
        Sample(f"mean of both classes: {arm} against itself", _middle({c: _double(v, arm) for c, v in classes.items()}))
        for arm in classes[CLASSES[0]].doubles
    ]
    return Judgement(
        samples=samples,
        placebo=placebo,
        twins=twins,
        numbers=[
            *(row for c, v in classes.items() for row in v.rows(f"accuracy, {c}")),
            *late.rows("validation accuracy gained in the last fifth of the steps"),
        ],
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
    return difference(values.of(arm), dict(values.doubles[arm]))


def class_accuracy(records: pd.DataFrame, name: str) -> float:
    """Accuracy of the facts of one class."""
    return float(records.loc[records["condition"] == name, "correct"].mean())


def late_gain(run: Ran) -> float:
    """Validation accuracy at the end minus that at the first look after four fifths of the steps; NaN without two such looks."""
    metrics = run.metrics
    if metrics.empty:
        return float("nan")
    looks = metrics[(metrics["split"] == "validation") & (metrics["step"] >= _LATE * run.plan.config.budget.steps)]
    seen = looks.sort_values("step")["accuracy"].to_numpy(float)
    return float(seen[-1] - seen[0]) if len(seen) > 1 else float("nan")


def _averaged(run: Ran, name: str) -> float:
    """Accuracy of a class with the decay averaged over channels, on the first test sequences."""
    from mnemolab.analysis.interventions import effects

    rows, _ = effects(run.model, run.task, ["mean-over-channels"], examples=len(run.batch), seed=run.seed)
    code = list(run.task.conditions).index(name)
    condition = run.batch.queries["condition"].numpy()[rows["example"], rows["query"]]
    return float(rows.loc[condition == code, "correct"].mean())
