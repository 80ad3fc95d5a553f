"""Decay gates: what they compute, where they start, and that they start there after a load too."""

import math
from typing import Any

import pytest
import torch

from mnemolab.models import STAGES, make_model
from mnemolab.models.fused import Fused
from mnemolab.models.mixers.gates import BOUND, DecayGate, FixedDecay
from mnemolab.models.outward import Outward
from tests.models.stages import SIZES, small, tokens


def half_lives(log_decay):
    return -math.log(2) / log_decay


@pytest.mark.parametrize("kind", ("softplus", "bounded", "logsigmoid"))
@pytest.mark.parametrize("half_life", (1.0, 10.0, 640.0))
def test_half_life_is_where_every_channel_starts(kind, half_life):
    gate = DecayGate(kind, heads=2, channels=4, half_life=half_life)
    found = half_lives(gate(torch.zeros(1, 3, 8)))
    torch.testing.assert_close(found, torch.full((1, 3, 2, 4), half_life), rtol=1e-3, atol=0)


def test_softplus_gate_starts_with_the_papers_spread():
    torch.manual_seed(0)
    gate = DecayGate("softplus", heads=4000, channels=None)
    assert 1 <= gate.A_log.exp().min() and gate.A_log.exp().max() <= 16
    log_decay = gate(torch.zeros(1, 1, 4000))
    assert -1.65 < log_decay.min() and log_decay.max() < -0.001
    # reference: median decay 0.932, half-life about 10 tokens
    assert log_decay.exp().median().item() == pytest.approx(0.932, abs=0.01)
    dt = torch.nn.functional.softplus(gate.dt_bias)
    assert dt.min() > 0.99e-3 and dt.max() < 1.01e-1
    assert dt.log().median().item() == pytest.approx(math.log(1e-2), abs=0.15)


def test_bounded_gate_is_another_function_and_starts_at_minus_five_times_one_minus_exp_minus_dt():
    torch.manual_seed(0)
    gate = DecayGate("bounded", heads=2, channels=500)
    assert not gate.A_log.any()
    dt = torch.nn.functional.softplus(gate.dt_bias)
    log_decay = gate(torch.zeros(1, 1, 1000)).flatten()
    torch.testing.assert_close(log_decay, BOUND * (1 - torch.exp(-dt)), rtol=1e-4, atol=1e-6)
    assert log_decay.exp().median().item() == pytest.approx(0.952, abs=0.01)
    inside = gate(torch.linspace(-5, 5, 1000)[None, None]).double()
    assert (inside < 0).all() and (inside > BOUND).all()
    u, a = torch.randn(1, 1, 1000), torch.tensor([0.3, -0.4])
    with torch.no_grad():
        gate.A_log.copy_(a)
    wanted = BOUND * torch.sigmoid(a.exp().repeat_interleave(500) * (u + gate.dt_bias))
    torch.testing.assert_close(gate(u).flatten(2), wanted)


def test_rates_are_per_head_and_biases_per_channel():
    gate = DecayGate("softplus", heads=2, channels=3)
    assert gate.A_log.shape == (2,) and gate.dt_bias.shape == (6,)
    u = torch.randn(1, 1, 6)
    wanted = -gate.A_log.exp().repeat_interleave(3) * torch.nn.functional.softplus(u + gate.dt_bias)
    torch.testing.assert_close(gate(u).flatten(2), wanted)


def test_log_sigmoid_gate_starts_at_log_two_over_sixteen():
    log_decay = DecayGate("logsigmoid", heads=1, channels=4)(torch.zeros(1, 1, 4))
    torch.testing.assert_close(log_decay, torch.full((1, 1, 1, 4), -math.log(2) / 16))


def test_fixed_decay_neither_learns_nor_listens():
    fixed = FixedDecay(3, half_life=8.0)
    torch.testing.assert_close(half_lives(fixed(torch.randn(2, 5, 7))), torch.full((2, 5, 3), 8.0))
    assert list(fixed.parameters()) == []
    spread = FixedDecay(3, half_life=0.0)(torch.randn(1, 1, 7)).exp()
    torch.testing.assert_close(spread.flatten(), torch.tensor([1 - 2.0**-5, 1 - 2.0**-6, 1 - 2.0**-7]))


@pytest.mark.parametrize(
    ("name", "recipe", "low", "high"),
    [
        ("mamba2", "published", 1, 16),
        ("gated_deltanet", "published", 0, 16),
        ("kda", "published", 1, 16),
        ("gated_deltanet2", "published", 1, 16),
        ("kimi_k3", "published", 1, 1),
        ("kda", "matched", 1, 16),
    ],
)
def test_gates_start_as_published_after_construction_and_after_a_load(name, recipe, low, high):
    options = {**SIZES, "heads": 64, "head_dim": 4, "recipe": recipe}
    torch.manual_seed(0)
    model = make_model(name, **options)
    other = make_model(name, **options)
    other.load_state_dict(model.state_dict())
    for made in (model, other):
        gates = [module for module in made.modules() if isinstance(module, DecayGate)]
        assert gates
        rate = torch.cat([gate.A_log for gate in gates]).exp()
        dt = torch.nn.functional.softplus(torch.cat([gate.dt_bias for gate in gates]))
        assert rate.isfinite().all() and rate.min() >= low * 0.999 and rate.max() <= high * 1.001
        assert low or rate.min() < 1.0
        if high > low:
            assert rate.mean().item() == pytest.approx((low + high) / 2, rel=0.2)
        assert dt.min() > 0.99e-3 and dt.max() < 1.01e-1 and dt.log().std() > 1.0
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in other.state_dict().items())


