"""The update in three kernels on a GPU: torch's numbers at a training step's sizes, and in a graph that was captured before."""

import pytest
import torch

from mnemolab.trainers.narrow import NarrowWeights
from mnemolab.trainers.update import Board, FusedUpdate, PlainUpdate, make_update
from tests.gpu.graphs import captured

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICE = "cuda"


class Model(torch.nn.Module):
    """A table that is the head too, matrices whose last chunk is full or not, vectors, a number."""

    def __init__(self, words=8192):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(words, 128)
        self.up, self.down = torch.nn.Linear(128, 690, bias=False), torch.nn.Linear(345, 128)
        self.gain, self.one = torch.nn.Parameter(torch.ones(128)), torch.nn.Parameter(torch.ones(()))

    @property
    def head_weight(self):
        return self.table.weight


def made(kind, steps=20, **sizes):
    model = Model(**sizes).to(DEVICE)
    groups = [
        {"params": [model.table.weight, model.up.weight, model.down.weight], "weight_decay": 0.1},
        {"params": [model.down.bias, model.gain, model.one], "weight_decay": 0.0},
    ]
    rate = torch.tensor(1e-3, device=DEVICE)
    optimiser = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True, capturable=DEVICE == "cuda")
    rates = torch.linspace(1e-3, 3e-3, steps, device=DEVICE)
    cursor, bad = torch.zeros((), dtype=torch.int64, device=DEVICE), torch.zeros((), device=DEVICE)
    board = Board(rates, cursor, cursor.clone(), bad, torch.zeros(16, 2, device=DEVICE))
    return kind(optimiser, board, NarrowWeights(model), 1.0, 4), model


def give_gradients(update, model, seed, scale=1e-3):
    """Gradients where a backward pass leaves them, always in the same places."""
    g = torch.Generator(DEVICE).manual_seed(seed)
    for p in model.parameters():
        copy = update.narrow.copy_of(p)
        held = p if copy is None or not copy.requires_grad else copy
        if held.grad is None:
            held.grad = torch.empty_like(held)
        held.grad.copy_(scale * torch.randn(p.shape, generator=g, device=DEVICE))
    return torch.rand(16384, generator=g, device=DEVICE) / 16384


def same(plain, one, fused, two):
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    for a, b in zip(plain.board, fused.board, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    for narrow, wide in ((fused.narrow.copy_of(p), p) for p in two.parameters()):
        assert narrow is None or torch.equal(narrow, wide.to(torch.bfloat16))


@pytest.mark.parametrize("scale", [1e-4, 1e-1])
def test_torchs_numbers(scale):
    (plain, one), (fused, two) = made(PlainUpdate), made(make_update)
    assert type(fused) is FusedUpdate
    for step in range(6):
        plain(give_gradients(plain, one, step, scale))
        for narrow in plain.narrow._narrow:
            assert narrow.grad is None
        fused(give_gradients(fused, two, step, scale))
        same(plain, one, fused, two)


def test_in_a_graph_until_something_is_not_finite():
    (plain, one), (fused, two) = made(PlainUpdate), made(FusedUpdate)
    losses = give_gradients(fused, two, 0)
    graph, _ = captured(lambda: fused(losses))  # which runs it once before
    fused.ready()
    plain(give_gradients(plain, one, 0))
    for step in range(1, 5):
        losses.copy_(give_gradients(fused, two, step))
        graph.replay()
        plain(give_gradients(plain, one, step))
        same(plain, one, fused, two)
    before = [p.detach().clone() for p in two.parameters()]
    losses.copy_(give_gradients(fused, two, 5)).view(-1)[7] = float("nan")
    graph.replay()
    losses.copy_(give_gradients(fused, two, 6))
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(before, two.parameters(), strict=True))
    assert fused.board.bad.item() == 1 and fused.board.cursor.item() == 7
    assert fused.board.ring[5].isnan().any() and fused.board.ring[6].isfinite().all()
