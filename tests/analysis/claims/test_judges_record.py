"""record-update: which ability is missing, and what a memory that was wiped just before the update cannot know."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from mnemolab.analysis.claims.evidence import Evidence
from mnemolab.analysis.claims.judges import forgetting, record
from mnemolab.errors import BadRequest
from mnemolab.models import make_model
from mnemolab.tasks import make_task
from mnemolab.tasks.base import Batch
from mnemolab.trainers.scoring import query_logits

from .conftest import answers, evidence, ran, verdict

TASK = make_task("record_update", entities=2, updates=2, lags=12, length=128, key_vocabulary=16, attribute_values=48)
ABLE = {"untouched": 0.95, "updated": 0.95, "previous": 0.5, "compare": 0.95}
CANNOT = {"untouched": 0.1, "updated": 0.97, "previous": 0.05, "compare": 0.7}


def kda(depth=2):
    torch.manual_seed(0)
    sizes = {"width": 16, "heads": 2, "head_dim": 8, "half_life": 64.0, "backend": "loop"}
    return make_model("kda", vocab_size=TASK.vocabulary.size, depth=depth, **sizes).double().eval()


def answered(rng, rates):
    condition = pd.Series(["untouched", "updated", "previous", "compare"] * 100)
    return answers(rng, condition.map(rates).to_numpy()).assign(condition=condition)


def stages(rates, **given):
    """KDA and its twin answer at `rates`, additive memory all: it has no say."""
    high = dict.fromkeys(ABLE, 0.99)
    make = lambda cell, arm, rng, seed: {"records": answered(rng, rates if arm == "delta channel" else high), **given}
    return evidence(make, [("record", "main", arm) for arm in ("additive", "delta channel")], twins=("delta channel",))


def judge(monkeypatch, rates, wiped):
    """The verdict where KDA answers at `rates`, and wiped at `wiped`."""
    opened = []

    def emptied(run):
        opened.append((run.plan.arm, run.plan.twin, run.plan.seed))
        return answered(np.random.default_rng([run.plan.seed, 7]), wiped)

    monkeypatch.setattr(forgetting, "emptied", emptied)
    found = verdict("record-update", forgetting.record_update(stages(rates)))
    # each model is opened once, and those of other arms and of twins never
    assert opened == [("delta channel", False, seed) for seed in range(12)]
    return found


def test_it_says_which_ability_is_missing(monkeypatch):
    able = judge(monkeypatch, ABLE, CANNOT)
    assert able.verdict == "supported" and able.placebo_passed is False
    failed = judge(monkeypatch, ABLE | {"compare": 0.5}, CANNOT)
    assert failed.verdict == "refuted" and "compares" in failed.why
    # what additive memory can is told, and decides nothing
    told = {row["arm"]: row["mean"] for row in able.numbers if row["measure"].startswith("compares old with new: acc")}
    assert told["additive"] == pytest.approx(0.19, abs=0.02)


def test_stages_beside_are_told_and_decide_nothing(monkeypatch):
    monkeypatch.setattr(forgetting, "emptied", lambda run: answered(np.random.default_rng([run.plan.seed, 7]), CANNOT))
    alone = verdict("record-update", forgetting.record_update(stages(ABLE)))
    make = lambda cell, arm, rng, seed: {"records": answered(rng, CANNOT)}
    made = stages(ABLE)
    both = Evidence([*made.ran, *evidence(make, [("record_stages", "main", "lstm")]).ran])
    found = verdict("record-update", forgetting.record_update(both))
    assert found.contrasts == alone.contrasts and found.verdict == "supported"
    told = [row["arm"] for row in found.numbers if row["arm"] not in {row["arm"] for row in alone.numbers}]
    assert told == ["lstm"] * 4 and len(found.numbers) == len(alone.numbers) + 4


def test_a_placebo_that_is_as_able_leaves_the_claim_open(monkeypatch):
    found = judge(monkeypatch, ABLE, ABLE)
    assert found.verdict == "inconclusive" and found.placebo_passed
    for ability in forgetting.ABILITIES:  # one ability that needs the past is enough
        assert judge(monkeypatch, ABLE, ABLE | {ability: 0.5}).verdict == "supported"


def test_a_memory_that_cannot_know_fails_the_bars():
    """All of it, from a model's weights to the verdict: a model that knows nothing, wiped."""
    batch = TASK.sample(torch.arange(2), split="test", seed=0)
    found = verdict("record-update", forgetting.record_update(stages(ABLE, model=kda(1), task=TASK, batch=batch)))
    assert found.verdict == "supported" and found.placebo_passed is False
    assert [c.name for c in found.placebo if c.outcome == "refuted"] == [c.name for c in found.placebo]
    assert len(found.placebo) == 3 and {c.n for c in found.placebo} == {12}


def written(batch, row):
    """(position, entity, attribute, bindings before) of every binding of a sequence, by reading it."""
    tokens, found, times = batch.inputs[row].tolist(), [], {}
    for t in range(2, int(batch.queries["fork"][row, 0])):
        if tokens[t] in TASK.vocabulary.values:
            fact = tokens[t - 2], tokens[t - 1]
            found.append((t - 2, *fact, times.get(fact, 0)))
            times[fact] = times.get(fact, 0) + 1
    return found


