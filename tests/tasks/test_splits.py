"""Where the space of examples is small, no content is in two splits: writes and queries alike, whatever the filler."""

import pytest
import torch

from mnemolab.tasks import make_task
from mnemolab.tasks.base import SPLITS
from mnemolab.tasks.random import Random
from mnemolab.tasks.splits import content
from mnemolab.tasks.vocabulary import Vocabulary

# settings whose contents are so few that 3000 examples of each split would share many
SMALL = [
    ("associative_recall", {"pairs": 2, "key_vocabulary": 8, "value_vocabulary": 10, "length": 12}),
    ("associative_recall", {"pairs": 2, "key_vocabulary": 8, "value_vocabulary": 10, "layout": "mqar", "length": 16}),
    ("key_overwrite", {"keys": 2, "versions": 1, "lags": 2, "key_vocabulary": 9, "value_vocabulary": 9, "length": 12}),
    ("topic_switch", {"pairs": 2, "rebind": False, "key_vocabulary": 8, "topic_values": 9, "length": 24}),
    ("random_copy", {"alphabet": 16, "items": 4, "length": 12}),
    ("random_copy", {"alphabet": 16, "items": 4, "mode": "selective", "least": 4, "length": 16}),
    ("needle", {}),
    ("needle", {"haystack": "random", "length": 40}),
    ("needle", {"haystack": "markov", "length": 40}),
    (
        "selective_retention",
        {
            "persistent": 1,
            "volatile": 1,
            "rewrites": 2,
            "span": 2,
            "key_vocabulary": 6,
            "value_vocabulary": 9,
            "length": 16,
        },
    ),
    (
        "record_update",
        {"entities": 1, "updates": 1, "lags": 5, "ask": "current", "key_vocabulary": 6, "attribute_values": 8},
    ),
    ("stack", {"stacks": 1, "pushes": 2, "value_vocabulary": 80, "length": 16}),
    ("directed_forgetting", {"pairs": 1, "key_vocabulary": 10, "value_vocabulary": 10, "length": 16}),
]


def words(task, batch):
    """The content of each example: its tokens without filler, read one by one."""
    hay = task.vocabulary["bytes"] or task.vocabulary.filler
    return [tuple(token for token in row if token not in hay) for row in batch.inputs.tolist()]


@pytest.mark.parametrize("name, fields", SMALL, ids=[f"{name}-{j}" for j, (name, _) in enumerate(SMALL)])
def test_no_content_is_in_two_splits(name, fields):
    task = make_task(name, **fields)
    assert task.bits < 80
    found = {}
    for split in SPLITS:
        batch = task.sample(torch.arange(3000), split=split)
        assert torch.equal(task.solve(batch.inputs), batch.targets)
        found[split] = set(words(task, batch))
    assert not found["train"] & found["validation"]
    assert not found["train"] & found["test"]
    assert not found["validation"] & found["test"]


def test_content_leaves_filler_out_and_keeps_the_order():
    vocabulary = Vocabulary(special=("none",), keys=4, filler=3, values=5)
    filler = vocabulary.filler.start
    tokens = torch.tensor([[filler, 9, filler + 2, 1, 3], [9, 1, filler + 1, filler, 3], [filler] * 5])
    assert content(tokens, vocabulary).tolist() == [[9, 1, 3, -1, -1], [9, 1, 3, -1, -1], [-1] * 5]


# settings whose contents can be counted
TINY = [
    ("associative_recall", {"pairs": 2, "key_vocabulary": 3, "value_vocabulary": 4, "length": 12}),
    ("associative_recall", {"pairs": 2, "pool": 2, "key_vocabulary": 3, "value_vocabulary": 4, "length": 12}),
    ("key_overwrite", {"keys": 2, "versions": 1, "lags": 2, "key_vocabulary": 5, "value_vocabulary": 4, "length": 12}),
    (
        "key_overwrite",
        {"keys": 1, "versions": 2, "lags": 1, "key_vocabulary": 5, "value_vocabulary": 4, "ask": "previous"},
    ),
    ("topic_switch", {"pairs": 2, "rebind": False, "key_vocabulary": 4, "topics": 2, "topic_values": 4, "length": 24}),
    ("topic_switch", {"pairs": 3, "key_vocabulary": 3, "topics": 2, "topic_values": 6, "length": 24}),
    ("random_copy", {"alphabet": 5, "items": 3, "length": 12}),
    ("random_copy", {"alphabet": 4, "items": 3, "least": 2, "replacement": True, "length": 12}),
    ("needle", {"key_vocabulary": 5, "value_vocabulary": 6, "length": 12, "haystack": "random"}),
    (
        "selective_retention",
        {"persistent": 1, "volatile": 1, "rewrites": 2, "span": 2, "key_vocabulary": 3, "value_vocabulary": 4},
    ),
    ("stack", {"stacks": 1, "pushes": 2, "value_vocabulary": 6, "length": 16}),
    ("directed_forgetting", {"pairs": 1, "key_vocabulary": 4, "value_vocabulary": 4, "length": 16}),
    ("directed_forgetting", {"pairs": 2, "key_vocabulary": 4, "value_vocabulary": 4, "length": 16}),
]


@pytest.mark.parametrize("name, fields", TINY, ids=[f"{name}-{j}" for j, (name, _) in enumerate(TINY)])
def test_the_bits_are_a_lower_bound(name, fields):
    """Every signature and content of a tiny setting turns up in many draws: there are at least as many as the bits say."""
    task = make_task(name, **fields)
    batch = task.draw(Random(name, "train", 0, torch.arange(30_000), group=task.group))
    signatures = {tuple(row) for row in task.signature(batch).tolist()}
    assert len(signatures) >= 2**task.signature_bits * 0.999
    assert len(set(words(task, batch))) >= 2**task.bits * 0.999
