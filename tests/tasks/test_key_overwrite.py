"""Controls that bind no new keys: of equal load, or with one key relieved of its other bindings."""

from collections import Counter
from itertools import pairwise

import pytest
import torch

from mnemolab.errors import BadRequest
from mnemolab.tasks import make_task
from mnemolab.tasks.base import Batch
from mnemolab.tasks.key_overwrite import KeyOverwrite
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
    with pytest.raises(BadRequest, match=r"control.*expected true or false, or 'equal', 'one'\. Got value: equl"):
        make_task("key_overwrite", control="equl")


def test_equal_load_needs_no_new_keys():
    """A key vocabulary of what is bound will do, where fresh keys would need as many again."""
    fields = {"keys": 6, "versions": 4, "lags": 11, "length": 70, "key_vocabulary": 11}
    make_task("key_overwrite", control="equal", **fields).sample(torch.arange(4))
    with pytest.raises(BadRequest, match=r"key_vocabulary=11.*need 17"):
        make_task("key_overwrite", control=True, **fields)


def relieved(task, count=100, **more) -> tuple[Batch, list[tuple[int, int, list, list]]]:
    """(batch, [(pair, slot of its control query, writes of the treated example, writes of its control)]), one a pair.

    Writes are (key, value) in order of time.
    """
    batch = task.sample(torch.arange(2 * count), **more)
    control = batch.queries["condition"] == task.conditions.index("control")
    assert not control[::2].any() and (control[1::2].sum(1) == 1).all()
    keys, values = task.vocabulary.keys, task.vocabulary.values
    rows = [[w for w in pairwise(row) if w[0] in keys and w[1] in values] for row in batch.inputs.tolist()]
    return batch, list(zip(range(count), control[1::2].long().argmax(1).tolist(), rows[::2], rows[1::2], strict=True))


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("keys, versions, lags", [*SIZES, (8, 8, 15), (3, 2, 4)])
def test_one_control_relieves_the_key_of_most_versions_and_nothing_else(keys, versions, lags, ask):
    task = make_task("key_overwrite", keys=keys, versions=versions, lags=lags, ask=ask, control="one", **ROOM)
    batch, pairs = relieved(task)
    assert torch.equal(task.solve(batch.inputs), batch.targets)
    q = {name: column.tolist() for name, column in batch.queries.items()}
    moved = 0
    for pair, slot, treated, other in pairs:
        for name, column in q.items():
            mine, twins_ = column[2 * pair + 1], column[2 * pair]
            if name not in ("condition", "version", "versions", "gap_writes", "stale"):
                assert mine == twins_, name
            others = [column[:slot] + column[slot + 1 :] for column in (mine, twins_)]  # fresh and rebound queries
            assert others[0] == others[1], name
        one, twin = ({name: column[2 * pair + c][slot] for name, column in q.items()} for c in (1, 0))
        assert one["paired_versions"] == max(q["versions"][2 * pair]) == twin["versions"] > 1
        assert one["version"] == 0 and one["gap_writes"] == -1 and twin["condition"] == 1
        kept = 2 if q["ask"][2 * pair][slot] == 2 else 1
        assert one["versions"] == kept and sum(value >= 0 for value in one["stale"]) == kept - 1
        # every token is the twin's but the key of the other bindings, which go to one unasked key that both bind
        assert len(treated) == len(other) == one["load"] and {k for k, _ in treated} == {k for k, _ in other}
        changed = [(a[0], b[0]) for a, b in zip(treated, other, strict=True) if a != b]
        assert [v for _, v in treated] == [v for _, v in other] and len(changed) == one["paired_versions"] - kept
        if changed:
            taker = changed[0][1]
            assert set(changed) == {(one["key"], taker)} and taker not in q["key"][2 * pair]
            assert sum(k == taker for k, _ in treated) == 1 and (taker, dict(treated)[taker]) in other
        tokens = (batch.inputs[2 * pair] != batch.inputs[2 * pair + 1]).sum().item()
        assert tokens == len(changed)
        moved += len(changed)
    assert moved or (ask == "previous" and versions == 2)


@pytest.mark.parametrize("ask", ["latest", "previous"])
@pytest.mark.parametrize("keys, versions, lags", [(6, 4, 11), (8, 8, 15), (5, 3, 9)])
def test_what_follows_the_asked_binding_is_the_twins_token_by_token(keys, versions, lags, ask):
    task = make_task("key_overwrite", keys=keys, versions=versions, lags=lags, ask=ask, control="one", **ROOM)
    batch, pairs = relieved(task)
    changed = 0
    for pair, slot, treated, other in pairs:
        at = int(batch.queries["serial_position"][2 * pair, slot])
        after = len({k for k, _ in treated[at + 1 :]})
        assert after == len({k for k, _ in other[at + 1 :]}) and treated[at:] == other[at:]
        position, lag = (int(batch.queries[name][2 * pair, slot]) for name in ("position", "lag_tokens"))
        assert torch.equal(
            batch.inputs[2 * pair, position - lag - 1 :], batch.inputs[2 * pair + 1, position - lag - 1 :]
        )
        changed += treated[:at] != other[:at]
    assert changed == len(pairs) if ask == "latest" else changed


