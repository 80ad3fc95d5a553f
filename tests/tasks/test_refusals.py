"""Impossible settings are refused in one line that says what was asked, what fits and what to change."""

import pytest
import torch

from mnemolab.errors import BadRequest
from mnemolab.tasks import make_task

REFUSED = [
    # task, fields, words that the message must hold, fields that repair it
    ("associative_recall", {"pairs": 32}, ("length=48", "96"), {"length": 96}),
    (
        "associative_recall",
        {"pairs": 65, "length": 400},
        ("key_vocabulary=64", "65"),
        {"key_vocabulary": 65, "value_vocabulary": 65},
    ),
    ("associative_recall", {"fan": 2, "repeats": 1}, ("fan=2", "repeats=1"), {"repeats": 0}),
    ("associative_recall", {"fan": 2, "layout": "mqar"}, ("fan=2", "layout=context"), {"layout": "context"}),
    ("associative_recall", {"layout": "interleaved", "lags": 9}, ("lags=9", "pairs=8"), {"lags": 8}),
    ("associative_recall", {"queries": 9}, ("queries=9", "8"), {"queries": 8}),
    ("associative_recall", {"repeats": 9, "length": 128}, ("repeats=9", "pairs=8", "28"), {"pairs": 28}),
    ("associative_recall", {"repeats": 1, "spacings": 8}, ("spacings=8", "pairs=8", "16"), {"pairs": 16, "length": 96}),
    ("key_overwrite", {"versions": 10}, ("length=64", "76"), {"length": 76}),
    ("key_overwrite", {"lags": 5}, ("lags=5", "keys=6"), {"lags": 6}),
    ("key_overwrite", {"value_vocabulary": 10}, ("value_vocabulary=10", "17"), {"value_vocabulary": 17}),
    ("key_overwrite", {"versions": 0}, ("versions=0", "1"), {"versions": 1}),
    ("key_overwrite", {"ask": "lastest"}, ("ask", "latest"), {"ask": "latest"}),
    ("topic_switch", {"condition": "return"}, ("blocks=2", "3"), {"blocks": 3, "length": 128}),
    ("topic_switch", {"pairs": 20, "length": 400}, ("topic_values=32", "40"), {"topic_values": 40}),
    ("topic_switch", {"ask": "relevant"}, ("ask=relevant", "rebind"), {"rebind": False}),
    ("topic_switch", {"length": 30}, ("length=30", "42"), {"length": 42}),
    ("random_copy", {"items": 70, "length": 200}, ("alphabet=64", "70", "replacement"), {"replacement": True}),
    ("random_copy", {"length": 20}, ("length=20", "32"), {"length": 32}),
    ("random_copy", {"mode": "prefix", "queries": 9}, ("queries=9", "8"), {"queries": 8}),
    ("random_copy", {"least": 17}, ("least=17", "items=16"), {"least": 16}),
    (
        "random_copy",
        {"mode": "prefix", "replacement": True, "queries": 1, "alphabet": 26},
        ("key_tokens=1", "26"),
        {"key_tokens": 2},
    ),
    ("needle", {"queries": 2}, ("queries=2", "keys=1"), {"keys": 2}),
    ("needle", {"haystack": "file"}, ("path=''", "haystack=file"), {"haystack": "noise"}),
    ("needle", {"keys": 60}, ("length=128", "raise length"), {"length": 200}),
    ("selective_retention", {"span": 7}, ("span=7", "8"), {"span": 8}),
    ("record_update", {"lags": 9}, ("lags=9", "10"), {"lags": 10}),
    ("record_update", {"length": 60}, ("length=60", "126"), {"length": 126}),
    ("stack", {"pushes": 8}, ("length=72", "128"), {"length": 128}),
    ("stack", {"stacks": 17, "pushes": 1}, ("key_vocabulary=16", "17"), {"key_vocabulary": 17}),
    ("directed_forgetting", {"pairs": 10}, ("length=56", "61", "9"), {"length": 61}),
]


