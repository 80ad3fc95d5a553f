"""Judging functions on hand-made records and gates with known answers: the right verdict, and the wrong one when planted."""

import numpy as np
import pandas as pd
import pytest
import torch

from mnemolab.analysis.claims.judges import (
    gates,
    load,
    overwrite,
    retention,
    selection,
    topic,
)
from mnemolab.analysis.claims.judges.logistic import gain
from mnemolab.analysis.decay import Trace
from mnemolab.tasks import make_task

from .conftest import answers, evidence, ran, verdict


def versions(rng, stale: float, rows: int = 4800) -> pd.DataFrame:
    """key_overwrite: four keys of 1 to 4 versions a sequence, each second sequence the control of the one before; a share `stale`
    of what could be stale is."""
    control = np.arange(rows) // 4 % 2 == 1
    paired = np.repeat(rng.integers(1, 5, (rows // 8, 1, 4)), 2, axis=1).ravel()
    version = np.where(control, 0, paired - 1)
    is_stale = rng.random(rows) < stale * version / (version + 1)
    frame = answers(rng, 0.9, rows)
    outcome = np.where(is_stale, "stale", np.where(rng.random(rows) < 0.95, "correct", "other_key"))
    condition = np.where(control & (paired > 1), "control", np.where(paired > 1, "rebound", "fresh"))
    return frame.assign(
        paired_versions=paired, version=version, n_stale=version, outcome=outcome, correct=outcome == "correct",
        condition=condition, ask=0, chance=0.02, key=frame["query"],
    )  # fmt: skip


def overwriting(stale, experiment="overwrite"):
    arms = [(experiment, "main", arm) for arm in stale]
    return evidence(lambda cell, arm, rng, seed: {"records": versions(rng, stale[arm])}, arms, twins=("additive",))


def test_additive_blend():
    found = verdict("additive-blend", overwrite.additive_blend(overwriting({"additive": 0.9, "delta": 0.1})))
    assert (
        found.verdict == "supported"
        and found.placebo_passed is False
        and not any(c.outcome == "supported" for c in found.twins)
    )
    same = verdict("additive-blend", overwrite.additive_blend(overwriting({"additive": 0.9, "delta": 0.9})))
    assert same.verdict == "refuted"
    assert len(found.runs) == 0 and found.seeds == 12


def test_gdn2_decouples():
    arms = {"one beta": 0.5, "decoupled": 0.05, "erase only": 0.3, "write only": 0.3}
    better = verdict("gdn2-decouples", overwrite.gdn2_decouples(overwriting(arms, "interference")))
    assert better.verdict == "supported"
    worse = verdict(
        "gdn2-decouples",
        overwrite.gdn2_decouples(overwriting(arms | {"one beta": 0.2, "decoupled": 0.5}, "interference")),
    )
    assert worse.verdict == "refuted"
    # nobody is interfered with: separate gates cannot be seen to help
    ceiling = verdict("gdn2-decouples", overwrite.gdn2_decouples(overwriting(dict.fromkeys(arms, 0.0), "interference")))
    assert ceiling.verdict == "inconclusive" and "interference that one beta leaves" in ceiling.why


def loads(rates, margins=None, experiment="load"):
    places = [(experiment, cell, arm) for cell, arm in rates]

    def make(cell, arm, rng, seed):
        frame = answers(rng, rates[cell, arm], load=6 if cell == "light" else 18)
        if margins is not None:
            frame["log_odds_other"] = margins[cell] + rng.normal(0, 0.3, len(frame))
        return {"records": frame}

    return evidence(make, places, twins=("additive",))


def test_additive_interference():
    rates = {("light", "additive"): 0.9, ("heavy", "additive"): 0.5}
    falls = load.additive_interference(loads(rates, {"light": 4.0, "heavy": 2.0}))
    found = verdict("additive-interference", falls)
    assert found.verdict == "supported" and found.effect == pytest.approx(2 / np.log(3), abs=0.1)
    flat = load.additive_interference(loads(rates, {"light": 3.0, "heavy": 3.0}))
    assert verdict("additive-interference", flat).verdict == "refuted"


def test_feature_map_fidelity_needs_the_load():
    rates = {("light", "additive"): 0.95, ("light", "elu"): 0.95, ("heavy", "additive"): 0.7, ("heavy", "elu"): 0.4}
    assert (
        verdict("feature-map-fidelity", load.feature_map_fidelity(loads(rates, experiment="features"))).verdict
        == "supported"
    )
    everywhere = rates | {("light", "elu"): 0.5}
    assert (
        verdict("feature-map-fidelity", load.feature_map_fidelity(loads(everywhere, experiment="features"))).verdict
        == "inconclusive"
    )


def test_softmax_exact():
    rates = {(c, a): p for c in ("light", "heavy") for a, p in (("softmax", 0.999), ("additive", 0.6))}
    assert verdict("softmax-exact", load.softmax_exact(loads(rates))).verdict == "supported"
    rates["heavy", "softmax"] = 0.8
    assert verdict("softmax-exact", load.softmax_exact(loads(rates))).verdict == "refuted"


def test_worst_lag_sees_one_bad_quarter():
    frame = answers(np.random.default_rng(0), 1.0).assign(lag_writes=np.arange(400))
    frame["correct"] = frame["lag_writes"] < 300
    assert load.worst_lag(frame) == 0.0


def confused(rng, by_similarity):
    """A run whose answers go to the most similar other key, or to any other key."""
    task = make_task("associative_recall", pairs=8, length=40)
    batch = task.sample(torch.arange(64), split="test", seed=0)
    generator = torch.Generator().manual_seed(int(rng.integers(1 << 30)))
    k = torch.nn.functional.normalize(torch.randn(64, 40, 2, 6, generator=generator), dim=-1)
    q = k.clone()
    values = task.vocabulary.values
    rows = []
    for e in range(64):
        places = [t for t in range(40) if batch.inputs[e, t] in values]
        for n in range(8):
            asked = int((batch.inputs[e] == batch.queries["target"][e, n]).int().argmax())
            q[e, batch.queries["position"][e, n]] = k[e, asked]
            others = [t for t in places if t != asked]
            alike = [float((k[e, t] * k[e, asked]).sum(-1).square().mean()) for t in others]
            said = others[int(np.argmax(alike)) if by_similarity else int(rng.integers(len(others)))]
            rows.append({"example": e, "query": n, "outcome": "other_key", "prediction": int(batch.inputs[e, said]),
                         "target": int(batch.queries["target"][e, n])})  # fmt: skip
    trace = Trace(0, "memory", q, k, torch.zeros(64, 40, 2, 6))
    return {"task": task, "batch": batch, "traces": [trace], "records": pd.DataFrame(rows)}


def test_collision_ranks_the_answered_key():
    rng = np.random.default_rng(0)
    (alike,) = evidence(lambda *a: confused(rng, True), [("load", "heavy", "delta")], seeds=(0,)).ran
    assert load.collision(alike) == pytest.approx(0.5) and abs(load.collision(alike, shuffled=True)) < 0.06
    (anyhow,) = evidence(lambda *a: confused(rng, False), [("load", "heavy", "delta")], seeds=(0,)).ran
    assert abs(load.collision(anyhow)) < 0.06


def test_key_collision(monkeypatch):
    rank = {"delta": 0.2, "additive": 0.2}
    monkeypatch.setattr(
        load,
        "collision",
        lambda run, shuffled=False: (0.0 if shuffled else rank[run.plan.arm]) + 0.004 * (run.plan.seed % 3),
    )
    made = loads({("heavy", "additive"): 0.5, ("heavy", "delta"): 0.5})
    assert verdict("key-collision", load.key_collision(made)).verdict == "supported"
    rank["delta"] = 0.0
    assert verdict("key-collision", load.key_collision(made)).verdict == "refuted"


def retained(kda, gdn):
    places = [
        (selection.EXPERIMENT, "main", f"{kind} delta {h}")
        for kind in ("scalar", "channel")
        for h in selection.HALF_LIVES
    ]

    def make(cell, arm, rng, seed):
        rates = kda if arm.startswith("channel") else gdn
        frame = answers(rng, 1.0)
        condition = np.where(np.arange(len(frame)) % 2 == 0, "persistent", "volatile")
        right = rng.random(len(frame)) < np.where(condition == "persistent", *rates)
        return {"records": frame.assign(condition=condition, correct=right), "metrics": curve([0.2, 0.5, 0.5, 0.53])}

    return evidence(make, places)


def curve(seen):
    """metrics.jsonl of 100 steps: the last looks at the validation stream, ten steps apart, between rows of training."""
    steps = [100 - 10 * i for i in range(len(seen))][::-1]
    looks = pd.DataFrame({"step": steps, "split": "validation", "accuracy": seen})
    return pd.concat([looks, pd.DataFrame({"step": [85, 100], "split": "train", "loss": [0.1, 0.1]})])


def test_late_gain_is_of_the_last_fifth_of_the_steps():
    def gained(metrics):
        return selection.late_gain(ran(selection.EXPERIMENT, "main", "channel delta mid", 0, metrics=metrics))

    assert gained(curve([0.1, 0.2, 0.5, 0.53])) == pytest.approx(0.33)
    assert np.isnan(gained(curve([0.9]))) and np.isnan(gained(pd.DataFrame()))


def test_channel_selects(monkeypatch):
    monkeypatch.setattr(selection, "_averaged", lambda run, name: 0.5)
    found = verdict("channel-selects", selection.channel_selects(retained((0.9, 0.95), (0.6, 0.95))))
    assert found.verdict == "supported" and len(found.contrasts) == 9
    late = [row for row in found.numbers if row["measure"].startswith("validation accuracy gained")]
    assert [row["mean"] for row in late] == pytest.approx([0.03] * 6)
    traded = verdict("channel-selects", selection.channel_selects(retained((0.9, 0.6), (0.6, 0.9))))
    assert traded.verdict == "refuted"


def test_matched_difference_is_not_fooled_by_lag():
    lag = np.tile(np.arange(4), 50)
    frame = pd.DataFrame({"lag_tokens": lag, "condition": np.where(np.arange(200) % 8 < 4, "persistent", "volatile")})
    frame["kept"] = np.exp(-frame["lag_tokens"]) + 0.2 * (frame["condition"] == "persistent")
    uneven = frame.drop(frame.index[(frame["condition"] == "persistent") & (lag == 0)][:20])
    assert retention.matched_difference(uneven, "kept") == pytest.approx(0.2)


def test_scalar_decay_uniform(monkeypatch):
    places = [("retention", "main", arm) for arm in ("additive scalar", "additive channel")]
    made = evidence(lambda cell, arm, rng, seed: {"records": answers(rng, 0.8)}, places)
    kept = {"additive scalar": 0.01, "additive channel": 0.3}
    monkeypatch.setattr(
        retention,
        "_kept_difference",
        lambda run, halves=False: (0.0 if halves else kept[run.plan.arm]) + 0.002 * (run.plan.seed % 3),
    )
    assert verdict("scalar-decay-uniform", retention.scalar_decay_uniform(made)).verdict == "supported"
    kept["additive channel"] = 0.01  # a stage that does not use its freedom shows nothing, and refutes nothing
    assert verdict("scalar-decay-uniform", retention.scalar_decay_uniform(made)).verdict == "inconclusive"
    kept["additive scalar"] = 0.2
    assert verdict("scalar-decay-uniform", retention.scalar_decay_uniform(made)).verdict == "refuted"


def switched(shift, same, single=0.9, everywhere=False):
    """An older block of the same topic costs `single` - `same`; after a shift Gated DeltaNet answers `shift` of the last block,
    DeltaNet as before. The older block is asked too, and answered never."""
    places = [("topic", cell, arm) for cell in ("current", "relevant") for arm in ("delta", "delta scalar")]

    def make(cell, arm, rng, seed):
        frame = answers(rng, 1.0)
        condition = np.array(["shift", "no_shift", "single"])[np.arange(len(frame)) % 3]
        # where older blocks are never asked a shift changes nothing
        released = arm == "delta scalar" and (cell == "relevant" or everywhere)
        rate = np.where(condition == "shift", shift if released else same, same)
        rate[condition == "single"] = single
        older = (np.arange(len(frame)) % 4 == 0) & (condition == "no_shift") & (cell == "relevant")
        right = (rng.random(len(frame)) < rate) & ~older
        return {"records": frame.assign(condition=condition, correct=right, blocks_ago=older.astype(int))}

    return evidence(make, places, twins=("delta",))


def test_scalar_decay_clears(monkeypatch):
    gate = {"value": 1.0}
    monkeypatch.setattr(topic, "gate_difference", lambda run: gate["value"])
    assert verdict("scalar-decay-clears", topic.scalar_decay_clears(switched(0.9, 0.5))).verdict == "supported"
    assert verdict("scalar-decay-clears", topic.scalar_decay_clears(switched(0.4, 0.5))).verdict == "refuted"
    unlearned = verdict("scalar-decay-clears", topic.scalar_decay_clears(switched(0.05, 0.2, single=0.1)))
    assert unlearned.verdict == "inconclusive" and "of one block alone" in unlearned.why
    always = verdict("scalar-decay-clears", topic.scalar_decay_clears(switched(0.9, 0.5, everywhere=True)))
    assert always.verdict == "inconclusive" and always.placebo_passed
    # the older block costs nothing: there is nothing to be released from
    free = verdict("scalar-decay-clears", topic.scalar_decay_clears(switched(0.99, 0.99, single=0.99)))
    assert free.verdict == "inconclusive" and "what an older block costs" in free.why
    gate["value"] = 0.0
    assert verdict("scalar-decay-clears", topic.scalar_decay_clears(switched(0.9, 0.5))).verdict == "refuted"


def test_delta_cannot_clear(monkeypatch):
    monkeypatch.setattr(topic, "_energy", lambda run: 0.9)
    wiped = {"shift": 0.2, "single": 0.0}
    monkeypatch.setattr(topic, "_wipe", lambda run, condition: wiped[condition])
    made = switched(0.9, 0.5)
    assert verdict("delta-cannot-clear", topic.delta_cannot_clear(made)).verdict == "supported"
    wiped["single"] = 0.2
    assert verdict("delta-cannot-clear", topic.delta_cannot_clear(made)).verdict == "inconclusive"
    wiped |= {"shift": 0.0, "single": 0.0}
    assert verdict("delta-cannot-clear", topic.delta_cannot_clear(made)).verdict == "refuted"
    unlearned = verdict("delta-cannot-clear", topic.delta_cannot_clear(switched(0.1, 0.1, single=0.1)))
    assert unlearned.verdict == "inconclusive" and "one topic alone" in unlearned.why


def test_markers_may_stand_at_different_places():
    """A gate of -5 at the marker after a shift and of 0 elsewhere: its difference is 5, and nothing of the old topic is left."""
    task = make_task("topic_switch", pairs=3, topics=2, rebind=False, ask="relevant", length=22)
    batch = task.sample(torch.arange(96), split="test", seed=0)
    run = ran("topic", "relevant", "delta scalar", 0, task=task, batch=batch)
    places = topic.marker_positions(run)
    assert places.unique().numel() > 2
    switch = task.vocabulary.token("switch")
    assert ((batch.inputs[torch.arange(96), places] == switch) == (batch.queries["condition"][:, 0] == 2)).all()
    generator = torch.Generator().manual_seed(0)
    k = torch.nn.functional.normalize(torch.randn(96, 22, 1, 8, generator=generator), dim=-1)
    gate = torch.where(batch.inputs == switch, -5.0, 0.0)[..., None]
    # the state that counts is the one the marker finds: what fades it comes at the marker or after it
    run.__dict__["traces"] = [Trace(0, "memory", k, k, torch.ones(96, 22, 1, 2), log_decay=gate)]
    assert topic.gate_difference(run) == pytest.approx(5.0)
    assert topic._energy(run) == pytest.approx(np.exp(-10.0), rel=1e-3)


def fake_trace(
    beta: float, overlap: float, T: int = 12, B: int = 40
) -> tuple[Trace, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Orthogonal keys, but for the pair at (2, 8), whose cosine varies around `overlap`."""
    generator = torch.Generator().manual_seed(0)
    k = torch.eye(16)[:T].expand(B, T, 16).clone()
    cosine = (overlap + 0.3 * torch.rand(B, generator=generator)).clamp(max=1)
    k[:, 8] = cosine[:, None] * k[:, 2] + (1 - cosine**2).sqrt()[:, None] * torch.eye(16)[15]
    k = k[:, :, None, :]
    gate = torch.full((B, T, 1), beta)
    rows = torch.arange(B)
    trace = Trace(0, "memory", k, k, torch.zeros(B, T, 1, 16), erase=gate, write=gate)
    return trace, rows, torch.full((B,), 2), torch.full((B,), 8)


def test_erasure_slope_is_one_for_the_delta_rule_and_not_for_a_wrong_key():
    found = fake_trace(1.0, 0.5)
    assert gates.erasure_slope(*found) == pytest.approx(1.0, abs=1e-3)
    trace, row, old, new = found
    trace.k[:, 8] = trace.k[:, 8] * torch.sign(torch.randn(len(row), 1, 1))
    far = torch.where(torch.arange(len(row)) % 2 == 0, 0.1, 0.9)
    trace.k[:, 8, 0] = far[:, None] * trace.k[:, 2, 0] + (1 - far**2).sqrt()[:, None] * torch.eye(16)[15]
    assert abs(gates.erasure_slope(trace, row, old, new, shuffled=True) - 1) > 0.3


def test_gain_finds_a_predictor_and_not_noise():
    rng = np.random.default_rng(0)
    lag, extra = rng.integers(0, 8, 4000).astype(float), rng.normal(size=4000)
    right = (rng.random(4000) < 1 / (1 + np.exp(-(1 - 0.2 * lag + extra)))).astype(float)
    groups = np.arange(4000) // 4
    assert gain(right, lag, extra, groups) > 0.05
    assert gain(right, lag, rng.normal(size=4000), groups) < 0.003
    assert np.isnan(gain(np.ones(4000), lag, extra, groups))


@pytest.mark.parametrize("by", ["class", "product"])
def test_a_product_that_knows_the_class_alone_predicts_nothing(by, monkeypatch):
    """Lasting facts are kept and answered, changing ones neither: whatever knows the class knows that."""
    rng = np.random.default_rng(0)
    lasting = rng.random(4000) < 0.5
    kept = np.exp(-np.where(lasting, 0.1, 2.0) - np.abs(rng.normal(size=4000)))
    odds = np.where(lasting, 2.0, -2.0) if by == "class" else 3 + 2 * np.log(kept)
    frame = {"example": np.arange(4000) // 4, "query": np.arange(4000) % 4}
    records = pd.DataFrame(frame).assign(
        correct=rng.random(4000) < 1 / (1 + np.exp(-odds)), condition=np.where(lasting, "persistent", "volatile")
    )
    shares = pd.DataFrame(frame).assign(kept=kept, lag_tokens=rng.integers(0, 4, 4000).astype(float))
    monkeypatch.setattr(gates, "kept_shares", lambda run: shares)
    run = ran("retention", "main", "channel delta mid", 0, records=records)
    right, shuffled = gates._gain(run), gates._gain(run, shuffled=True)
    # a weight that says nothing costs about 1/4000 of a nat a row, the rows there are
    assert abs(shuffled) < 0.002
    assert abs(right) < 0.002 if by == "class" else right > 0.05
