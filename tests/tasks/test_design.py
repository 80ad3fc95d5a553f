"""Factors are sampled by design: stated histograms, and factors crossed with each other (chi-square)."""

from dataclasses import fields

import pytest
import torch
from scipy import stats

from mnemolab.tasks import TASKS, make_task
from mnemolab.tasks.random import Random
from mnemolab.tasks.schedule import balanced_counts, schedule, total_rebindings
from tests.tasks.chi_square import LIMIT, independent


def column(batch, name, where=None):
    used = batch.queries["position"] >= 0
    return batch.queries[name][used if where is None else used & where]


def uniform(values, size):
    # queries of one example have different lags: counts vary less than independent ones, so the test is conservative
    counts = values.bincount(minlength=size)
    assert len(counts) == size, counts
    assert size == 1 or stats.chisquare(counts).pvalue > LIMIT, counts


def test_key_overwrite_crosses_lag_and_version():
    task = make_task("key_overwrite", keys=6, versions=4, lags=8, control=False)
    batch = task.sample(torch.arange(6000))
    uniform(column(batch, "lag_writes"), 8)
    uniform(column(batch, "paired_versions") - 1, 4)
    independent(column(batch, "lag_writes"), column(batch, "paired_versions"))
    independent(column(batch, "query_index"), column(batch, "lag_writes"))
    assert (column(batch, "load") == task.writes).all()
    # tokens and writes part: lags in tokens vary at a fixed lag in writes
    assert column(batch, "lag_tokens", batch.queries["lag_writes"] == 2).unique().numel() > 10


@pytest.mark.parametrize("ask", ["latest", "first", "previous", "mixed"])
@pytest.mark.parametrize("keys, versions", [(6, 4), (5, 3), (4, 5)])
def test_the_asked_binding_has_a_lag_crossed_with_versions(ask, keys, versions):
    task = make_task("key_overwrite", ask=ask, keys=keys, versions=versions, lags=8, length=90, control=False)
    q = task.sample(torch.arange(6000)).queries
    known = q["lag_writes"] >= 0
    lag = q["lag_writes"][known] - task.least_lag
    uniform(lag, 8)
    independent(lag, q["versions"][known] - 1)
    if ask == "mixed":
        independent(lag, q["ask"][known])
        independent(q["ask"].flatten(), q["versions"].flatten() - 1)
    assert (q["serial_position"][known] + q["lag_writes"][known] + 1 == task.writes).all()
    assert task.least_lag == 0 or ask != "latest"


@pytest.mark.parametrize("ask", ["latest", "first", "previous", "mixed"])
def test_controls_match_their_twins(ask):
    task = make_task("key_overwrite", ask=ask, length=70)
    batch = task.sample(torch.arange(2000))
    q = batch.queries
    for name in ("position", "key", "target", "lag_tokens", "lag_writes", "serial_position", "paired_versions", "ask"):
        assert torch.equal(q[name][::2], q[name][1::2]), name
    control = q["condition"] == task.conditions.index("control")
    assert not control[::2].any() and (q["versions"][control] <= 2).all()
    assert (q["version"][control] == 0).all() and (q["gap_writes"][control] == -1).all()
    most = 2 if ask in ("previous", "mixed") else 1
    assert (q["versions"][1::2] <= most).all() and (q["versions"][::2] == q["paired_versions"][::2]).all()
    if ask == "mixed":
        uniform(column(batch, "ask"), 3)


def test_gaps_are_near_or_far_on_request():
    gap = {}
    for kind in ("near", "any", "far"):
        batch = make_task("key_overwrite", gap=kind, lags=12, length=64, control=False).sample(torch.arange(1000))
        rebound = batch.queries["version"] > 0
        gap[kind] = column(batch, "gap_writes", rebound).double().mean().item()
        uniform(column(batch, "lag_writes"), 12)
    assert gap["near"] < 0.7 * gap["any"] < 0.7 * gap["far"]


@pytest.mark.parametrize("keys, most", [(6, 4), (5, 4), (7, 3), (3, 5), (1, 1), (9, 2)])
def test_counts_are_balanced(keys, most):
    counts = balanced_counts(Random("t", "train", 0, torch.arange(8000)), keys, most)
    assert counts.min() >= 1 and counts.max() <= most
    whole = keys // most
    assert all((counts == v).sum(1).min() >= whole for v in range(1, most + 1))
    uniform(counts.flatten() - 1, most)
    low, high = total_rebindings(keys, most)
    total = (counts - 1).sum(1)
    assert total.min() >= low and total.max() <= high
    if most % 2 == 0 and keys % 2 == 0:
        assert total.min() == total.max()  # the same number of writes in every example


