"""Records: forked answers against reading each query's text anew, margins and ranks against plain loops."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.tasks import make_task
from mnemolab.tasks.outcomes import presented
from mnemolab.trainers.data import sample_range
from mnemolab.trainers.scoring import evaluate, query_logits, score

STAGES = ["gpt2", "linear_attention", "kda"]


@pytest.fixture
def task():
    return make_task("key_overwrite", ask="mixed")  # a cue before each key: prompts of two tokens


@pytest.fixture
def batch(task):
    return sample_range(task, 0, 5, "test", 3, "cpu")


@pytest.mark.parametrize("stage", STAGES)
def test_forked_is_the_context_and_one_prompt(tiny, task, batch, stage):
    model = tiny(**{"model.name": stage, "task.ask": "mixed", "model.positions": "learned"}).make_model()
    with torch.no_grad():
        logits = query_logits(model, batch, "forked")
        for b in range(len(batch)):
            for q in range(logits.shape[1]):
                start, end, fork = (int(batch.queries[name][b, q]) for name in ("start", "position", "fork"))
                text = torch.cat((batch.inputs[b, :fork], batch.inputs[b, start : end + 1]))
                alone = model(text[None])[0, -1]
                torch.testing.assert_close(logits[b, q], alone, atol=1e-4, rtol=1e-4)


def test_sequential_is_the_logits_where_the_query_stands(tiny, batch):
    model = tiny(**{"task.ask": "mixed"}).make_model()
    with torch.no_grad():
        logits, whole = query_logits(model, batch, "sequential"), model(batch.inputs)
    for b in range(len(batch)):
        torch.testing.assert_close(logits[b], whole[b, batch.queries["position"][b]])


def test_forked_needs_a_shared_context(tiny, batch):
    batch.queries["fork"].fill_(-1)
    with pytest.raises(BadRequest, match="scoring=sequential"):
        query_logits(tiny(**{"task.ask": "mixed"}).make_model(), batch, "forked")


def test_unused_slots_are_left_out(tiny, task, batch, monkeypatch):
    batch.queries["position"][2, 1:] = -1
    monkeypatch.setattr("mnemolab.trainers.scoring.sample_range", lambda *args: batch)
    model = tiny(**{"task.ask": "mixed"}).make_model()
    table = score(model, task, 5, 3)
    assert len(table) == batch.queries["position"].numel() - (batch.queries["position"].shape[1] - 1)
    assert table[table.example == 2]["query"].tolist() == [0]


@pytest.mark.parametrize("scoring", ["forked", "sequential"])
def test_records_against_plain_loops(tiny, task, batch, scoring):
    model = tiny(**{"task.ask": "mixed"}).make_model()
    table = score(model, task, 5, 3, scoring=scoring)
    with torch.no_grad():
        logits = query_logits(model, batch, scoring)
    shown = presented(batch, task.vocabulary)
    values = task.vocabulary.values
    assert len(table) == 5 * batch.queries["position"].shape[1]
    for found in table.to_dict("records"):
        row: Any = SimpleNamespace(**{str(name): value for name, value in found.items()})
        b, q = row.example, row.query
        scores: Tensor = logits[b, q]
        target = int(batch.queries["target"][b, q])
        stale = [int(t) for t in batch.queries["stale"][b, q] if t >= 0]
        others = {values.start + j for j in range(len(values)) if shown[b, j]} - {target} - set(stale)
        assert list(row.stale) == stale
        assert row.prediction == int(scores.argmax())
        assert row.correct == (row.prediction == target)
        assert row.rank == sum(float(s) > float(scores[target]) for s in scores)
        assert row.loss == pytest.approx(-float(scores.log_softmax(-1)[target]), abs=1e-5)
        for name, rivals in (("log_odds_stale", set(stale) - {target}), ("log_odds_other", others)):
            margin = getattr(row, name)
            if rivals:
                assert margin == pytest.approx(float(scores[target] - max(scores[list(rivals)])), abs=1e-5)
            else:
                assert math.isnan(margin)
        assert row.stale_age == (stale.index(row.prediction) + 1 if row.prediction in stale and not row.correct else 0)
        shift = int(batch.queries["start"][b, q] - batch.queries["fork"][b, q]) if scoring == "forked" else 0
        for name in ("position", "start", "lag_tokens"):
            assert getattr(row, name) == int(batch.queries[name][b, q]) - shift


def test_a_stale_answer_has_its_age(tiny, task, batch):
    """A model that always answers one token: find a query for which that token is stale."""
    model = tiny(**{"task.ask": "mixed"}).make_model()
    stale = batch.queries["stale"]
    b, q = (stale[..., 1] >= 0).nonzero()[0].tolist()
    token = int(stale[b, q, 1])

    class Stubborn(type(model)):
        @property
        def head_weight(self) -> Tensor:
            return torch.zeros_like(self.embedding.weight).index_fill_(0, torch.tensor([token]), 1.0)

        def features(self, inputs, state=None, return_state=False):
            hidden, state = super().features(inputs, state, return_state)
            return torch.ones_like(hidden), state

    model.__class__ = Stubborn
    table = score(model, task, 5, 3)
    row = table[(table.example == b) & (table["query"] == q)].iloc[0]
    assert (row.prediction, row.outcome, row.stale_age, row.correct) == (token, "stale", 2, False)


def test_both_scorings_lie_in_one_table(tiny, task):
    model = tiny(**{"task.ask": "mixed"}).make_model()
    table = score(model, task, 3, 0, scoring="both")
    assert table.groupby("scoring").size().to_dict() == {"forked": len(table) // 2, "sequential": len(table) // 2}


def test_chunks_do_not_change_the_records(tiny, task, monkeypatch):
    model = tiny(**{"task.ask": "mixed"}).make_model()
    whole = score(model, task, 5, 0)
    monkeypatch.setattr("mnemolab.trainers.scoring.CHUNK_TOKENS", 2 * task.length)
    parts = score(model, task, 5, 0)
    assert whole[["example", "query", "prediction", "outcome"]].equals(
        parts[["example", "query", "prediction", "outcome"]]
    )


def test_evaluate_is_the_mean_over_scored_positions(tiny, task, batch):
    model = tiny(**{"task.ask": "mixed"}).make_model()
    found = evaluate(model, batch, task)
    with torch.no_grad():
        scored = batch.targets != -100
        logits, wanted = model(batch.inputs)[scored], batch.targets[scored]
    assert found["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, wanted)), abs=1e-5)
    assert found["accuracy"] == pytest.approx(float((logits.argmax(-1) == wanted).float().mean()))
