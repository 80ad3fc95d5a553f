"""Matrices cast all at once: the numbers of autocast, which casts them one by one."""

import copy
from contextlib import nullcontext

import pytest
import torch

from mnemolab.models import STAGES, make_model
from mnemolab.trainers.narrow import NarrowWeights
from mnemolab.trainers.query_loss import ask, query_loss

CASES = [(name, recipe) for name in STAGES for recipe in STAGES[name].recipes]


def gradients(model, narrow):
    g = torch.Generator().manual_seed(0)
    inputs, wanted = (torch.randint(11, size, generator=g) for size in ((2, 7), (2, 3)))
    model.zero_grad(set_to_none=True)
    asked = ask(torch.tensor([[1, 4, 6], [0, 2, 5]]), wanted, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16), narrow or nullcontext():
        loss = query_loss(model, inputs, asked, head=narrow and narrow.head)
    loss.backward()
    if narrow is not None:
        narrow.hand_on()
    return loss.losses, [None if p.grad is None else p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize(("name", "recipe"), CASES)
def test_the_numbers_of_autocast(name, recipe):
    torch.manual_seed(0)
    model = make_model(name, vocab_size=11, width=16, depth=5, heads=2, head_dim=8, recipe=recipe)
    narrow = NarrowWeights(model)
    weights = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):
        twin = copy.deepcopy(model)  # a router counts every pass
        (a, wanted), (b, found) = gradients(twin, None), gradients(model, narrow)
        assert torch.equal(a, b)
        for x, y in zip(wanted, found, strict=True):
            assert (x is None) == (y is None)
            assert x is None or y is None or (x.dtype == y.dtype and torch.equal(x, y))
        with torch.no_grad():  # a step, which the copies must follow
            for p in model.parameters():
                p.add_(0.01)
    assert all(p.dtype == w.dtype for p, w in zip(model.parameters(), weights, strict=True))


def test_a_step_that_fails_leaves_nothing_behind():
    torch.manual_seed(0)
    model = make_model("deltanet", vocab_size=11, width=16, depth=1, heads=2, head_dim=8)
    narrow = NarrowWeights(model)
    _, wanted = gradients(model, narrow)
    with torch.autocast("cpu", dtype=torch.bfloat16), narrow:
        asked = ask(torch.tensor([[1], [2]]), torch.ones(2, 1).long(), 7)
        loss = query_loss(model, torch.zeros(2, 7, dtype=torch.int64), asked)
    loss.backward()  # and what should have handed its gradients on never came
    _, found = gradients(model, narrow)
    for a, b in zip(found, wanted, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)  # type: ignore[arg-type]


def test_frozen_matrices_and_an_untied_head_stay_as_they_are():
    model = make_model("deltanet", vocab_size=11, width=16, depth=1, heads=2, head_dim=8, tie_embeddings=False)
    frozen = model.layers[0].mixer.outward.weight.requires_grad_(False)
    held = {id(w) for w in NarrowWeights(model)._wide}
    assert held and id(frozen) not in held and id(model.head.weight) not in held


def test_addresses_stay():
    model = make_model("deltanet", vocab_size=11, width=16, depth=1, heads=2, head_dim=8)
    narrow = NarrowWeights(model)
    at = []
    for _ in range(2):
        gradients(model, narrow)
        at.append([p.grad.data_ptr() for p in narrow._wide])
    assert at[0] == at[1]
