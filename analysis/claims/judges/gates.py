"""Gates and erasures of trained models: what is left of a write, by the recurrence itself."""

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mnemolab.analysis.claims.claim import Judgement, Sample
from mnemolab.analysis.claims.evidence import Evidence, Ran, difference
from mnemolab.analysis.claims.judges.logistic import gain
from mnemolab.analysis.claims.judges.reading import kept_shares, only, rebound_pairs
from mnemolab.analysis.decay import Trace, channel_table, dispersion, trace
from mnemolab.analysis.interventions import effects
from mnemolab.kernels import memory_scan

__all__ = ["channels_multi_timescale", "decay_predicts_retention", "delta_overwrites", "erasure_slope", "spread_growth"]

BETAS = (0.0, 0.25, 0.5, 0.75, 1.0)
# a stale value of which less is left just before the new write is not compared
_LEAST_LEFT = 0.1


def delta_overwrites(evidence: Evidence) -> Judgement:
    """Slope of what the new write leaves of the old value, read from the state with the old key, on 1 - beta cos^2(k,k').

    beta is clamped in trained DeltaNets: to 0, 1/4 .. 1 for the new write, and to 0 for the writes of other keys, whose
    interference is not the claim; the slope with theirs clamped alike is reported. Placebo: cos^2 with the new key of
    another sequence.
    """
    between = evidence.values("overwrite", lambda run: _slope(run, between=True) - 1, arms=["delta"])
    slope = evidence.values("overwrite", lambda run: _slope(run) - 1, arms=["delta"])
    placebo = evidence.values("overwrite", lambda run: _slope(run, shuffled=True) - 1, arms=["delta"])
    return Judgement(
        samples=[Sample("DeltaNet: slope minus 1", slope.of("delta"), "equivalent")],
        placebo=[Sample("slope minus 1 with another sequence's key", placebo.of("delta"), "equivalent")],
        numbers=[
            *slope.rows("slope minus 1"),
            *between.rows("slope minus 1, other keys' writes erase too"),
            *placebo.rows("slope minus 1, shuffled"),
        ],
    )


def _slope(run: Ran, shuffled: bool = False, between: bool = False) -> float:
    row, old, new = rebound_pairs(run.batch, run.task)
    return erasure_slope(run.traces[0], row, old, new, shuffled, between)


@torch.no_grad()
def erasure_slope(
    found: Trace, row: Tensor, old: Tensor, new: Tensor, shuffled: bool = False, between: bool = False
) -> float:
    """Least-squares slope over pairs, heads and betas. row, old, new (N,): sequence and positions of the two writes.

    For each pair the old value alone is in the state (all other values are zero), written by the kernel and read with the
    old key before and after the new write; the ratio of the two reads is regressed on 1 - beta cos^2. With `between` every
    other write erases with the same beta. NaN without pairs.
    """
    if not len(row):
        return float("nan")
    k = found.k[row]  # (N,T,H,K)
    lines = torch.arange(len(row))
    v = torch.zeros_like(k[..., :1])
    v[lines, old] = 1.0
    own, later = k[lines, old], k[lines, new]
    probe = later.roll(1, 0) if shuffled else later
    cos2 = torch.nn.functional.cosine_similarity(own, probe, dim=-1).square()  # (N,H)
    measured, predicted = [], []
    for beta in BETAS:
        gate = torch.full_like(k[..., 0], beta if between else 0.0)
        gate[lines, new] = beta
        gate[lines, old] = 1.0  # the old value goes in whole
        q = own[:, None].expand_as(k).contiguous()
        reads, _ = memory_scan(q, k, v, erase=gate, write=gate, scale=1.0)
        before, after = reads[lines, new - 1, :, 0], reads[lines, new, :, 0]
        size = own.square().sum(-1).clamp(min=1e-12)
        good = (before / size).abs() > _LEAST_LEFT
        measured.append((after / before)[good])
        predicted.append((1 - beta * cos2)[good])
    x, y = torch.cat(predicted).double().numpy(), torch.cat(measured).double().numpy()
    return float(np.polyfit(x, y, 1)[0]) if len(x) > 2 and np.ptp(x) > 1e-9 else float("nan")


