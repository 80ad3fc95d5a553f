"""What follows a backward pass: three kernels over all tensors do what torch's clipping, guard, AdamW and log do."""

import copy

import pytest
import torch

from mnemolab.kernels.triton.table import interpreted
from mnemolab.trainers.narrow import NarrowWeights
from mnemolab.trainers.update import Board, FusedUpdate, PlainUpdate, make_update

pytestmark = [
    pytest.mark.skipif(not interpreted(), reason="needs TRITON_INTERPRET=1"),
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning"),
]
STEPS, BLOCK = 12, 3


class Model(torch.nn.Module):
    """A matrix of several chunks, the last one ragged; one of a whole chunk; a single number; one that nobody uses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.wide = torch.nn.Linear(65, 67, bias=False)
        self.even = torch.nn.Linear(64, 32)
        self.one = torch.nn.Parameter(torch.ones(()))
        self.idle = torch.nn.Parameter(torch.ones(5))


def made(kind, narrow=False, clip=1.0, steps=STEPS):
    model = Model()
    groups = [
        {"params": [model.wide.weight, model.even.weight, model.idle], "weight_decay": 0.3},
        {"params": [model.even.bias, model.one], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=torch.tensor(1.0), betas=(0.8, 0.95), fused=True)
    rates = torch.linspace(1e-2, 3e-2, steps)
    board = Board(rates, torch.tensor(0), torch.tensor(0), torch.tensor(0.0), torch.zeros(5, 2))
    cast = NarrowWeights(model) if narrow else None
    return kind(optimiser, board, cast, clip, BLOCK), model


def give_gradients(update, model, seed, scale=0.05):
    """Random gradients; those of cast matrices go to the copies, as a backward pass leaves them."""
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        gradient = scale * torch.randn(p.shape, generator=g)
        held = None if update.narrow is None else update.narrow.copy_of(p)
        if name == "idle":
            p.grad = None
        elif held is None:
            p.grad = gradient.bfloat16().float()
        else:
            p.grad, held.grad = None, gradient.bfloat16()
    return torch.rand(9000, generator=g)


def same(one, two):
    for (name, a), b in zip(one.named_parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_three_kernels_are_torchs_operations(narrow, clip):
    (plain, one), (fused, two) = made(PlainUpdate, narrow, clip), made(FusedUpdate, narrow, clip)
    for step in range(7):
        scale = 0.001 if step == 5 else 0.05  # where nothing is clipped
        plain(give_gradients(plain, one, step, scale))
        fused(give_gradients(fused, two, step, scale))
        same(one, two)
        for a, b in zip(plain.board, fused.board, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
    assert (int(fused.board.cursor), int(fused.board.slot)) == (7, 1)
    assert fused.board.ring[5 % 5, 1] < 1 < fused.board.ring[6 % 5, 1]
    assert torch.equal(two.idle, torch.ones(5)) and two.idle not in fused.optimiser.state
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        for name, value in plain.optimiser.state[a].items():
            torch.testing.assert_close(value, fused.optimiser.state[b][name], rtol=1e-5, atol=1e-7)


def test_the_copies_follow_their_matrices():
    fused, model = made(FusedUpdate, narrow=True)
    narrow = fused.narrow
    assert narrow is not None and narrow.kept
    fused(give_gradients(fused, model, 0))
    for layer in (model.wide, model.even):
        held = narrow.copy_of(layer.weight)
        torch.testing.assert_close(held.float(), layer.weight, rtol=2**-7, atol=0)  # the interpreter cuts off
        with narrow:
            assert layer.weight is held


@pytest.mark.parametrize("kind", [PlainUpdate, FusedUpdate])
@pytest.mark.parametrize("bad", ["loss", "gradient", "infinite"])
def test_what_is_not_finite_changes_nothing_then_or_later(kind, bad):
    update, model = made(kind)
    update(give_gradients(update, model, 0))
    before = [p.detach().clone() for p in model.parameters()]
    state = copy.deepcopy(update.optimiser.state_dict()["state"])
    losses = give_gradients(update, model, 1)
    if bad == "loss":
        losses[3] = float("nan")
    else:
        gradient = model.even.bias.grad
        assert gradient is not None
        gradient[4] = float("nan" if bad == "gradient" else "inf")
    update(losses)
    update(give_gradients(update, model, 2))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    for number, held in update.optimiser.state_dict()["state"].items():
        assert all(torch.equal(value, state[number][name]) for name, value in held.items())
    assert int(update.board.cursor) == 3 and update.board.bad == 1
    assert not update.board.ring[1].isfinite().all() and update.board.ring[2].isfinite().all()


def test_one_form_goes_on_where_the_other_stopped():
    (fused, one), (plain, two), (whole, three) = made(FusedUpdate), made(PlainUpdate), made(PlainUpdate)
    for step in range(2):
        fused(give_gradients(fused, one, step))
        whole(give_gradients(whole, three, step))
    two.load_state_dict(one.state_dict())
    plain.optimiser.load_state_dict(fused.optimiser.state_dict())
    for group in plain.optimiser.param_groups:
        group["lr"] = torch.tensor(0.0)
    plain.board.cursor.fill_(2)
    for step in range(2, 4):
        plain(give_gradients(plain, two, step))
        whole(give_gradients(whole, three, step))
    same(two, three)


def test_steps_after_the_last_rate_keep_it():
    fused, model = made(FusedUpdate, steps=1)
    for step in range(3):
        fused(give_gradients(fused, model, step))
    assert all(p.isfinite().all() for p in model.parameters())
    plain, other = made(PlainUpdate, steps=3)
    plain.board.rates.fill_(float(fused.board.rates[0]))
    for step in range(3):
        plain(give_gradients(plain, other, step))
    same(model, other)


def test_strided_and_unaligned_gradients_are_taken_too():
    (plain, one), (fused, two) = made(FusedUpdate), made(FusedUpdate)
    for update, model in ((plain, one), (fused, two)):
        losses = give_gradients(update, model, 0)
        if model is two:
            model.wide.weight.grad = model.wide.weight.grad.t().contiguous().t()
            model.even.bias.grad = torch.cat((torch.zeros(1), model.even.bias.grad))[1:]
        update(losses)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_on_the_cpu_the_plain_form_runs():
    plain, _ = made(PlainUpdate)
    assert type(make_update(plain.optimiser, plain.board, None, 1.0, BLOCK)) is PlainUpdate
