"""Interventions: stages turn into each other when what their memory is told is changed, in a scan and in single steps."""

from dataclasses import replace

import pytest
import torch

from mnemolab.errors import BadRequest
from tests.models.stages import small, tokens


@torch.no_grad()
def outputs(model, inputs, change):
    """Logits under `change`, from the forward and from stepping."""
    with model.intervene(change):
        whole = model(inputs)
        state, logits = None, []
        for t in range(inputs.shape[1]):
            y, state = model.step(inputs[:, t], state)
            logits.append(y)
    torch.testing.assert_close(torch.stack(logits, 1), whole, atol=1e-9, rtol=0)
    return whole


def double(name, **options):
    return small(name, backend="loop", **options).double()


@torch.no_grad()
def test_without_decay_gated_deltanet_is_deltanet():
    gated, inputs = double("gated_deltanet"), tokens(2, 15)
    plain = double("deltanet")
    held = plain.state_dict()
    same = {key: value for key, value in gated.state_dict().items() if key in held and held[key].shape == value.shape}
    plain.load_state_dict(same, strict=False)
    for a, b in zip(plain.layers, gated.layers, strict=True):
        a.mixer.control.weight.copy_(b.mixer.control.weight[2:])
    found = outputs(gated, inputs, lambda layer, told: replace(told, log_decay=None))
    torch.testing.assert_close(found, plain(inputs), atol=1e-10, rtol=0)
    assert (gated(inputs) - found).abs().max() > 1e-3


@torch.no_grad()
def test_equal_decay_of_channels_turns_kda_into_gated_deltanet():
    kda, inputs = double("kda"), tokens(2, 15)
    mean = outputs(kda, inputs, lambda layer, told: replace(told, log_decay=told.log_decay.mean(-1)))
    spread = lambda layer, told: replace(
        told, log_decay=told.log_decay.mean(-1, keepdim=True).expand_as(told.log_decay)
    )
    torch.testing.assert_close(outputs(kda, inputs, spread), mean, atol=1e-10, rtol=0)


@torch.no_grad()
def test_equal_gates_of_channels_turn_gated_deltanet2_into_kda():
    two, inputs = double("gated_deltanet2"), tokens(2, 15)

    def tie(layer, told):
        beta = told.erase.mean(-1)
        return replace(told, erase=beta, write=beta)

    def spread(layer, told):
        beta = told.erase.mean(-1, keepdim=True)
        return replace(told, erase=beta.expand_as(told.erase), write=beta.expand_as(told.write))

    torch.testing.assert_close(outputs(two, inputs, spread), outputs(two, inputs, tie), atol=1e-10, rtol=0)


@torch.no_grad()
def test_no_write_leaves_nothing_to_read():
    model, inputs = double("kda", mlp="none", depth=1), tokens(1, 9)
    silent = outputs(model, inputs, lambda layer, told: replace(told, write=torch.zeros_like(told.write)))
    alone = outputs(model, inputs[:, -1:], lambda layer, told: replace(told, write=torch.zeros_like(told.write)))
    torch.testing.assert_close(silent[:, -1:], alone, atol=1e-10, rtol=0)


def test_wiping_the_state_forgets_what_came_before():
    """One layer without convolution: after a wipe, outputs are those of the rest alone."""
    model, inputs = double("kda", depth=1, conv=0), tokens(2, 12)

    def wipe(layer, told):
        if told.log_decay.shape[1] == 1:
            return told
        decay = told.log_decay.clone()
        decay[:, 7] = -torch.inf
        return replace(told, log_decay=decay)

    with torch.no_grad(), model.intervene(wipe):
        wiped = model(inputs)
    torch.testing.assert_close(wiped[:, 7:], model(inputs[:, 7:]), atol=1e-10, rtol=0)
    assert (wiped - model(inputs)).abs().max() > 1e-3


def test_interventions_end_with_their_block_also_after_an_error():
    model, inputs = double("kda"), tokens(1, 5)
    before = model(inputs)
    with pytest.raises(ZeroDivisionError), model.intervene(lambda layer, told: 1 // 0):
        model(inputs)
    assert torch.equal(model(inputs), before)


def test_layers_are_told_apart():
    model, seen = double("kda", second="gpt2", ratio="2:1"), []
    with model.intervene(lambda layer, told: seen.append(layer) or told):
        model(tokens(1, 5))
    assert seen == [0, 1]


@torch.no_grad()
def test_an_inner_intervention_sees_what_the_outer_one_told_and_the_outer_one_outlives_it():
    model, inputs = double("kda"), tokens(1, 9)
    forgetless = lambda layer, told: replace(told, log_decay=None)
    halved = lambda layer, told: replace(told, write=told.write / 2)
    with model.intervene(lambda layer, told: halved(layer, forgetless(layer, told))):
        both = model(inputs)
    with model.intervene(forgetless):
        alone = model(inputs)
        with model.intervene(halved):
            assert torch.equal(model(inputs), both)
        assert torch.equal(model(inputs), alone)
    assert (both - alone).abs().max() > 1e-4


def test_a_model_without_a_memory_layer_cannot_be_intervened_on():
    with pytest.raises(BadRequest, match=r"'gpt2'.*second='gpt2'"), double("gpt2").intervene(lambda layer, told: told):
        pass
