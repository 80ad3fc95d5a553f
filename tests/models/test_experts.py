"""Mixtures of experts: routing, balancing, latent experts; and the activation they use."""

from typing import Any

import pytest
import torch

from mnemolab.kernels.neighbours.situ import situ_glu
from mnemolab.models.channels.mlp import gated
from mnemolab.models.channels.moe import Experts, MoE, Router, quantile_bias
from mnemolab.models.config import ExpertsConfig, ModelConfig
from tests.models.stages import small, tokens

N, D, E = 64, 16, 8


def moe(mlp="moe", seed=0, **options) -> Any:
    torch.manual_seed(seed)
    layer = MoE(ModelConfig(width=D, mlp=mlp, mlp_width=24), ExpertsConfig(**{"experts": E, **options})).double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0.0, 0.5)
    return layer


def one_expert(experts: Experts, e: int, x: torch.Tensor) -> torch.Tensor:
    gate, up = (x @ experts.inward[e].T).chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up) @ experts.outward[e]


def test_a_token_goes_to_its_top_k_experts_with_weights_that_sum_to_the_scale():
    layer, x = moe(top_k=3, routed_scale=2.5, shared_experts=0), torch.randn(N, D, dtype=torch.float64)
    scores = torch.sigmoid(x @ layer.router.weight.T)
    for i in range(4):
        chosen = scores[i].argsort(descending=True)[:3]
        share = scores[i, chosen] / scores[i, chosen].sum() * 2.5
        wanted = sum(w * one_expert(layer.experts, int(e), x[i]) for w, e in zip(share, chosen, strict=True))
        torch.testing.assert_close(layer(x[i : i + 1])[0], wanted, atol=1e-12, rtol=0)


def test_all_experts_chosen_is_a_dense_mixture_weighted_by_scores():
    layer, x = moe(top_k=E, shared_experts=0), torch.randn(N, D, dtype=torch.float64)
    scores = torch.sigmoid(x @ layer.router.weight.T)
    outputs = torch.stack([one_expert(layer.experts, e, x) for e in range(E)], 1)
    wanted = (scores / scores.sum(-1, keepdim=True)).unsqueeze(1) @ outputs
    torch.testing.assert_close(layer(x), wanted.squeeze(1), atol=1e-12, rtol=0)


def test_the_same_bias_for_all_experts_changes_nothing_and_other_biases_choose_but_do_not_weigh():
    layer, x = moe(), torch.randn(N, D, dtype=torch.float64)
    before = layer(x)
    layer.router.bias += 0.7
    torch.testing.assert_close(layer(x), before, atol=1e-12, rtol=0)
    layer.router.bias[3] += 10.0
    weights = layer.router(x)
    assert (weights[:, 3] > 0).all() and weights[:, 3].std() > 0.01
    torch.testing.assert_close(weights.sum(-1), torch.ones(N, dtype=torch.float64))


def test_ties_go_to_the_lower_index():
    router: Any = Router(D, ExpertsConfig(experts=E, top_k=3)).eval()
    with torch.no_grad():
        router.weight.zero_()
    assert (router(torch.randn(N, D)) > 0).sum(0).tolist() == [N, N, N] + [0] * (E - 3)


def test_an_idle_expert_has_a_gradient_and_it_is_zero():
    layer, x = moe(balance="none").train(), torch.randn(N, D, dtype=torch.float64)
    layer.router.bias[2] = -100.0
    layer(x).sum().backward()
    assert layer.experts.inward.grad is not None
    assert not layer.experts.inward.grad[2].any() and layer.experts.inward.grad[1].any()


def test_latent_experts_of_full_width_without_norm_are_ordinary_experts():
    plain, latent = moe(), moe("latent_moe", latent_width=D, latent_norm=False)
    latent.load_state_dict(plain.state_dict(), strict=False)
    with torch.no_grad():
        latent.down.weight.copy_(torch.eye(D))
        latent.up.weight.copy_(torch.eye(D))
    x = torch.randn(2, 5, D, dtype=torch.float64)
    torch.testing.assert_close(latent(x), plain(x), atol=1e-12, rtol=0)


def test_stable_latent_experts_do_not_feel_the_scale_of_the_weights():
    latent, x = moe("latent_moe"), torch.randn(N, D, dtype=torch.float64)
    before = latent(x)
    latent.router.scale = 7.0
    torch.testing.assert_close(latent(x), before, atol=1e-3, rtol=0)
    plain = moe()
    before = plain(x)
    plain.router.scale = 7.0
    assert (plain(x) - before).abs().max() > 1