def test_as_many_writes_after_the_asked_binding_are_rebindings_as_in_the_twin():
    """The key that takes the older bindings is one that was bound before, where there is one."""
    task = make_task("key_overwrite", keys=8, versions=8, lags=15, control="one", **ROOM)
    batch, pairs = relieved(task, 1000)

    def rebindings(writes, at):
        return sum(key in {k for k, _ in writes[: at + 1 + i]} for i, (key, _) in enumerate(writes[at + 1 :]))

    different = 0
    for pair, slot, treated, other in pairs:
        at = int(batch.queries["serial_position"][2 * pair, slot])
        different += rebindings(treated, at) != rebindings(other, at)
    assert different <= 5  # of 1,000; 7 in 10,000 have no unasked key that was bound before


def test_what_precedes_a_first_binding_is_the_twins():
    task = make_task("key_overwrite", lags=11, length=70, ask="first", control="one")
    batch, pairs = relieved(task)
    for pair, slot, treated, other in pairs:
        at = int(batch.queries["serial_position"][2 * pair, slot])
        assert treated[: at + 1] == other[: at + 1] and treated[at + 1 :] != other[at + 1 :]


def test_the_treated_twin_is_that_of_equal_load():
    fields = {"keys": 8, "versions": 8, "lags": 15, **ROOM}
    one, equal = (make_task("key_overwrite", control=c, **fields).sample(torch.arange(20)) for c in ("one", "equal"))
    assert torch.equal(one.inputs[::2], equal.inputs[::2]) and not torch.equal(one.inputs, equal.inputs)


def test_a_tie_goes_to_the_key_drawn_first(monkeypatch):
    given = []

    def spy(self, random, keys, slots, target, giving, real=KeyOverwrite._substitutes):
        counts = (slots >= 0).sum(-1)
        given.extend(zip(random.twin.tolist(), counts.tolist(), giving.tolist(), strict=True))
        return real(self, random, keys, slots, target, giving)

    monkeypatch.setattr(KeyOverwrite, "_substitutes", spy)
    make_task("key_overwrite", keys=6, versions=3, lags=10, control="one", **ROOM).sample(torch.arange(40))
    assert len(given) == 40
    for twin, counts, giving in given:
        assert [j for j, gives in enumerate(giving) if gives] == ([counts.index(3)] if twin else [])


def test_either_of_two_most_rebound_keys_is_relieved_as_often_and_every_unasked_key_bound_before_serves_as_often():
    """Six keys have 1, 2 and 3 versions, twice each. Being drawn first says nothing about being asked first."""
    task = make_task("key_overwrite", keys=6, versions=3, lags=10, control="one", **ROOM)
    batch, pairs = relieved(task, 1200)
    most = (batch.queries["paired_versions"][::2] == 3).tolist()
    assert all(sum(row) == 2 for row in most)
    follows(torch.tensor([most[pair][slot + 1 :].count(True) for pair, slot, *_ in pairs]), [1.0, 1.0])
    taker: dict[int, list[int]] = {}  # by the number of unasked keys bound before: which of them
    for pair, slot, treated, other in pairs:
        once = dict.fromkeys(k for k, _ in treated)  # in order of their first binding
        took = next(b[0] for a, b in zip(treated, other, strict=True) if a != b)
        asked = set(batch.queries["key"][2 * pair].tolist())
        at = int(batch.queries["serial_position"][2 * pair, slot])
        before = len({k for k, _ in treated[:at]} - asked)
        taker.setdefault(before, []).append([k for k in once if k not in asked].index(took))
    unasked = int(batch.queries["load"][0, 0]) - 12  # slots that 12 bindings of asked keys leave
    assert set(taker) <= set(range(unasked + 1)) and len(taker[3]) > 100
    for before, which in taker.items():
        if before != 1:
            follows(torch.tensor(which), [1.0] * (before or unasked))


def test_an_example_of_one_relieved_key_does_not_depend_on_its_batch():
    task = make_task("key_overwrite", lags=11, length=70, control="one")
    whole = task.sample(torch.arange(64), split="test", seed=3)
    pieces = [task.sample(torch.tensor([i]), split="test", seed=3) for i in (40, 41, 7)]
    assert torch.equal(torch.cat([piece.inputs for piece in pieces]), whole.inputs[[40, 41, 7]])
    for name, column in whole.queries.items():
        assert torch.equal(torch.cat([piece.queries[name] for piece in pieces]), column[[40, 41, 7]]), name


def test_where_no_key_is_bound_twice_none_is_relieved():
    batch = make_task("key_overwrite", versions=1, lags=6, control="one").sample(torch.arange(40))
    assert (batch.queries["condition"] == 0).all() and torch.equal(batch.inputs[::2], batch.inputs[1::2])


def test_one_relieved_key_needs_an_unasked_key():
    with pytest.raises(BadRequest, match=r"control=one needs .*lags=16.*raise lags to 17 or more or set control=true"):
        make_task("key_overwrite", keys=16, versions=8, lags=16, control="one", **ROOM)
    batch, pairs = relieved(make_task("key_overwrite", keys=16, versions=8, lags=17, control="one", **ROOM), 20)
    assert len(pairs) == 20 and batch.queries["load"][0, 0] == 73
    with pytest.raises(BadRequest, match=r"key_vocabulary=10.*control=one need 11"):
        make_task("key_overwrite", lags=11, length=70, key_vocabulary=10, control="one")


@pytest.mark.parametrize(
    "fields, fingerprint",
    [
        ({"lags": 11, "length": 70, "control": "equal"}, "ddb64a8c016f9fa5"),
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
