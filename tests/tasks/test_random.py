"""Philox against its published vectors, and the sampling built on it."""

from itertools import permutations

import pytest
import torch
from scipy import stats

from mnemolab.errors import BadRequest
from mnemolab.tasks.random import Random, philox, sort_distinct, thresholds

# Random123, kat_vectors: philox4x32 10 rounds; counter, key, result
VECTORS = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize("counter, key, result", VECTORS)
def test_philox_gives_the_published_words(counter, key, result):
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    words = philox(c0, c1, c2, c3, *key)
    assert tuple(int(word) for word in words) == result


def random(count=20_000, **changes):
    values = {"salt": "test", "split": "train", "seed": 0, "indices": torch.arange(count)} | changes
    return Random(**values)


def flat(counts):
    """p-value of equal expected counts."""
    return stats.chisquare(counts).pvalue


def test_words_are_a_function_of_salt_split_seed_index_and_stream():
    base = random(4).words("a", 8)
    assert torch.equal(base, random(4).words("a", 8))
    assert torch.equal(base[2:3], random(indices=torch.tensor([2])).words("a", 8))
    assert torch.equal(base[:, :3], random(4).words("a", 3))
    for change in (
        {"salt": "other"},
        {"split": "test"},
        {"seed": 1},
        {"attempt": 1},
        {"indices": torch.arange(4) + 2**33},
    ):
        assert not (base == random(4, **change).words("a", 8)).any()
    assert not (base == random(4).words("b", 8)).any()
    assert base.min() >= 0 and base.max() < 2**32


def test_a_group_shares_its_words():
    paired = random(6, group=3)
    assert paired.twin.tolist() == [0, 1, 2, 0, 1, 2]
    words = paired.words("a", 4)
    assert torch.equal(words[0], words[2]) and torch.equal(words[:1], random(1).words("a", 4))
    assert not torch.equal(words[0], words[3])


def test_below_and_noise_are_uniform():
    for draw in (random().below("a", 5, bound=7), random().noise("b", 5, 7)):
        assert draw.min() == 0 and draw.max() == 6
        assert flat(draw.flatten().bincount()) > 1e-4


def test_permutations_are_uniform():
    found = random().permutation("a", 4).tolist()
    counts = {order: 0 for order in permutations(range(4))}
    for order in found:
        counts[tuple(order)] += 1
    assert flat(list(counts.values())) > 1e-4


@pytest.mark.parametrize("size", [6, 40])  # by permutation, by repeated draws
def test_distinct_is_uniform_over_sequences(size):
    draw = random(60_000).distinct("a", 2, size)
    assert (draw[:, 0] != draw[:, 1]).all() and draw.max() < size
    code = draw[:, 0] * size + draw[:, 1]
    counts = code.bincount(minlength=size * size).reshape(size, size)
    assert flat(counts[~torch.eye(size, dtype=torch.bool)]) > 1e-4


def test_distinct_never_repeats_in_long_draws():
    for count, size in ((64, 512), (64, 4096), (200, 200), (1, 9), (100, 1000)):
        draw = random(500).distinct("a", count, size).sort(1).values
        assert (draw.diff(dim=1) > 0).all() and draw.min() >= 0 and draw.max() < size


def test_choice_follows_its_weights():
    weights = [1.0, 2.0, 5.0]
    counts = random().choice("a", 3, bounds=thresholds(weights)).flatten().bincount()
    assert stats.chisquare(counts, [w / 8 * 60_000 for w in weights]).pvalue > 1e-4


def test_exponentials_and_weighted_sampling():
    draw = random().exponential("a", 3).double() / 2**20
    assert stats.kstest(draw.flatten().numpy()[:20_000], "expon").pvalue > 1e-4
    first = random().weighted_distinct("b", 2, [256, 512, 1024])
    assert (first[:, 0] != first[:, 1]).all()
    assert stats.chisquare(first[:, 0].bincount(), [w / 7 * 20_000 for w in (4, 2, 1)]).pvalue > 1e-4


def test_sort_agrees_with_torch():
    x = torch.randperm(1000).reshape(10, 100)
    assert torch.equal(sort_distinct(x), x.sort(-1).values)


def test_long_draws_do_not_wrap():
    """Positions are packed below sort keys: 100,000 of them still fit."""
    one = random(1)
    assert one.permutation("a", 100_000).sort(1).values.equal(torch.arange(100_000)[None])
    for size in (120_000, 1_000_000):
        assert one.distinct("b", 100_000, size).unique().numel() == 100_000
    assert one.weighted_distinct("c", 80_000, [1] * 80_000).unique().numel() == 80_000
    with pytest.raises(BadRequest, match="lower length"):
        one.weighted_distinct("c", 1, [1] * 300_000)
