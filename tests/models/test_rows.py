"""Hidden states at some positions: the same as all of them, for less work behind the last memory."""

import pytest
import torch

from tests.models.stages import CASES, case_id, small, tokens


@pytest.mark.parametrize(("name", "options"), CASES, ids=case_id)
def test_features_at_rows_are_the_features(name, options):
    model = small(name, **options).double()
    inputs = tokens(3, 9)
    rows = torch.tensor([1, 8, 9, 26, 4])
    whole, some = model.features(inputs)[0].flatten(0, 1)[rows], model.features_at(inputs, rows)
    torch.testing.assert_close(some, whole, rtol=1e-12, atol=1e-12)
    weight = torch.randn_like(whole)
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad((some * weight).sum(), parameters, allow_unused=True)
    wanted = torch.autograd.grad((whole * weight).sum(), parameters, allow_unused=True)
    for a, b in zip(found, wanted, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("depth", (1, 3))
def test_the_last_channel_mixer_sees_the_rows_alone(depth):
    model = small("deltanet", depth=depth)
    seen: list[tuple[int, ...]] = []
    for block in model.layers:
        block.channel.register_forward_pre_hook(lambda module, args: seen.append(tuple(args[0].shape[:2])))
    model.features_at(torch.zeros(4, 6, dtype=torch.int64), torch.tensor([2, 23]))
    assert seen == [(4, 6)] * (depth - 1) + [(1, 2)]


def test_who_listens_to_a_mixer_hears_it():
    """Hooks on the last mixer, or on a memory's projection, see whole calls; then nothing is left out."""
    model = small("deltanet")
    rows, inputs, heard = torch.tensor([2, 7]), tokens(2, 6), []
    quiet = model.features_at(inputs, rows)
    for module in (model.layers[-1].mixer, model.layers[-1].mixer.inward, model.layers[0].mixer.control):
        module.register_forward_hook(lambda module, args, y: heard.append(type(module).__name__))
    torch.testing.assert_close(model.features_at(inputs, rows), quiet)
    assert sorted(heard) == ["Fused", "Fused", "MemoryMixer"]


def test_no_scored_position():
    model = small("deltanet")
    loss = model.loss(torch.zeros(2, 5, dtype=torch.int64), torch.full((2, 5), -100))
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())