@pytest.mark.parametrize("name, fields, words, repair", REFUSED)
def test_the_refusal_says_what_would_do(name, fields, words, repair):
    with pytest.raises(BadRequest) as caught:
        make_task(name, **fields)
    message = str(caught.value)
    # types are checked by another library, whose message the command line puts on one line
    assert "\n" not in message or fields == {"ask": "lastest"}
    for word in words:
        assert word in message, message
    make_task(name, **{**fields, **repair}).sample(torch.arange(4))


def test_unknown_names_and_splits():
    with pytest.raises(BadRequest, match="did you mean 'key_overwrite'"):
        make_task("key_overwrit")
    with pytest.raises(BadRequest, match="did you mean 'versions'"):
        make_task("key_overwrite", version=3)
    with pytest.raises(BadRequest, match="validation"):
        make_task("key_overwrite").sample(torch.arange(2), split="dev")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "indices, words",
    [
        (torch.arange(4.0), "float32"),
        (torch.tensor([True, False]), "bool"),
        (torch.tensor([3, -1]), "-1"),
        (torch.arange(4).view(2, 2), r"\(2, 2\)"),
        (torch.tensor([2**48]), "2\\*\\*48"),
    ],
)
def test_indices_that_number_no_examples(indices, words):
    with pytest.raises(BadRequest, match=f"indices.*{words}"):
        make_task("key_overwrite").sample(indices)


def test_no_example_is_a_batch_of_none(task):
    batch = task.sample(torch.arange(0))
    assert batch.inputs.shape == batch.targets.shape == (0, task.length)
    one = task.sample(torch.arange(1))
    for name, column in one.queries.items():
        assert batch.queries[name].shape == (0, *column.shape[1:]) and batch.queries[name].dtype == torch.int64, name
    assert task.chance(batch).shape == batch.queries["position"].shape


def test_the_size_of_a_small_space_is_not_rounded_up_to_the_least():
    task = make_task("needle", key_vocabulary=63)
    with pytest.raises(BadRequest, match=r"2\*\*11\.9.*least 2\*\*12"):
        task.sample(torch.arange(2))


def test_a_text_that_cannot_be_read(tmp_path):
    broken, short = tmp_path / "broken.txt", tmp_path / "short.txt"
    broken.write_bytes(b"abc\xff\xfe" * 100)
    short.write_text("short")
    for path, words in (
        (tmp_path / "none.txt", "No such file"),
        (broken, "byte 3 is not UTF-8"),
        (short, "5 bytes.* needs 992"),
    ):
        with pytest.raises(BadRequest, match=words):
            make_task("needle", haystack="file", path=str(path))


def test_small_spaces_are_split_by_content_or_refused():
    task = make_task("random_copy", alphabet=16, items=6, length=12)
    assert task.bits < 80
    seen = {split: set() for split in ("train", "validation", "test")}
    for split, rows in seen.items():
        batch = task.sample(torch.arange(3000), split=split)  # type: ignore[arg-type]
        assert torch.equal(task.solve(batch.inputs), batch.targets)
        rows |= {tuple(row) for row in batch.inputs.tolist()}
    assert not (seen["train"] & seen["test"] or seen["train"] & seen["validation"] or seen["validation"] & seen["test"])
    with pytest.raises(BadRequest, match="too few to share among three splits"):
        make_task("random_copy", alphabet=4, items=2, length=8).sample(torch.arange(4))


@pytest.mark.parametrize(
    "name, fields",
    [
        ("key_overwrite", {"keys": 2, "versions": 3, "lags": 3, "ask": "first"}),
        ("topic_switch", {"pairs": 2, "rebind": False, "ask": "all"}),
        ("directed_forgetting", {"pairs": 2, "forgotten": "unasked"}),
    ],
)
def test_a_group_in_a_small_space_stays_together(name, fields):
    task = make_task(name, **fields)
    assert task.bits < 80 and task.group > 1
    groups = {}
    for split in ("train", "validation", "test"):
        batch = task.sample(torch.arange(600), split=split)  # type: ignore[arg-type]
        assert torch.equal(task.solve(batch.inputs), batch.targets)
        groups[split] = {tuple(row) for row in batch.inputs.tolist()}
        signature = task.signature(batch)
        for twin in range(1, task.group):
            assert torch.equal(signature[:: task.group], signature[twin :: task.group])
    assert not (groups["train"] & groups["test"] or groups["validation"] & groups["test"])
