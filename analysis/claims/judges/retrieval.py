"""How far back, and how much: the copy length that a state holds, and what recurrent networks lose with distance."""

import numpy as np
import pandas as pd

from mnemolab.analysis.claims.claim import Judgement, Sample
from mnemolab.analysis.claims.evidence import Evidence, Ran, difference

__all__ = ["fixed_state_bottleneck", "half_length", "longest", "near_and_far", "rnn_distance"]

# a fixed state's copy length is to grow at least as the state to this power
POWER = 0.5
# recurrent network -> cell of the experiment, with as many pairs as it learns
NETWORKS = {"rnn": "one", "lstm": "two", "gru": "main"}
# accuracy at the shortest distance from which a run counts as having learned the task
LEARNED = 0.8


def fixed_state_bottleneck(evidence: Evidence) -> Judgement:
    """String length at which half of the copy is right, for two sizes of state, and softmax and hybrid at the longest.

    Predicted: ln length grows with ln state with a power of at least POWER; softmax and 3:1 stay above one half at the
    longest strings, where the small fixed state does not. Placebo: the small state against its twin, as if it were larger.
    """
    length = evidence.values("copy", lambda run: float(np.log(half_length(run.records))))
    state = evidence.values("copy", lambda run: float(np.log(_memory(run))))
    end = evidence.values("copy", lambda run: longest(run.records) - 0.5)
    beyond = evidence.values("copy", lambda run: _log_longest(run.records) - float(np.log(half_length(run.records))))
    samples = []
    for stage in ("delta", "delta channel"):
        small = f"{stage} small"
        longer, larger, room = length.minus(stage, small), state.minus(stage, small), beyond.of(small)
        power = {seed: longer[seed] - POWER * larger[seed] for seed in longer}
        left = {seed: room[seed] - POWER * larger[seed] for seed in longer}
        ground = Sample(
            f"{small}: ln of the longest strings over its length, beyond {POWER} x ln state", left, margin=0.0
        )
        samples.append(
            Sample(f"{stage}: ln length gained, beyond {POWER} x ln state", power, margin=0.0, ground=ground)
        )
    samples += [
        Sample(f"{arm}: accuracy at the longest strings, minus 1/2", end.of(arm)) for arm in ("softmax", "hybrid")
    ]
    grown = state.minus("delta", "delta small")
    fake = {
        seed: d - POWER * grown[seed]
        for seed, d in difference(length.of("delta small"), dict(length.doubles.get("delta small", {}))).items()
        if seed in grown
    }
    return Judgement(
        samples=samples,
        placebo=[Sample("the same state twice, as if one were larger", fake, margin=0.0)],
        twins=length.twins("ln length", 0.1),
        numbers=[*length.rows("ln copy length at one half"), *end.rows("accuracy at the longest, minus 1/2")],
    )


def _memory(run: Ran) -> float:
    """Numbers in the recurrent state itself: heads x key x value channels, over layers."""
    model = run.plan.config.model
    return float(model["depth"] * model["heads"] * model["head_dim"] ** 2)


def _log_longest(records: pd.DataFrame) -> float:
    return float(np.log(records["string_length"].max()))


def half_length(records: pd.DataFrame) -> float:
    """String length at which accuracy falls to one half, linear between lengths; the longest when it never does, the
    shortest when it starts below."""
    mean = records.groupby("string_length")["correct"].mean()
    x, y = mean.index.to_numpy(float), mean.to_numpy(float)
    below = np.flatnonzero(y <= 0.5)
    if not len(below):
        return float(x[-1])
    at = int(below[0])
    if at == 0:
        return float(x[0])
    share = (y[at - 1] - 0.5) / (y[at - 1] - y[at])
    return float(x[at - 1] + share * (x[at] - x[at - 1]))


def longest(records: pd.DataFrame, share: float = 0.2) -> float:
    """Accuracy on the longest `share` of string lengths."""
    most, least = records["string_length"].max(), records["string_length"].min()
    return float(records.loc[records["string_length"] >= most - share * (most - least), "correct"].mean())


def rnn_distance(evidence: Evidence) -> Judgement:
    """Accuracy at the nearest quarter of lags minus the farthest, for runs that learned the nearest.

    Each of RNN, LSTM and GRU must fall by the margin, on as many pairs as it learns. Placebo: softmax attention, which has no
    distance to lose over.
    """
    found = {cell: evidence.values("rnn", lambda run: _fall(run.records), cell) for cell in NETWORKS.values()}
    near = {cell: evidence.values("rnn", lambda run: near_and_far(run.records)[0], cell) for cell in NETWORKS.values()}
    return Judgement(
        samples=[Sample(f"{arm}: near minus far", found[cell].of(arm)) for arm, cell in NETWORKS.items()],
        placebo=[Sample("softmax: near minus far", found["main"].of("softmax"))],
        twins=[twin for cell, v in found.items() for twin in v.twins(f"near minus far, {cell}")],
        numbers=[
            row
            for what, by_cell in (("near minus far", found), ("accuracy, near", near))
            for cell, v in by_cell.items()
            for row in v.rows(f"{what}, {cell}")
        ],
        note=f"Runs below {LEARNED} at the nearest lags have not learned to bind and do not count.",
    )


def near_and_far(records: pd.DataFrame) -> tuple[float, float]:
    """Accuracy of the nearest and of the farthest quarter of lags."""
    lag = records["lag_writes"] if records["lag_writes"].nunique() > 3 else records["lag_tokens"]
    rank = lag.rank(method="first", pct=True)
    return tuple(float(records.loc[part, "correct"].mean()) for part in (rank <= 0.25, rank > 0.75))  # type: ignore[return-value]


def _fall(records: pd.DataFrame) -> float:
    near, far = near_and_far(records)
    return near - far if near >= LEARNED else float("nan")