def test_published_matrices_start_as_their_papers_say():
    torch.manual_seed(0)
    model: Any = make_model("gpt2", recipe="published", vocab_size=300, width=128, depth=8, heads=4)
    block = model.layers[0]
    assert block.mixer.inward.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert block.mixer.outward.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert block.channel.outward.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not block.mixer.inward.bias.any()
    k3: Any = make_model("kimi_k3", recipe="published", vocab_size=300, width=128)
    assert k3.layers[1].channel.experts.inward.std().item() == pytest.approx(0.02, rel=0.05)
    assert k3.layers[0].mixer.outward.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not k3.residual.query.any() and (k3.residual.gain == 1).all()
    router = k3.layers[1].channel.router.weight
    assert router.abs().max() <= 128**-0.5 and router.std().item() == pytest.approx(128**-0.5 / 3**0.5, rel=0.1)
    two: Any = make_model("gated_deltanet2", recipe="published", vocab_size=300, width=128)
    bound = 2**-2.5 * (6 / sum(two.layers[0].mixer.outward.weight.shape)) ** 0.5
    assert two.layers[0].mixer.outward.weight.abs().max().item() == pytest.approx(bound, rel=0.02)


def test_short_convolution_starts_as_torch_starts_it():
    weight = small("kda", noise=0.0, width=64, head_dim=32).layers[0].mixer.conv.weight
    assert weight.shape[1] == 4 and weight.abs().max() <= 0.5
    assert weight.std().item() == pytest.approx(0.5 / 3**0.5, rel=0.1)


def test_beta_reaches_its_maximum_and_only_the_erase_gate_of_two_is_doubled():
    inputs = tokens(2, 40)
    delta = small("deltanet", beta_max=2.0, noise=3.0).traces(inputs)[0]
    assert delta["erase"].max() > 1.5 and torch.equal(delta["erase"], delta["write"])
    two = small("gated_deltanet2", beta_max=2.0, noise=3.0).traces(inputs)[0]
    assert two["erase"].max() > 1.5 and two["write"].max() <= 1.0


def test_what_writes_to_the_residual_starts_smaller_the_more_of_it_there_is():
    for mlp, writers in (("swiglu", 16), ("none", 8)):
        torch.manual_seed(0)
        model: Any = make_model("kda", vocab_size=9, width=64, depth=8, mlp=mlp)
        wanted = 0.02 * (768 / 64) ** 0.5 / writers**0.5
        assert model.layers[0].mixer.outward.weight.std().item() == pytest.approx(wanted, rel=0.05)


def matrices_of_the_start(model) -> dict[str, torch.Tensor]:
    """Every matrix that its paper has as one, by name, of a published Gated DeltaNet-2's first layer."""
    mixer, channel = model.layers[0].mixer, model.layers[0].channel
    inner, rank = mixer.inner, model.config.head_dim
    found = dict(zip(("q", "k", "v", "gate_down"), mixer.inward.weight.split((inner, inner, inner, rank)), strict=True))
    found |= dict(zip(("decay_down", "erase", "write"), mixer.control.weight.split((rank, inner, inner)), strict=True))
    found |= dict(zip(("glu_gate", "glu_up"), channel.inward.weight.chunk(2), strict=True))
    found |= {"decay_up": mixer.decay_up.weight, "gate_up": mixer.gate_up.weight, "o": mixer.outward.weight}
    return found | {"glu_out": channel.outward.weight}


def test_each_matrix_of_a_fused_one_has_its_own_xavier_bound():
    torch.manual_seed(0)
    model: Any = make_model("gated_deltanet2", recipe="published", vocab_size=300, width=128, heads=4)
    for name, matrix in matrices_of_the_start(model).items():
        bound = 2**-2.5 * (6 / sum(matrix.shape)) ** 0.5
        assert matrix.abs().max().item() == pytest.approx(bound, rel=0.01), name
    assert not model.layers[0].mixer.gate_up.bias.any()


@pytest.mark.parametrize("mlp", ("moe", "latent_moe"))
def test_each_expert_s_matrices_have_their_own_xavier_bound(mlp):
    torch.manual_seed(0)
    model: Any = make_model("gated_deltanet2", recipe="published", vocab_size=9, width=96, mlp=mlp)
    experts = model.layers[1].channel.experts
    for matrix in (*experts.inward[0].chunk(2), experts.outward[0]):
        bound = 2**-2.5 * (6 / sum(matrix.shape)) ** 0.5
        assert matrix.abs().max().item() == pytest.approx(bound, rel=0.01)


@pytest.mark.parametrize("name", [name for name in STAGES if name != "gated_deltanet2"])
def test_other_published_starts_do_not_depend_on_what_is_fused(name):
    """N(0, 0.02), or torch's uniform by inputs alone: the same for a matrix and for each of its parts."""
    torch.manual_seed(0)
    model: Any = make_model(name, recipe="published", vocab_size=9, width=96, heads=4, depth=4)
    uniform = model.config.init == "uniform"
    assert uniform == (name in ("rnn", "lstm", "gru", "linear_attention", "mamba2"))
    spread = model.config.depth * 2 if model.config.residual_init else 1
    assert (spread > 1) == (name in ("gpt2", "mamba2"))
    seen = 0
    for module in model.modules():
        if type(module) is Fused:
            for matrix in (m for m in module.weight.split(module.parts) if m.numel() > 500):
                wanted = 1 / (3 * module.in_features) ** 0.5 if uniform else 0.02
                assert matrix.std().item() == pytest.approx(wanted, rel=0.1)
                seen += 1
        if type(module) is Outward:
            wanted = 1 / (3 * module.in_features) ** 0.5 if uniform else 0.02
            assert module.weight.std().item() == pytest.approx(wanted / spread**0.5, rel=0.1)
    assert seen >= (0 if name in ("rnn", "lstm", "gru") else 5)
