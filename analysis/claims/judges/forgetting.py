"""Told to forget, and the worked example: records that change."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from mnemolab.analysis.claims.claim import Judgement, Sample
from mnemolab.analysis.claims.evidence import Evidence, NotTrained, Ran, Values
from mnemolab.analysis.claims.judges.record import emptied

__all__ = ["ABILITIES", "benefit", "cost", "directed_forgetting", "record_update"]

# condition of record_update -> (what it shows, accuracy from which a stage counts as able). The bars lie above what lesser
# memories give: one that blends old and new answers half of the updated facts; one that holds the current value alone
# guesses a comparison with a mean of max(c, 1 - c) over its rank c, 3/4 (.77 of 12 values).
ABILITIES = {
    "updated": ("answers the new value", 0.8),
    "untouched": ("keeps what did not change", 0.8),
    "compare": ("compares old with new", 0.8),
}


# accuracy from which a run's errors are its memory's and not those of a task it never learned
LEARNED = 0.8


def directed_forgetting(evidence: Evidence) -> Judgement:
    """Cost and benefit of a forget token with gates, and the benefit against the delta rule without.

    Cost: the value of a first-block key is answered less often. Benefit: recall of the later block rises. Placebo: the
    benefit between two halves of the sequences with a keep token.
    """
    lost = evidence.values("forgetting", lambda run: cost(run.records))
    room = evidence.values("forgetting", lambda run: _room(run.records), arms=["delta scalar"])
    won = evidence.values("forgetting", lambda run: benefit(run.records))
    halves = evidence.values("forgetting", lambda run: _halves(run.records))
    ground = Sample("Gated DeltaNet: errors on the later block after a keep token", room.of("delta scalar"))
    return Judgement(
        samples=[
            Sample("Gated DeltaNet: cost to the forgotten block", lost.of("delta scalar"), margin=0.1),
            Sample("Gated DeltaNet: benefit to the later block", won.of("delta scalar"), ground=ground),
            Sample("benefit, Gated DeltaNet minus DeltaNet", won.minus("delta scalar", "delta"), ground=ground),
        ],
        placebo=[Sample("benefit between two halves of the kept sequences", halves.of("delta scalar"))],
        twins=won.twins("benefit"),
        numbers=[*lost.rows("cost to the forgotten block"), *won.rows("benefit to the later block")],
    )


def cost(records: pd.DataFrame) -> float:
    """Share of first-block queries answered with the key's value, keep minus forget (there the value is stale)."""
    first = records[records["block"] == 0]
    said = np.where(first["condition"] == "keep", first["outcome"] == "correct", first["outcome"] == "stale")
    kept = first["condition"] == "keep"
    return float(said[kept].mean() - said[~kept].mean()) if kept.any() and (~kept).any() else float("nan")


def benefit(records: pd.DataFrame) -> float:
    """Accuracy of the later block, forget minus keep."""
    later = records[records["block"] == 1]
    told, kept = (later.loc[later["condition"] == c, "correct"].mean() for c in ("forget", "keep"))
    return float(told - kept)


def _room(records: pd.DataFrame) -> float:
    """Errors on the later block after a keep token: what a benefit could take away. NaN where the block was not learned."""
    kept = records[(records["block"] == 1) & (records["condition"] == "keep")]["correct"].mean()
    return float(1 - kept) if kept >= LEARNED else float("nan")


def _halves(records: pd.DataFrame) -> float:
    later = records[(records["block"] == 1) & (records["condition"] == "keep")]
    # pairs of examples share their sequence, so halves go by pairs
    odd = (later["example"] // 2) % 2 == 1
    return float(later.loc[odd, "correct"].mean() - later.loc[~odd, "correct"].mean())


def record_update(evidence: Evidence) -> Judgement:
    """After the upgrade: the new plan, the number that did not change, old against new.

    KDA must reach the bar in each ability; what every stage reaches is reported, that of additive linear attention too. Placebo:
    the same KDA, by the same bars, its memory wiped just before the last update of what is asked (`record.last_updates`), on
    the first of the records' test sequences (`run.batch`). Then the new value alone can be known, so that it could hardly
    pass: what did not change is lost with the state. It shows that answers pass through the state, and no more; what tells a
    comparison from a guess is its bar.
    """
    able = {
        name: evidence.values("record", lambda run, name=name, bar=bar: _accuracy(run.records, name) - bar)
        for name, (_, bar) in ABILITIES.items()
    }
    answered: dict[str, pd.DataFrame] = {}

    def wiped(run: Ran, name: str) -> float:
        if run.plan.twin:  # has no say in a placebo, and its weights are not asked for
            return float("nan")
        if run.run_id not in answered:
            answered[run.run_id] = emptied(run)
        return _accuracy(answered[run.run_id], name)

    left = {
        name: evidence.values("record", lambda run, name=name, bar=bar: wiped(run, name) - bar, arms=["delta channel"])
        for name, (_, bar) in ABILITIES.items()
    }
    previous = evidence.values("record", lambda run: _accuracy(run.records, "previous"))
    return Judgement(
        samples=[
            Sample(f"KDA {ABILITIES[n][0]}: accuracy beyond {ABILITIES[n][1]}", v.of("delta channel"))
            for n, v in able.items()
        ],
        twins=[twin for n, v in able.items() for twin in v.twins(ABILITIES[n][0])],
        placebo=[
            Sample(f"KDA, wiped before the update, {ABILITIES[n][0]}", v.of("delta channel")) for n, v in left.items()
        ],
        numbers=[
            *(
                row
                for n, (what, bar) in ABILITIES.items()
                for row in _of_all(evidence, able[n], lambda run, n=n, bar=bar: _accuracy(run.records, n) - bar).rows(
                    f"{what}: accuracy minus {bar}"
                )
            ),
            *_of_all(evidence, previous, lambda run: _accuracy(run.records, "previous")).rows(
                "answers the previous value: accuracy"
            ),
            *(
                row
                for n, v in left.items()
                for row in v.rows(f"{ABILITIES[n][0]}, wiped before the update: accuracy minus {ABILITIES[n][1]}")
            ),
        ],
        note="Which stages can: those whose interval lies above 0 in all three rows; which cannot: below 0 in one of them.",
    )


def _of_all(evidence: Evidence, own: Values, measure: Callable[[Ran], float]) -> Values:
    """`own`, the values of `record`, with those of the stages beside it, where they are trained."""
    try:
        others = evidence.values("record_stages", measure)
    except NotTrained:
        return own
    return Values({**own.arms, **others.arms})


def _accuracy(records: pd.DataFrame, condition: str) -> float:
    return float(records.loc[records["condition"] == condition, "correct"].mean())
