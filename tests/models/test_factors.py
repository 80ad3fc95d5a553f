"""The factors that claims turn, in the matched block: every combination builds and trains a step, a bad one is one line."""

import itertools
import math
from typing import Any

import pytest
import torch

from mnemolab.errors import BadRequest
from mnemolab.models import count_parameters, make_model, model_config
from tests.models.stages import VOCABULARY, tokens

LENGTH = 42
BLOCK: dict[str, Any] = {"vocab_size": VOCABULARY, "recipe": "matched", "width": 64, "heads": 2, "head_dim": 16}
DECAYS, WRITES, FEATURES = ("none", "fixed", "scalar", "channel"), ("additive", "delta"), ("silu_l2", "elu1")
HALF_LIVES = (10.0, LENGTH / 2, 10.0 * LENGTH)
# one beta, both gates, and the two arms that have one of them
TIED = {
    "one beta": {"name": "kda"},
    "decoupled": {"name": "gated_deltanet2"},
    "erase only": {"name": "gated_deltanet2", "write": "channel_erase"},
    "write only": {"name": "gated_deltanet2", "write": "channel_write"},
}


def trains_a_step(model) -> None:
    """Every parameter has a finite gradient and moves, and the loss on the same batch falls."""
    inputs = tokens(4, LENGTH)
    optimiser = torch.optim.AdamW(model.parameter_groups(0.1), lr=1e-3)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    loss = model.loss(inputs, inputs.roll(-1, 1))
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    optimiser.step()
    still = [name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])]
    assert still == []
    assert model.loss(inputs, inputs.roll(-1, 1)) < loss


@pytest.mark.parametrize(("decay", "write", "feature_map"), list(itertools.product(DECAYS, WRITES, FEATURES)))
def test_every_combination_of_the_matched_block_trains_a_step(decay, write, feature_map):
    rule = {"decay": decay, "write": write, "feature_map": feature_map}
    torch.manual_seed(0)
    for half_life in (0.0,) if decay == "none" else (0.0, *HALF_LIVES):
        for depth, positions in ((1, "none"), (2, "none"), (1, "learned"), (1, "rotary")):
            if (positions, feature_map) == ("rotary", "elu1"):
                continue
            options = {**rule, "half_life": half_life, "depth": depth, "positions": positions}
            model = make_model("linear_attention", **BLOCK, **options).train()
            for trace in model.traces(tokens(2, LENGTH)) if half_life else ():
                # the gate's projection does not start at zero: rates spread around the one that is asked for
                ratio = -trace["log_decay"].median().item() * half_life / math.log(2)
                assert 0.3 < ratio < 3, (half_life, ratio)
            trains_a_step(model)


@pytest.mark.parametrize("half_life", (0.0, *HALF_LIVES))
@pytest.mark.parametrize("arm", TIED)
def test_tied_and_untied_gates_train_a_step_at_equal_parameters(arm, half_life):
    reference = count_parameters(model_config("gpt2", **BLOCK, depth=1), embeddings=False)
    for sizes in ({"depth": 1}, {"depth": 2, "positions": "learned"}, {"depth": 1, "beta_max": 2.0}):
        torch.manual_seed(0)
        model = make_model(**TIED[arm], **BLOCK, **sizes, half_life=half_life, match="params").train()
        count = count_parameters(model.config, embeddings=False)
        # all arms are matched to one target, so they are within twice that of each other
        assert count == pytest.approx(reference * model.config.depth, rel=0.02)
        trains_a_step(model)


@pytest.mark.parametrize("sizes", [{}, {"head_dim": 32}, {"heads": 1}, {"heads": 1, "head_dim": 32}], ids=str)
def test_arms_of_the_gates_have_equal_parameters_at_the_claims_sizes(sizes):
    options: dict[str, Any] = {**BLOCK, **sizes, "depth": 1, "match": "params"}
    counts = [count_parameters(model_config(**arm, **options), embeddings=False) for arm in TIED.values()]
    assert max(counts) / min(counts) < 1.02


@pytest.mark.parametrize(
    ("name", "decay", "write"),
    [
        ("linear_attention", "none", "additive"),
        ("gla", "channel", "additive"),
        ("mamba2", "scalar", "step"),
        ("deltanet", "none", "delta"),
        ("gated_deltanet", "scalar", "delta"),
        ("kda", "channel", "delta"),
        ("gated_deltanet2", "channel", "decoupled"),
    ],
)
def test_corners_of_the_grid_are_the_stages(name, decay, write):
    found = model_config("linear_attention", **BLOCK, decay=decay, write=write)
    assert found.mixers == model_config(name, **BLOCK).mixers


@pytest.mark.parametrize("gate", ("softplus", "bounded", "logsigmoid"))
def test_every_decay_gate_trains_a_step_from_every_half_life(gate):
    for decay, half_life in itertools.product(("scalar", "channel"), (0.0, *HALF_LIVES)):
        torch.manual_seed(0)
        trains_a_step(make_model("kda", **BLOCK, depth=1, decay=decay, decay_gate=gate, half_life=half_life).train())


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"half_life": 10.0}, ("half_life=10.0", "decay")),
        ({"decay": "scalar", "half_life": 0.1}, ("half_life=0.1", "0.2")),
        ({"decay": "scalar", "half_life": -1.0}, ("half_life=-1.0", "least is 0")),
        ({"decay": "per_channel"}, ("per_channel", "channel")),
        ({"write": "overwrite"}, ("overwrite", "decoupled")),
        ({"write": "step"}, ("step", "decay='scalar'")),
        ({"write": "step", "decay": "channel"}, ("step", "decay='scalar'")),
        ({"feature_map": "relu"}, ("relu", "elu1")),
        ({"feature_map": "elu1", "positions": "rotary"}, ("elu1", "rotary")),
        ({"positions": "sinus"}, ("sinus", "learned")),
        ({"beta_max": 2.0}, ("beta_max=2.0", "write")),
        ({"write": "delta", "beta_max": 3.0}, ("beta_max=3.0", "most is 2")),
        ({"depth": 0}, ("depth=0", "least is 1")),
        ({"match": "params", "mlp": "none"}, ("match='params'", "mlp='none'")),
    ],
    ids=str,
)
def test_a_bad_combination_is_one_line(options, parts):
    with pytest.raises(BadRequest) as error:
        make_model("linear_attention", **{**BLOCK, **options})
    message = str(error.value)
    assert "\n" not in message and len(message) < 250
    assert all(part in message for part in parts), message
