"""Any size that a task accepts gives right examples: sizes drawn by hypothesis at the least length that fits."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemolab.errors import BadRequest
from mnemolab.tasks import make_task

sizes = st.integers(1, 9)


def fitted(name, spare, **fields):
    """The task at the length that its refusal of a short one names, plus `spare`."""
    wide = {"key_vocabulary": 97, "length": 8}
    try:
        return make_task(name, **{**wide, **fields})
    except BadRequest as error:
        needed = re.search(r"raise length to (\d+)", str(error))
        assert needed, error
        return make_task(name, **{**wide, **fields, "length": int(needed[1]) + spare})


def holds(task):
    if task.bits < 80 and task.signature_bits < 12:
        with pytest.raises(BadRequest, match="too few to share"):
            task.sample(torch.arange(4))
        return
    batch = task.sample(torch.arange(37), split="test", seed=2)
    assert torch.equal(task.solve(batch.inputs), batch.targets)
    q = batch.queries
    used = q["position"] >= 0
    known = used & (q["lag_writes"] >= 0)
    assert (q["lag_writes"] + q["serial_position"] + 1 == q["load"])[known].all()
    assert ((q["stale"] != q["target"][..., None]) | ~used[..., None]).all()


@settings(max_examples=20)
@given(
    sizes, sizes, sizes, st.sampled_from(["latest", "first", "previous", "mixed"]), st.booleans(), st.integers(0, 40)
)
def test_key_overwrite(keys, versions, more, ask, control, spare):
    gap = ("any", "near", "far", "mixed")[(keys + versions) % 4]
    fields = {"keys": keys, "versions": versions, "lags": keys + more - 1, "ask": ask, "control": control, "gap": gap}
    holds(fitted("key_overwrite", spare, value_vocabulary=701, filler_vocabulary=5, **fields))


@settings(max_examples=20)
@given(
    st.integers(2, 20),
    st.integers(0, 5),
    sizes,
    st.sampled_from(["fan", "repeats", "pool", "family", "mqar", "interleaved"]),
)
def test_associative_recall(pairs, unknown, amount, variation):
    fields = {"pairs": pairs, "unknown": unknown, "value_vocabulary": 701, "lags": min(amount, pairs)}
    if variation in ("mqar", "interleaved"):
        fields["layout"] = variation
    else:
        fields[variation] = amount
        if variation == "repeats":
            spacings = 1 + unknown
            fields |= {"spacings": spacings, "pairs": max(3 * amount - 3 + spacings, 2 * spacings) + pairs}
    holds(fitted("associative_recall", 7, **fields))


@settings(max_examples=20)
@given(st.integers(3, 8), st.integers(2, 5), st.booleans(), st.sampled_from(["current", "all"]), st.integers(0, 30))
def test_topic_switch(pairs, blocks, rebind, ask, spare):
    marker = ("none", "switch", "topic")[(pairs + blocks) % 3]
    task = fitted(
        "topic_switch", spare, pairs=pairs, blocks=blocks, rebind=rebind, ask=ask, marker=marker, topic_values=10007
    )
    holds(task)


@settings(max_examples=20)
@given(sizes, sizes, st.integers(2, 6), st.integers(0, 9), st.sampled_from(["any", "near", "far", "mixed"]))
def test_selective_retention(persistent, volatile, rewrites, more, gap):
    span = persistent + volatile + more
    holds(
        fitted(
            "selective_retention",
            3,
            persistent=persistent,
            volatile=volatile,
            rewrites=rewrites,
            span=span,
            gap=gap,
            value_vocabulary=701,
        )
    )


@settings(max_examples=20)
@given(sizes, st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.sampled_from(["noise", "random", "markov"]))
def test_needle(keys, values, queries, tokens, haystack):
    fields = {
        "keys": keys,
        "values": values,
        "queries": min(queries, keys),
        "value_tokens": tokens,
        "haystack": haystack,
    }
    task = make_task("needle", length=320, value_vocabulary=701, **fields)
    batch = task.sample(torch.arange(23))
    assert torch.equal(task.solve(batch.inputs), batch.targets)
    for row, position, lag, target in zip(
        batch.inputs.tolist(), *(batch.queries[c].tolist() for c in ("position", "lag_tokens", "target")), strict=True
    ):
        assert [row[p - d] for p, d in zip(position, lag, strict=True)] == target


@settings(max_examples=20)
@given(sizes, sizes, sizes, st.integers(0, 20))
def test_stack(stacks, pushes, depth, spare):
    holds(fitted("stack", spare, stacks=stacks, pushes=pushes, depth=depth, value_vocabulary=70_001))


@settings(max_examples=20)
@given(
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(0, 5),
    st.sampled_from(["current", "previous", "compare", "mixed"]),
)
def test_record_update(entities, updates, more, ask):
    fields = {"entities": entities, "updates": updates, "lags": 5 * entities + more, "ask": ask}
    holds(fitted("record_update", 4, attribute_values=300, **fields))


@settings(max_examples=20)
@given(
    st.integers(2, 30),
    st.sampled_from(["copy", "reverse", "selective"]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 9),
)
def test_random_copy(items, mode, replacement, forced, spare):
    least = max(2, items // 2)
    task = make_task(
        "random_copy",
        items=items,
        mode=mode,
        replacement=replacement,
        forced=forced,
        least=least,
        length=2 * items + spare,
        alphabet=101,
    )
    batch = task.sample(torch.arange(40), split="test")
    assert torch.equal(task.solve(batch.inputs), batch.targets)


@pytest.mark.parametrize(
    "name, fields",
    [
        ("stack", {"stacks": 300, "pushes": 120, "length": 144_000, "key_vocabulary": 300, "value_vocabulary": 40_000}),
        ("needle", {"keys": 1100, "values": 64, "length": 300_000, "key_vocabulary": 1100, "value_vocabulary": 80_000}),
        (
            "associative_recall",
            {"pairs": 2, "unknown": 70_000, "length": 70_100, "lags": 1, "layout": "interleaved", "key_vocabulary": 80_000},
        ),
        ("associative_recall", {"pairs": 9000, "layout": "mqar", "length": 60_000, "key_vocabulary": 9000, "value_vocabulary": 9000}),
    ],
)  # fmt: skip
def test_long_sequences_do_not_wrap(name, fields):
    task = make_task(name, **fields)
    batch = task.sample(torch.arange(1))
    assert torch.equal(task.solve(batch.inputs), batch.targets)


@pytest.mark.parametrize("mode", ["prefix", "suffix"])
def test_a_lookup_key_of_many_tokens_does_not_wrap(mode):
    """alphabet ** key_tokens is far beyond 64 bits; with it keys that differ once counted as one."""
    fields = {"alphabet": 1 << 16, "key_tokens": 8, "queries": 1, "items": 60, "length": 96, "replacement": True}
    task = make_task("random_copy", mode=mode, **fields)
    batch = task.sample(torch.arange(300))
    assert (batch.queries["position"] >= 0).all()  # of 60 random tokens no eight recur
    assert torch.equal(task.solve(batch.inputs), batch.targets)