def test_a_schedule_is_one_binding_a_slot_in_order():
    random = Random("t", "train", 1, torch.arange(500))
    counts = balanced_counts(random, 9, 4)
    early = total_rebindings(9, 4)[1]
    for gap in ("any", "near", "far", "mixed"):
        slots = schedule(random, counts, 4, early, 14, gap)
        assert ((slots >= 0).sum(-1) == counts).all()
        for row in slots.tolist():
            used = [slot for key in row for slot in key if slot >= 0]
            assert len(set(used)) == len(used) and max(used) < early + 14
            for key in row:
                held = [slot for slot in key if slot >= 0]
                assert held == sorted(held) and held[-1] >= early and key[len(held) :] == [-1] * (4 - len(held))


@pytest.mark.parametrize("gap", ["any", "near", "far", "mixed"])
def test_a_schedule_keeps_the_binding_asked_in_its_window(gap):
    random = Random("t", "train", 2, torch.arange(500))
    counts = balanced_counts(random, 9, 4)
    asked = random.below("asked", 9, bound=4) % counts
    before, after = asked, counts - 1 - asked
    early, late = int(before.sum(1).max()), int(after.sum(1).max())
    slots = schedule(random, counts, 4, early, 14, gap, asked, late)
    assert ((slots >= 0).sum(-1) == counts).all() and int(slots.max()) < early + 14 + late
    for row, which in zip(slots.tolist(), asked.tolist(), strict=True):
        used = [slot for key in row for slot in key if slot >= 0]
        assert len(set(used)) == len(used)
        for key, number in zip(row, which, strict=True):
            held = [slot for slot in key if slot >= 0]
            assert held == sorted(held) and early <= held[number] < early + 14


def test_recall_asks_each_binding_once_at_a_uniform_lag():
    batch = make_task("associative_recall", pairs=8).sample(torch.arange(4000))
    uniform(column(batch, "lag_writes"), 8)
    independent(column(batch, "lag_writes"), column(batch, "query_index"))
    fan = make_task("associative_recall", pairs=12, fan=3, length=64).sample(torch.arange(4000))
    assert set(column(fan, "fan").tolist()) == {1, 2, 3}
    independent(column(fan, "fan"), column(fan, "lag_writes"))


@pytest.mark.parametrize("pairs, repeats, spacings", [(13, 4, 4), (20, 3, 9), (8, 2, 4)])
def test_spacing_is_balanced_and_crossed_with_the_lag(pairs, repeats, spacings):
    """A pair written twice at spacing s and asked at lag l: s takes its levels equally often, whatever l is."""
    task = make_task("associative_recall", pairs=pairs, repeats=repeats, spacings=spacings, length=96)
    batch = task.sample(torch.arange(6000))
    twice = column(batch, "spacing") > 0
    assert int(twice.sum()) == 6000 * repeats
    spacing, lag = column(batch, "spacing")[twice], column(batch, "lag_writes")[twice]
    levels = [2**j for j in range(8) if 2**j <= spacings]
    level = torch.tensor([levels.index(s) for s in spacing.tolist()])
    uniform(level, len(levels))
    uniform(lag, pairs + repeats - levels[-1])
    independent(level, lag)
    independent(level, column(batch, "query_index")[twice])
    # keys written once, the controls, are asked at the same lags, though not each as often
    once = column(batch, "lag_writes")[~twice].bincount(minlength=pairs + repeats)
    assert once.min() > 100


@pytest.mark.parametrize("fields, axis", [({"repeats": 2, "pairs": 12}, "spacing"), ({"fan": 3, "pairs": 12}, "fan")])
def test_families_are_not_tied_to_what_else_sets_keys_apart(fields, axis):
    task = make_task("associative_recall", family=3, length=96, **fields)
    batch = task.sample(torch.arange(4000))
    first = batch.queries["ordinal"] == (0 if axis == "fan" else batch.queries["ordinal"])  # one query a key
    assert set(column(batch, "neighbours").tolist()) == {0, 1, 2}
    independent(column(batch, "neighbours", first), column(batch, axis, first))


