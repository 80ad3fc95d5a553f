"""Controls of equal load: the twins bind the same keys, as often in all, and ask the same of them."""

from collections import Counter
from itertools import pairwise

import pytest
import torch

from mnemolab.errors import BadRequest
from mnemolab.tasks import make_task
from mnemolab.tasks.outcomes import OUTCOMES, classify
from mnemolab.tasks.schedule import rebound_keys
from mnemolab.trainers.config import RunConfig
from tests.tasks.chi_square import follows

ROOM = {"length": 400, "key_vocabulary": 120, "value_vocabulary": 150}
ASKS = ["latest", "first", "previous", "mixed"]
SIZES = [(6, 4, 11), (6, 4, 7), (5, 3, 9), (16, 8, 30), (4, 5, 24)]  # keys, versions, lags


def bindings(task, row):
    """key -> its values in order, as the tokens say."""
    held = {}
    for token, after in pairwise(row):
        if token in task.vocabulary.keys and after in task.vocabulary.values:
            held.setdefault(token, []).append(after)
    return held


def twins(task, count=100, **more):
    """(bindings of the treated example, bindings of its control, asked keys) of every pair."""
    batch = task.sample(torch.arange(2 * count), **more)
    found = [bindings(task, row) for row in batch.inputs.tolist()]
    return zip(found[::2], found[1::2], batch.queries["key"][::2].tolist(), strict=True)


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("keys, versions, lags", SIZES)
def test_twins_of_equal_load_differ_in_who_holds_the_older_values_alone(keys, versions, lags, ask):
    task = make_task("key_overwrite", keys=keys, versions=versions, lags=lags, ask=ask, control="equal", **ROOM)
    batch = task.sample(torch.arange(400))
    assert torch.equal(task.solve(batch.inputs), batch.targets)
    q = batch.queries
    same = "position", "key", "target", "lag_tokens", "lag_writes", "serial_position", "load", "paired_versions", "ask"
    for name in same:
        assert torch.equal(q[name][::2], q[name][1::2]), name
    control = q["condition"] == task.conditions.index("control")
    assert control.any() and not control[::2].any() and (q["version"][control] == 0).all()
    keys_of = task.vocabulary.keys
    for treated, other in zip(batch.inputs[::2].tolist(), batch.inputs[1::2].tolist(), strict=True):
        # slots, values, filler and queries are the same token by token
        assert all(a == b or (a in keys_of and b in keys_of) for a, b in zip(treated, other, strict=True))
    for treated, other, asked in twins(task):
        assert treated.keys() == other.keys() and set(asked) <= treated.keys()
        assert sum(map(len, treated.values())) == sum(map(len, other.values())) == q["load"][0, 0]
        for key in treated.keys() - set(asked):
            assert len(treated[key]) == 1 and treated[key][0] in other[key]  # its own binding, in both
        for key in asked:
            assert set(other[key]) <= set(treated[key])


@pytest.mark.parametrize("ask", ["latest", "first"])
@pytest.mark.parametrize("keys, versions", [(6, 4), (16, 8), (5, 3)])
def test_with_an_unasked_key_for_each_rebound_one_as_many_keys_have_each_number_of_versions(keys, versions, ask):
    lags = keys + rebound_keys(keys, versions)[1]
    task = make_task("key_overwrite", keys=keys, versions=versions, lags=lags, ask=ask, control="equal", **ROOM)
    for treated, other, _ in twins(task):
        assert Counter(map(len, treated.values())) == Counter(map(len, other.values()))


def test_too_few_unasked_keys_share_the_older_bindings_evenly():
    task = make_task("key_overwrite", keys=6, versions=2, lags=8, control="equal", **ROOM)
    for treated, other, asked in twins(task):
        # three rebound keys and two unasked ones: one takes two old values and the other one
        assert len(treated) == 8
        assert sorted(len(values) for key, values in other.items() if key not in asked) == [2, 3]


