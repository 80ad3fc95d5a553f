"""Blocks of examples: steps of the training stream, with what is asked of them and their tokens' order, from rows of bytes."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from mnemolab.kernels.neighbours.embedding import TokenOrder, token_order
from mnemolab.tasks import make_task
from mnemolab.tasks.base import Batch
from mnemolab.trainers.block import Block
from mnemolab.trainers.data import Feed

STEPS = 3


@dataclass
class Ragged:
    """key_overwrite whose examples ask one question less, the one after two less, and so on."""

    task: Any
    length: int

    def sample(self, indices, split="train", seed=0, device="cpu") -> Batch:
        batch = self.task.sample(indices, split=split, seed=seed, device=device)
        position = batch.queries["position"]
        kept = torch.arange(position.shape[1]) >= (indices % (position.shape[1] + 1))[:, None]
        targets = torch.full_like(batch.targets, -100)
        for b, row in enumerate(position):
            targets[b, row[kept[b]]] = batch.targets[b, row[kept[b]]]
        return replace(batch, targets=targets, queries={**batch.queries, "position": position.where(kept, -1)})


def ragged():
    task = make_task("key_overwrite")
    return Ragged(task, task.length)  # type: ignore[attr-defined]


@pytest.fixture(params=["plain", "sorted"])
def kind(request, monkeypatch):
    monkeypatch.setattr("mnemolab.trainers.block.sorts", lambda count, weight: request.param == "sorted")
    return request.param


def targets_of(asked, shape):
    """(B,T) targets, from what is asked."""
    found = torch.full((shape[0] * shape[1],), -100)
    used = asked.rows.index >= 0
    found[asked.rows.index[used]] = asked.wanted[used]
    assert torch.equal(used, asked.share > 0) and torch.equal(used, asked.wanted >= 0)
    return found.view(shape)


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("make", [ragged, lambda: make_task("needle"), lambda: make_task("random_copy")])
def test_a_block_is_steps_of_the_stream(make, batch, kind):
    task: Any = make()
    N = 4000
    block, feed = Block(task, batch, STEPS, 7, torch.zeros(N, 2)), Feed(task, batch, 7, "cpu")
    for number in (0, 2, 1):
        block.make(torch.tensor(number))
        for slot in (2, 0, 1):
            inputs, asked, order = block.take(torch.tensor(slot))
            expected, targets = feed(number * STEPS + slot)
            assert inputs.dtype == torch.int64 and torch.equal(inputs, expected)
            assert torch.equal(targets_of(asked, targets.shape), targets)
            used = int((targets >= 0).sum())
            torch.testing.assert_close(asked.share[asked.share > 0], torch.full((used,), 1.0).div(max(used, 1)))
            place = asked.rows.place
            assert place is not None and place.dtype == torch.int32
            assert torch.equal((place >= 0).nonzero()[:, 0], asked.rows.index[asked.rows.index >= 0].sort().values)
            assert torch.equal(asked.rows.index[place[place >= 0].long()], (place >= 0).nonzero()[:, 0])
            assert (order is None) == (kind == "plain")
            if order is not None:
                assert torch.equal(order.order.long(), inputs.flatten().sort(stable=True).indices)
                assert torch.equal(order.keys.long(), inputs.flatten().sort().values)
            for part in (inputs, *asked.rows, asked.wanted, asked.share, *(order or ())):
                assert part.is_contiguous() and part.data_ptr() % 16 == 0


def test_no_question_at_all_has_no_share():
    task = ragged()
    block = Block(task, 1, 7, 0, torch.zeros(100, 2))  # type: ignore[arg-type]
    block.make(torch.tensor(0))
    _, asked, _ = block.take(torch.tensor(6))
    assert not asked.share.any() and (asked.rows.index == -1).all()  # type: ignore[union-attr]


@pytest.mark.parametrize(("N", "dtype"), [(5, torch.int8), (300, torch.int16), (2**31 - 2, torch.int32)])
def test_orders_of_several_rows_are_those_of_each(N, dtype):
    """Also where rows and tokens together do not fit 32 bits; tokens that are none come first, as -1."""
    g = torch.Generator().manual_seed(N)
    tokens = torch.randint(N, (4, 40), generator=g) % 1000
    tokens[1, 3], tokens[2, 7], tokens[2, 9] = N, -5, 2**40
    tokens[3, 0] = N - 1
    found = token_order(tokens, N)
    for row, keys, order in zip(tokens, *found, strict=True):
        known = torch.where((row >= 0) & (row < N), row, -1)
        assert keys.dtype == dtype and order.dtype == torch.int32
        assert torch.equal(keys.long(), known.sort().values)
        assert torch.equal(order.long(), known.sort(stable=True).indices)
    assert isinstance(found, TokenOrder)