@pytest.mark.parametrize("law", ["uniform", "log"])
def test_interleaved_recall_draws_the_lag_apart_from_the_serial_position(law):
    batch = make_task("associative_recall", pairs=12, lags=5, layout="interleaved", lag_law=law, length=64).sample(
        torch.arange(4000)
    )
    lag, serial = column(batch, "lag_writes"), column(batch, "serial_position")
    weights = [1 / (j + 1) if law == "log" else 1.0 for j in range(5)]
    expected = [weight / sum(weights) * len(lag) for weight in weights]
    assert stats.chisquare(lag.bincount(minlength=5), expected).pvalue > LIMIT
    independent(lag, serial)


def test_selective_retention_compares_classes_at_equal_lag():
    task = make_task("selective_retention")
    batch = task.sample(torch.arange(4000))
    for code in (0, 1):
        uniform(column(batch, "lag_writes", batch.queries["condition"] == code), task.span)
    independent(column(batch, "lag_writes"), column(batch, "condition"))


def test_needles_lie_at_uniform_depths():
    task = make_task("needle", keys=3, queries=2, depths=5)
    batch = task.sample(torch.arange(4000))
    uniform(column(batch, "depth") // 25, 5)
    # the lag that a depth means: needles of the haystack after it
    shallow, deep = (column(batch, "lag_tokens", batch.queries["depth"] == d).double().mean() for d in (0, 100))
    assert shallow - deep > 0.8 * (task.length - 20)


def test_topic_conditions_share_the_last_block_and_the_queries():
    task = make_task("topic_switch", blocks=3, length=96)
    assert task.group == 4
    batch = task.sample(torch.arange(400))
    q = batch.queries
    for name in ("position", "key", "target", "lag_tokens", "lag_writes"):
        for twin in (1, 2, 3):
            assert torch.equal(q[name][::4], q[name][twin::4]), name
    assert torch.equal(q["condition"][:4, 0], torch.arange(4))
    values = task.vocabulary.values
    for row in batch.inputs.tolist():
        topics = [(t - values.start) // task.topic_values for t in row if t in values]
        assert len(set(topics)) <= 2
    switch, placebo = (batch.inputs == task.vocabulary.token(name) for name in ("switch", "placebo"))
    assert switch.sum(1).tolist() == [0, 0, 1, 2] * 100 and placebo.sum(1).tolist() == [1, 3, 2, 1] * 100


def test_directed_forgetting_twins_differ_in_one_token():
    batch = make_task("directed_forgetting").sample(torch.arange(200))
    keep, forget = batch.inputs[::2], batch.inputs[1::2]
    assert ((keep != forget).sum(1) == 1).all()
    assert (batch.targets[::2] != batch.targets[1::2]).any()


def test_records_change_at_their_attributes_rates():
    task = make_task("record_update", updates=4, length=160, attribute_values=40)
    q = task.sample(torch.arange(500)).queries
    first = task.vocabulary["attributes"].start
    current = q["condition"] < 2
    for attribute in range(5):
        mine = (q["attribute"] == first + attribute) & current
        assert (q["version"][mine] == attribute).all() and mine.any()
    # last bindings, which current and compare ask: the lag says nothing about the attribute
    batch = make_task("record_update", ask="current").sample(torch.arange(3000))
    uniform(column(batch, "lag_writes"), 12)
    independent(column(batch, "lag_writes"), column(batch, "attribute") - first)
    # nor does it where both are asked, about which of the two is
    mixed = make_task("record_update").sample(torch.arange(3000))
    changed = column(mixed, "condition") > 0
    independent(column(mixed, "lag_writes")[changed], column(mixed, "condition")[changed] - 1)
    higher = q["target"][q["condition"] == 3] == task.vocabulary.token("higher")
    assert stats.binomtest(int(higher.sum()), len(higher)).pvalue > LIMIT


def test_stacks_use_their_depth():
    q = make_task("stack", depth=3).sample(torch.arange(500)).queries
    assert set(q["height"].unique().tolist()) == {1, 2, 3}
    flat = make_task("stack", depth=1).sample(torch.arange(50)).queries
    assert (flat["height"] == 1).all()


@pytest.mark.parametrize("name", list(TASKS))
def test_every_difficulty_field_changes_the_data(name):
    """Each field, set apart from its default (with what it needs), gives other examples."""
    base = make_task(name)
    changes = CHANGES[name]
    assert set(changes) == {f.name for f in fields(base)} - {"path"}, "a field without a test"
    for field, (value, needs) in changes.items():
        before = make_task(name, **needs)
        after = make_task(name, **{**needs, field: value})
        assert before.fingerprint() != after.fingerprint(), field
        a, b = (task.sample(torch.arange(64)) for task in (before, after))
        assert a.inputs.shape != b.inputs.shape or not torch.equal(a.inputs, b.inputs), field


WIDE = {"length": 128}
# field -> (another value, fields that it needs)
CHANGES = {
    "associative_recall": {
        "length": (64, {}),
        "pairs": (6, {}),
        "layout": ("mqar", {}),
        "queries": (3, {}),
        "unknown": (2, {}),
        "fan": (2, {}),
        "repeats": (2, {}),
        "spacings": (2, {"repeats": 1}),
        "pool": (4, {}),
        "family": (2, {}),
        "lags": (6, {"layout": "interleaved"}),
        "lag_law": ("log", {"layout": "interleaved"}),
        "gap_power": (0.9, {"layout": "mqar"}),
        "key_vocabulary": (100, {}),
        "value_vocabulary": (100, {}),
        "filler_vocabulary": (20, {}),
    },
    "key_overwrite": {
        "length": (60, {}),
        "keys": (5, {}),
        "versions": (3, {}),
        "lags": (7, {}),
        "gap": ("near", {}),
        "ask": ("first", WIDE),
        "control": (False, {}),
        "key_vocabulary": (100, {}),
        "value_vocabulary": (100, {}),
        "filler_vocabulary": (20, {}),
    },
    "topic_switch": {
        "length": (100, {}),
        "pairs": (7, {}),
        "blocks": (3, WIDE),
        "topics": (5, {}),
        "marker": ("topic", {}),
        "condition": ("shift", {}),
        "rebind": (False, {}),
        "ask": ("all", WIDE),
        "key_vocabulary": (100, {}),
        "topic_values": (40, {}),
        "filler_vocabulary": (20, {}),
    },
    "random_copy": {
        "length": (64, {}),
        "items": (15, {}),
        "mode": ("reverse", {"mode": "copy", "forced": True}),
        "alphabet": (70, {}),
        "replacement": (True, {}),
        "forced": (True, {}),
        "least": (4, {}),
        "key_tokens": (2, {"mode": "prefix"}),
        "queries": (3, {"mode": "prefix"}),
        "filler_vocabulary": (20, {}),
    },
    "needle": {
        "length": (100, {}),
        "keys": (3, {}),
        "values": (2, {}),
        "queries": (2, {"keys": 2}),
        "value_tokens": (2, {}),
        "depths": (3, {}),
        "haystack": ("markov", {}),
        "key_vocabulary": (100, {}),
        "value_vocabulary": (100, {}),
        "filler_vocabulary": (30, {}),
    },
    "selective_retention": {
        "length": (80, {}),
        "persistent": (5, WIDE),
        "volatile": (5, WIDE),
        "rewrites": (3, {}),
        "span": (12, {}),
        "gap": ("near", {}),
        "key_vocabulary": (100, {}),
        "value_vocabulary": (100, {}),
        "filler_vocabulary": (20, {}),
    },
    "record_update": {
        "length": (140, {}),
        "entities": (1, {}),
        "updates": (1, {}),
        "lags": (11, {}),
        "ask": ("current", {}),
        "key_vocabulary": (100, {}),
        "attribute_values": (40, {}),
        "filler_vocabulary": (20, {}),
    },
    "stack": {
        "length": (80, {}),
        "stacks": (3, {}),
        "pushes": (3, {}),
        "depth": (2, {}),
        "key_vocabulary": (20, {}),
        "value_vocabulary": (100, {}),
        "filler_vocabulary": (20, {}),
    },
    "directed_forgetting": {
        "length": (60, {}),
        "pairs": (7, {}),
        "condition": ("forget", {}),
        "forgotten": ("unasked", {}),
        "key_vocabulary": (100, {}),
        "value_vocabulary": (100, {}),
        "filler_vocabulary": (20, {}),
    },
}