def test_every_unasked_key_serves_as_often():
    task = make_task("key_overwrite", keys=6, versions=4, lags=16, control="equal", **ROOM)
    served = []
    for treated, other, asked in twins(task, 800):
        unasked = [key for key in treated if key not in asked]  # in order of their own bindings
        served.append([len(other[key]) > 1 for key in unasked])
    table = torch.tensor(served)
    assert table.shape[1] == 10 and set(table.sum(1).tolist()) == {4, 5}  # as many as there are rebound keys
    first = (table & ~table.roll(1, 1)).long()
    assert (first.sum(1) == 1).all()  # they are dealt out in turn
    follows(first.argmax(1), [1.0] * 10)


def test_an_older_value_is_another_keys_in_the_control():
    task = make_task("key_overwrite", lags=11, length=70, control="equal")
    batch = task.sample(torch.arange(400))
    stale = batch.queries["stale"]
    assert (stale[1::2] == -1).all()
    old = stale[::2, :, 0].repeat_interleave(2, 0)
    said = classify(batch, torch.where(old < 0, batch.queries["target"], old), task.vocabulary)
    treated, control = (said[twin::2][old[::2] >= 0] for twin in (0, 1))
    assert (treated == OUTCOMES.index("stale")).all() and (control == OUTCOMES.index("other_key")).all()


def test_an_example_of_equal_load_does_not_depend_on_its_batch():
    task = make_task("key_overwrite", lags=11, length=70, control="equal")
    whole = task.sample(torch.arange(64), split="test", seed=3).inputs
    pieces = [task.sample(torch.tensor([i]), split="test", seed=3).inputs for i in (40, 41, 7)]
    assert torch.equal(torch.cat(pieces), whole[[40, 41, 7]])


def test_equal_load_needs_an_unasked_key():
    with pytest.raises(BadRequest, match=r"control=equal .*lags=16.*raise lags to 17 or more \(30 give.*control=true"):
        make_task("key_overwrite", keys=16, versions=8, lags=16, control="equal", **ROOM)
    make_task("key_overwrite", keys=16, versions=8, lags=17, control="equal", **ROOM)
    # where no key is bound twice nothing has to go anywhere
    make_task("key_overwrite", versions=1, lags=6, control="equal").sample(torch.arange(4))
    with pytest.raises(BadRequest, match=r"control.*expected true or false, or 'equal'\. Got value: equl"):
        make_task("key_overwrite", control="equl")


def test_equal_load_needs_no_new_keys():
    """A key vocabulary of what is bound will do, where fresh keys would need as many again."""
    fields = {"keys": 6, "versions": 4, "lags": 11, "length": 70, "key_vocabulary": 11}
    make_task("key_overwrite", control="equal", **fields).sample(torch.arange(4))
    with pytest.raises(BadRequest, match=r"key_vocabulary=11.*need 17"):
        make_task("key_overwrite", control=True, **fields)


@pytest.mark.parametrize(
    "fields, fingerprint",
    [
        ({"control": True}, "350a50d58d32d3f4"),
        ({"control": False}, "5e795b0897180f61"),
        ({"ask": "mixed", "length": 70, "gap": "mixed"}, "c0f7eba8f82d1b59"),
    ],
)
def test_fresh_and_no_controls_are_what_they_were_before_there_was_a_third(fields, fingerprint):
    assert make_task("key_overwrite", **fields).fingerprint() == fingerprint


@pytest.mark.parametrize("control", [True, False])
def test_runs_keep_their_ids(control):
    """A run's id is a hash of this mapping and the version."""
    fields = {"length": 64, "keys": 6, "versions": 4, "lags": 8, "gap": "any", "ask": "latest", "control": control}
    sizes = {"key_vocabulary": 24, "value_vocabulary": 128, "filler_vocabulary": 16}
    config = RunConfig.from_dict({"task": {"name": "key_overwrite", "control": control}, "model": {"name": "kda"}})
    assert config.task == {"name": "key_overwrite", **fields, **sizes} and config.task["control"] is control
    assert config.make_task().version == 2