def decay_predicts_retention(evidence: Evidence) -> Judgement:
    """Nats a query by which the product of decays and erasures between write and read improves held-out predictions of
    correctness that know the lag and the class of the fact. Placebo: the products of other queries with the same lag and of
    the same class."""
    arms = ["scalar delta mid", "channel delta mid"]
    found = evidence.values("retention", _gain, arms=arms)
    placebo = evidence.values("retention", lambda run: _gain(run, shuffled=True), arms=arms)
    return Judgement(
        samples=[Sample(f"{arm}: gain beyond lag and class", found.of(arm)) for arm in arms],
        placebo=[Sample(f"{arm}: gain, products shuffled within lag and class", placebo.of(arm)) for arm in arms],
        twins=found.twins("gain beyond lag and class"),
        numbers=[*found.rows("gain (nats a query)"), *placebo.rows("gain, shuffled")],
    )


def _gain(run: Ran, shuffled: bool = False) -> float:
    kept = kept_shares(run)
    known = ["example", "query", "correct", "condition"]
    joined = kept.merge(run.records[known], on=["example", "query"])
    x = joined["kept"].clip(lower=1e-4).map(np.log)
    if shuffled:
        rng = np.random.default_rng(run.plan.seed)
        x = x.groupby([joined["lag_tokens"], joined["condition"]]).transform(lambda g: rng.permutation(g.to_numpy()))
    return gain(
        joined["correct"].to_numpy(float),
        joined["lag_tokens"].to_numpy(float),
        x.to_numpy(float),
        joined["example"].to_numpy(),
        known=pd.factorize(joined["condition"], sort=True)[0].astype(float),
    )


def channels_multi_timescale(evidence: Evidence) -> Judgement:
    """What training on two timescales does to KDA's channels beyond a task of one: growth of the spread of their decay
    rates, and accuracy lost when the decay is averaged over channels. Placebo: the task of one timescale itself."""
    arm = "channel delta mid"
    growth, damage = (
        {cell: evidence.values("retention", measure, cell, [arm]) for cell in ("main", "one timescale")}
        for measure in (spread_growth, _damage)
    )
    one = lambda found: found["one timescale"].of(arm)
    beyond = lambda found: difference(found["main"].of(arm), one(found))
    return Judgement(
        samples=[
            Sample("spread of decay rates, growth beyond the placebo task", beyond(growth), margin=0.1),
            Sample("damage of averaging channels beyond the placebo task", beyond(damage)),
        ],
        placebo=[
            Sample("one timescale: growth of the spread", one(growth), margin=0.1),
            Sample("one timescale: damage of averaging", one(damage)),
        ],
        twins=[*growth["main"].twins("growth of the spread", 0.1), *damage["main"].twins("damage of averaging")],
        numbers=[
            row
            for cell in growth
            for row in (
                *growth[cell].rows(f"growth of ln-rate spread, {cell}"),
                *damage[cell].rows(f"damage, {cell}"),
            )
        ],
    )


def spread_growth(run: Ran) -> float:
    """Standard deviation of ln decay rate over channels, trained minus initial, mean over heads."""
    before = [t for t in trace(run.initial, run.batch.inputs[:32]) if t.kind == "memory"]
    after = [only(t, slice(32)) for t in run.traces]
    return float(_spread(after) - _spread(before))


def _spread(traces: list[Trace]) -> float:
    return float(dispersion(channel_table(traces))["log_sd"].mean())


def _damage(run: Ran) -> float:
    rows, _ = effects(run.model, run.task, ["mean-over-channels"], examples=len(run.batch), seed=run.seed)
    return -float(pd.to_numeric(rows["change"]).mean()) if len(rows) else float("nan")