def test_shared_experts_stay_at_full_width_and_the_router_reads_full_width():
    layer = moe("latent_moe", shared_experts=2)
    assert layer.shared.inward.in_features == layer.router.weight.shape[1] == D
    assert layer.shared.inward.out_features == 2 * 2 * 6
    assert layer.experts.inward.shape == (E, 2 * 6, D // 2)


def test_sign_balancing_lowers_the_bias_of_the_busy():
    router, x = moe(balance="sign", balance_rate=0.01).router.train(), torch.randn(N, D, dtype=torch.float64)
    router(x)
    load = router.load.clone()
    assert load.sum() == 2 * N
    assert torch.equal(router.bias, 0.01 * torch.sign(load.mean() - load))


@pytest.mark.parametrize(("balance", "tokens_seen"), [("quantile", 12), ("sign", 200)])
def test_balancing_drives_loads_to_the_quota_on_a_router_that_stands_still(balance, tokens_seen):
    torch.manual_seed(1)
    router: Any = Router(D, ExpertsConfig(experts=32, top_k=4, balance=balance, balance_rate=0.005)).double().train()
    with torch.no_grad():
        router.weight.normal_(0.0, 0.5)
        # skewed: some experts are liked by every token
        router.weight[:, 0] += torch.linspace(-1, 1, 32, dtype=torch.float64)
    x = torch.randn(4096, D, dtype=torch.float64)
    x[:, 0] = 2.0
    loads = []
    for _ in range(tokens_seen):
        router(x)
        loads.append(router.load.clone())
    assert loads[0].max() > 2000 and loads[0].min() < 10
    assert 430 < loads[-1].min() and loads[-1].max() < 600, loads[-1]
    assert abs(router.bias.mean()) < 1e-9 or balance == "sign"


def test_quantile_balancing_on_a_tiny_batch_where_everything_ties():
    scores = torch.full((6, 4), 0.5)
    bias = quantile_bias(scores, scores.clone(), 2)
    assert torch.equal(bias, torch.zeros(4))


def test_the_bias_moves_in_training_only():
    model, inputs = small("kimi_k3", recipe="published"), tokens(4, 16)
    router = model.layers[-1].channel.router
    model.loss(inputs, inputs)
    assert not router.bias.any()
    model.train()
    with torch.no_grad():
        model.loss(inputs, inputs)
    assert not router.bias.any()
    model.loss(inputs, inputs)
    assert router.bias.any() and "bias" in router.state_dict()


def test_leading_layers_are_dense():
    layers = small("kimi_linear", recipe="published").layers
    assert [isinstance(block.channel, MoE) for block in layers] == [False, True, True, True]


def test_situ_is_bounded_and_near_swiglu_at_small_inputs():
    x = torch.linspace(-200, 200, 4001, dtype=torch.float64)
    pair = torch.stack((x, x.flip(0)), -1)
    assert gated(pair, "situ").abs().max() <= 100.0
    small_pair = pair / 1e5
    torch.testing.assert_close(gated(small_pair, "situ"), gated(small_pair, "swiglu"), atol=1e-9, rtol=1e-6)
    assert (gated(pair, "situ") - gated(pair, "swiglu")).abs().max() > 100


@pytest.mark.parametrize("value", (1e-4, 1.0, 30.0, 500.0))
def test_situ_never_leaves_its_bounds_nor_its_gate_s_range(value):
    """The gate's branch ends at 4 and at -0.2698, the other one at 25."""
    x = torch.linspace(-value, value, 2001, dtype=torch.float64)
    one = torch.full_like(x, 1e9)
    gate = situ_glu(x, one) / 25
    assert gate.max() <= 4 and gate.min() >= -0.26985
    assert value != 30.0 or gate.min() < -0.2697
    assert situ_glu(one, x).abs().max() <= 100
    assert torch.autograd.functional.jacobian(lambda g: situ_glu(g, one[:1]), x[:1]).isfinite().all()


def test_situ_without_bounds_is_swiglu_and_each_bound_acts_on_its_own_branch():
    gate, up = 20 * torch.randn(2, 50, dtype=torch.float64)
    silu = torch.nn.functional.silu(gate)
    torch.testing.assert_close(situ_glu(gate, up, gate_bound=None, up_bound=None), silu * up)
    torch.testing.assert_close(situ_glu(gate, up, gate_bound=1e7, up_bound=1e7), silu * up)
    linear = situ_glu(gate, up, up_bound=None)
    torch.testing.assert_close(situ_glu(gate, 3 * up, up_bound=None), 3 * linear)
    torch.testing.assert_close(linear, 4 * torch.tanh(gate / 4) * torch.sigmoid(gate) * up)