def test_the_wipe_comes_before_the_update_of_what_is_asked():
    batch = TASK.sample(torch.arange(40), split="test", seed=3)
    queries, at = batch.queries, record.last_updates(batch, TASK)
    bound = queries["position"] - queries["lag_tokens"] - 2  # of what is to be answered
    for row in range(len(batch)):
        updates = [w for w in written(batch, row) if w[3] > 0]
        for key, what, condition, start, place in zip(
            *(x[row].tolist() for x in (queries["key"], queries["attribute"], queries["condition"], bound, at)),
            strict=True,
        ):
            name = TASK.conditions[condition]
            fact = [w[0] for w in updates if w[1:3] == (key, what)]
            assert place == (max(w[0] for w in updates if w[1] == key) if name == "untouched" else fact[-1])
            assert name == "untouched" or (start < place if name == "previous" else start == place)
    untouched = queries["condition"] == 0
    assert untouched.sum() == 80 and (bound < at)[untouched].float().mean() > 0.9


def drawn(text):
    """One sequence; every attribute that no value follows is asked."""
    vocabulary, tokens = TASK.vocabulary, []
    letters = {"k": vocabulary.keys.start, "v": vocabulary.values.start, ".": vocabulary["filler"].start}
    for word in text.split():
        number = word[1:].isdigit() or word == "."
        tokens.append(letters[word[0]] + int(word[1:] or 0) if number else vocabulary.token(word))
    is_value = [token in vocabulary.values for token in [*tokens[1:], 0]]
    asked = [t for t, token in enumerate(tokens) if token in vocabulary["attributes"] and not is_value[t]]
    inputs = torch.tensor([tokens])
    columns = {
        "position": torch.tensor([asked]),
        "key": inputs[:, [t - 1 for t in asked]],
        "attribute": inputs[:, asked],
    }
    return Batch(inputs, torch.full_like(inputs, -100), columns)


def test_positions_by_hand():
    batch = drawn(
        #       0         3              6         9   10           14        17         20          23
        "k1 fee v1 k1 identity v2 k2 fee v3 . k1 fee v4 . k2 fee v5 k1 plan v6 k3 fee v7 k2 date v8 "
        "current k1 fee compare k1 fee previous k2 fee current k1 identity current k2 date current k1 plan"
    )
    # the date of k2 and the plan of k1 were bound after the updates of their records, and survive
    assert record.last_updates(batch, TASK).tolist() == [[10, 10, 14, 10, 14, 10]]
    batch.queries["position"][0, 2] = -1
    assert record.last_updates(batch, TASK).tolist() == [[10, 10, 0, 10, 14, 10]]


def test_a_record_without_updates_is_refused():
    with pytest.raises(BadRequest, match="never updated"):
        record.last_updates(drawn("k1 fee v1 k2 fee v2 k2 fee v3 current k1 fee"), TASK)


@torch.no_grad()
def test_wiping_what_is_empty_changes_nothing():
    model, batch = kda(), TASK.sample(torch.arange(3), split="test", seed=1)
    plain = query_logits(model, batch, "forked")
    # logits are float32
    at = record.last_updates(batch, TASK)
    torch.testing.assert_close(record.wiped_logits(model, batch, torch.zeros_like(at)), plain, atol=1e-6, rtol=0)
    assert ((record.wiped_logits(model, batch, at) - plain).abs().amax(-1) > 1e-3).all()
    torch.testing.assert_close(query_logits(model, batch, "forked"), plain, atol=0, rtol=0)  # and is over


@torch.no_grad()
def test_a_wipe_is_a_state_that_was_reset():
    """Token by token, both layers' states set to zero before the update is read; the convolutions keep what they saw."""
    model, batch = kda(), TASK.sample(torch.arange(2), split="test", seed=2)
    at, queries = record.last_updates(batch, TASK), batch.queries
    wiped = record.wiped_logits(model, batch, at)
    for row, slot in [(0, 0), (0, 3), (0, 6), (0, 9), (1, 1), (1, 4), (1, 7)]:
        start, stop = int(queries["start"][row, slot]), int(queries["position"][row, slot]) + 1
        state: Any = None
        said: Any = None
        for t in [*range(int(queries["fork"][row, slot])), *range(start, stop)]:
            if t == at[row, slot]:
                for layer in state["layers"]:
                    layer["S"].zero_()
            said, state = model.step(batch.inputs[row : row + 1, t], state)
        # the model is float64 and the logits of queries are float32
        torch.testing.assert_close(wiped[row, slot].double(), said[0], atol=1e-5, rtol=0)


def test_a_wipe_outside_the_context_is_refused():
    batch = TASK.sample(torch.arange(2), split="test", seed=2)
    at = record.last_updates(batch, TASK)
    at[1, 3] = batch.queries["fork"][1, 3]
    with pytest.raises(BadRequest, match="lies outside"):
        record.wiped_logits(kda(1), batch, at)


def test_answers_are_told_by_condition():
    batch = TASK.sample(torch.arange(4), split="test", seed=2)
    found = record.emptied(ran("record", "main", "delta channel", 0, model=kda(1), task=TASK, batch=batch))
    names = [TASK.conditions[c] for c in batch.queries["condition"].flatten().tolist()]
    assert found["condition"].tolist() == names and found["correct"].dtype == bool
