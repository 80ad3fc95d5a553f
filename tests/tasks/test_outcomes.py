"""Every answer has one outcome, the first that fits."""

import pytest
import torch

from mnemolab.tasks import make_task
from mnemolab.tasks.base import Batch
from mnemolab.tasks.outcomes import OUTCOMES, classify, presented
from mnemolab.tasks.vocabulary import Vocabulary


def names(codes):
    return [OUTCOMES[code] if code >= 0 else "unused" for code in codes.flatten().tolist()]


def test_each_outcome_by_hand():
    vocabulary = Vocabulary(special=("none",), answers=("higher",), keys=3, values=6)
    k, v = vocabulary.keys.start, vocabulary.values.start
    # k0 v0 k0 v1 k1 v2 ask k0 -> v1, then v5 after the query
    inputs = torch.tensor([[k, v, k, v + 1, k + 1, v + 2, k, k + 1, v + 5]])
    queries = {
        "position": torch.tensor([[6] * 8 + [-1]]),
        "start": torch.tensor([[6] * 8 + [-1]]),
        "target": torch.tensor([[v + 1] * 8 + [-1]]),
        "stale": torch.tensor([[[v, -1]] * 8 + [[-1, -1]]]),
    }
    batch = Batch(inputs, torch.full_like(inputs, -100), queries)
    predictions = torch.tensor([[v + 1, v, v + 2, v + 3, v + 5, 0, 1, k, v + 1]])
    expected = ["correct", "stale", "other_key", "absent", "absent", "absent", "absent", "invalid", "unused"]
    assert names(classify(batch, predictions, vocabulary)) == expected
    assert presented(batch, vocabulary).tolist() == [[True, True, True, False, False, True]]


def test_none_is_correct_where_it_is_the_answer_and_a_forgotten_value_is_stale():
    task = make_task("directed_forgetting", condition="forget")
    batch = task.sample(torch.arange(50))
    none = torch.full_like(batch.queries["target"], task.vocabulary.token("none"))
    lost = batch.queries["forgotten"] == 1
    codes = classify(batch, none, task.vocabulary)
    assert (codes[lost] == OUTCOMES.index("correct")).all() and (codes[~lost] == OUTCOMES.index("absent")).all()
    codes = classify(batch, batch.queries["stale"][..., 0], task.vocabulary)
    assert (codes[lost] == OUTCOMES.index("stale")).all()


def test_a_task_classifies_its_own_answers():
    task = make_task("key_overwrite")
    batch = task.sample(torch.arange(100))
    values = task.vocabulary.values
    assert (classify(batch, batch.queries["target"], task.vocabulary) == 0).all()
    newest = batch.queries["stale"][..., 0]
    rebound = newest >= 0
    assert (classify(batch, newest, task.vocabulary)[rebound] == OUTCOMES.index("stale")).all()
    # another query's answer is another key's value
    other = batch.queries["target"].roll(1, 1)
    assert (classify(batch, other, task.vocabulary) == OUTCOMES.index("other_key")).all()
    shown = presented(batch, task.vocabulary)
    assert (shown.sum(1) == task.writes).all()
    absent = shown.long().argmin(1, keepdim=True).expand_as(newest) + values.start
    assert (classify(batch, absent, task.vocabulary) == OUTCOMES.index("absent")).all()


@pytest.mark.parametrize("versions", [2, 4])
def test_answering_none_to_every_previous_query_scores_at_chance(versions):
    task = make_task("key_overwrite", ask="previous", versions=versions)
    batch = task.sample(torch.arange(2000), split="test")
    none = batch.queries["target"] == task.vocabulary.token("none")
    rate = none.float().mean()
    assert abs(rate - 1 / versions) < 0.01
    chance = task.chance(batch)
    assert torch.allclose(chance[none], torch.tensor(1 / versions))
    # a guesser that says NONE as often as it is right, and else any value, gains nothing by knowing when
    assert torch.allclose(chance[~none], torch.tensor((1 - 1 / versions) / task.writes))


def test_none_counts_among_the_queries_that_an_example_has():
    """With a pool of keys an example asks those that turned up: the share of unknown queries differs between examples."""
    task = make_task("associative_recall", pool=6, unknown=3)
    batch = task.sample(torch.arange(500))
    used = batch.queries["position"] >= 0
    none = (batch.queries["target"] == task.vocabulary.token("none")) & used
    share = none.sum(1) / used.sum(1)
    assert share.unique().numel() > 2
    chance = task.chance(batch)
    assert torch.allclose(chance[none], share[:, None].expand_as(chance)[none])
    known = used & ~none
    assert torch.allclose(chance[known], ((1 - share) / task.pairs)[:, None].expand_as(chance)[known])
