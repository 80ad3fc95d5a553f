"""How many bindings a state holds: crosstalk, collisions of similar keys, feature maps, and exact retrieval."""

import numpy as np
import pandas as pd
import torch

from mnemolab.analysis.claims.claim import Judgement, Sample
from mnemolab.analysis.claims.evidence import Evidence, Ran, Values, difference
from mnemolab.analysis.claims.judges.reading import key_offset, value_position

__all__ = ["additive_interference", "collision", "feature_map_fidelity", "key_collision", "softmax_exact", "worst_lag"]


def additive_interference(evidence: Evidence) -> Judgement:
    """Nats of margin over other presented values that an additive memory loses per e-fold of load (light to heavy cell).

    Placebo: the same slope over the order of the queries, which cannot matter when each is read from one saved state.
    """
    light, heavy = (evidence.values("load", _margin, cell, ["additive"]) for cell in ("light", "heavy"))
    loads = [_mean(evidence.runs("load", cell, "additive")[0].records["load"]) for cell in ("light", "heavy")]
    fold = float(np.log(loads[1] / loads[0]))
    slope = _scaled(difference(light.of("additive"), heavy.of("additive")), 1 / fold)
    order = evidence.values("load", _order_slope, "heavy", ["additive"])
    twins = [
        Sample(s.name, _scaled(s.values, 1 / fold)) for v, n in ((light, "light"), (heavy, "heavy")) for s in v.twins(n)
    ]
    return Judgement(
        samples=[Sample("additive: margin lost per e-fold of load", slope)],
        placebo=[Sample("additive: margin lost per e-fold of query order", order.of("additive"))],
        twins=twins,
        numbers=[*light.rows(f"margin at load {loads[0]:.0f}"), *heavy.rows(f"margin at load {loads[1]:.0f}")],
    )


def key_collision(evidence: Evidence) -> Judgement:
    """Rank of the wrongly answered key's similarity to the asked key, among all other keys of the sequence, minus one half.

    Similarity is the squared cosine of the keys as the memory stored them. Placebo: similarity to the key that another
    sequence asked.
    """
    arms = ["additive", "delta"]
    found = evidence.values("load", lambda run: collision(run), "heavy", arms)
    placebo = evidence.values("load", lambda run: collision(run, shuffled=True), "heavy", arms)
    return Judgement(
        samples=[Sample(f"{arm}: similarity rank of wrongly answered keys", found.of(arm)) for arm in arms],
        placebo=[Sample(f"{arm}: rank by another sequence's key", placebo.of(arm)) for arm in arms],
        twins=found.twins("similarity rank"),
        numbers=[*found.rows("rank minus 1/2"), *placebo.rows("rank minus 1/2, shuffled")],
    )


def collision(run: Ran, shuffled: bool = False) -> float:
    """Mean rank (0 to 1) minus 1/2; NaN when no key of another pair was answered."""
    trace, batch = run.traces[0], run.batch
    offset = key_offset(trace, batch, run.task)
    records = run.records
    wrong = records[(records["outcome"] == "other_key") & (records["example"] < len(batch))]
    if wrong.empty:
        return float("nan")
    example = torch.as_tensor(wrong["example"].to_numpy().copy())
    inputs = batch.inputs[example]
    values = run.task.vocabulary.values
    written = (inputs >= values.start) & (inputs < values.stop)
    asked = value_position(inputs, torch.as_tensor(wrong["target"].to_numpy().copy()))
    answered = value_position(inputs, torch.as_tensor(wrong["prediction"].to_numpy().copy()))
    keys = torch.nn.functional.normalize(trace.k, dim=-1)[example]  # (N,T,H,K)
    keys = torch.cat([keys[:, offset:], keys[:, -1:].expand(-1, offset, -1, -1)], 1)
    probe = keys[torch.arange(len(keys)), asked]
    if shuffled:
        probe = probe.roll(1, 0)
    similar = torch.einsum("nhk,nthk->nth", probe, keys).square().mean(-1)
    other = written & (torch.arange(inputs.shape[1]) != asked[:, None])
    mine = similar.gather(1, answered[:, None])
    below = ((similar < mine) & other).sum(1) + 0.5 * (((similar == mine) & other).sum(1) - 1)
    return float((below / (other.sum(1) - 1).clamp(min=1)).mean()) - 0.5


def feature_map_fidelity(evidence: Evidence) -> Judgement:
    """Accuracy with SiLU + L2 keys minus elu+1 with its denominator, same state, heavy load. Placebo: the light load."""
    heavy, light = (evidence.values("features", _accuracy, cell) for cell in ("heavy", "light"))
    return Judgement(
        samples=[Sample("heavy load: SiLU + L2 minus elu+1", heavy.minus("additive", "elu"))],
        placebo=[Sample("light load: SiLU + L2 minus elu+1", light.minus("additive", "elu"))],
        twins=heavy.twins("accuracy"),
        numbers=[*heavy.rows("accuracy, heavy"), *light.rows("accuracy, light")],
    )


def softmax_exact(evidence: Evidence) -> Judgement:
    """Lowest accuracy over quarters of the lag, minus 1, at either load: no worse than minus the margin.

    Placebo: additive fixed-state memory at the heavy load, by the same rule.
    """
    found: dict[str, Values] = {
        cell: evidence.values("load", lambda run: worst_lag(run.records) - 1, cell, ["softmax", "additive"])
        for cell in ("light", "heavy")
    }
    return Judgement(
        samples=[
            Sample(f"softmax, {cell} load: lowest accuracy over lags, minus 1", v.of("softmax"), "no worse")
            for cell, v in found.items()
        ],
        placebo=[Sample("additive memory, heavy load", found["heavy"].of("additive"), "no worse")],
        numbers=[row for cell, v in found.items() for row in v.rows(f"lowest accuracy minus 1, {cell} load")],
    )


def worst_lag(records: pd.DataFrame, quarters: int = 4) -> float:
    """Accuracy of the worst of `quarters` equal shares of the queries by lag in writes."""
    place = records["lag_writes"].rank(method="first") - 1
    part = (place * quarters // len(records)).astype(int)
    return float(records.groupby(part)["correct"].mean().min())


def _margin(run: Ran) -> float:
    return _mean(run.records["log_odds_other"])


def _order_slope(run: Ran) -> float:
    """Loss of margin per e-fold of the query's place."""
    frame = run.records.dropna(subset=["log_odds_other"])
    x = np.log(frame["query_index"].to_numpy(float) + 1)
    return -float(np.polyfit(x, frame["log_odds_other"].to_numpy(float), 1)[0]) if np.ptp(x) > 0 else float("nan")


def _accuracy(run: Ran) -> float:
    return _mean(run.records["correct"])


def _mean(column: pd.Series) -> float:
    return float(column.mean())


def _scaled(values, factor: float) -> dict[int, float]:
    return {seed: value * factor for seed, value in values.items()}
