"""Each published stage equals its equations written out in float64, constant by constant (`reference.py`)."""

from typing import Any

import pytest
import torch

from mnemolab.models import STAGES, make_model, published_config
from mnemolab.models.accounting import skeleton
from mnemolab.models.channels.moe import Router, quantile_bias
from tests.models import reference
from tests.models.stages import VOCABULARY, tokens

SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "width": 24, "heads": 2, "head_dim": 8, "recipe": "published"}


def published(name, **options) -> Any:
    """At the stage's own depth, or deep enough for Kimi K3's last layer; every weight well off its start."""
    torch.manual_seed(0)
    depth = len(reference.LAYERS[name])
    model = make_model(name, **{**SIZES, "depth": depth, **options}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, Router):
                module.bias.copy_(0.5 * torch.randn_like(module.bias))
    return model


@pytest.mark.parametrize("name", STAGES)
@torch.no_grad()
def test_a_published_stage_is_its_equations(name):
    model, inputs = published(name), tokens(2, 21)
    wanted = reference.logits(name, model.state_dict(), inputs, SIZES["heads"], SIZES["head_dim"])
    assert wanted.std() > 0.1
    torch.testing.assert_close(model(inputs), wanted, atol=1e-9, rtol=0)


def test_published_balancing_moves_the_bias_as_its_paper_says():
    """Kimi Linear: 0.001 towards the mean load. Kimi K3: to the quantile of the margins."""
    for name in ("kimi_linear", "kimi_k3"):
        model: Any = published(name).train()
        router = model.layers[1].channel.router
        assert (router.top_k, len(router.bias)) == (2, 8)
        x, before = torch.randn(200, 24, dtype=torch.float64), router.bias.clone()
        scores = torch.sigmoid(x @ router.weight.T)
        ranked = (scores + before).sort(-1, descending=True).values
        load = (router(x) > 0).sum(0).double()
        sign = before + 1e-3 * torch.sign(load.mean() - load)
        wanted = sign if name == "kimi_linear" else quantile_bias(scores, ranked, 2)
        torch.testing.assert_close(router.bias, wanted.detach(), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("name", "scale"), [("kimi_linear", 2.446), ("kimi_k3", 1.0)])
def test_the_weights_of_a_token_s_experts_sum_to_the_published_scale(name, scale):
    router = published(name).layers[1].channel.router
    total = router(torch.randn(50, 24, dtype=torch.float64)).sum(-1)
    torch.testing.assert_close(total, torch.full_like(total, scale))


# architectures of the two papers' tables: what layer 2 and the last layer hold, as shapes
KIMI = {
    "kimi_linear_48b": {
        "embedding.weight": (163840, 2304),
        "head.weight": (163840, 2304),
        "blocks.0.channel.inward.weight": (2 * 9216, 2304),
        "blocks.1.mixer.inward.weight": (3 * 32 * 128 + 128, 2304),
        "blocks.1.mixer.conv.weight": (3 * 32 * 128, 4),
        "blocks.1.mixer.control.weight": (128 + 32, 2304),
        "blocks.1.mixer.gate_up.weight": (32 * 128, 128),
        "blocks.1.mixer.decay.A_log": (32,),
        "blocks.1.channel.router.weight": (256, 2304),
        "blocks.1.channel.experts.inward": (256, 2 * 1024, 2304),
        "blocks.1.channel.shared.inward.weight": (2 * 1024, 2304),
        "blocks.26.mixer.inward.weight": (32 * (128 + 64) + 512 + 64, 2304),
        "blocks.26.mixer.expand.weight": (32 * (128 + 128), 512),
    },
    "kimi_k3": {
        "embedding.weight": (163840, 7168),
        "head.weight": (163840, 7168),
        "blocks.0.channel.inward.weight": (2 * 33792, 7168),
        "blocks.1.mixer.inward.weight": (4 * 96 * 128, 7168),
        "blocks.1.mixer.conv.weight": (3 * 96 * 128, 4),
        "blocks.1.mixer.control.weight": (128 + 96, 7168),
        "blocks.1.mixer.decay.A_log": (96,),
        "blocks.1.channel.router.weight": (896, 7168),
        "blocks.1.channel.down.weight": (3584, 7168),
        "blocks.1.channel.experts.inward": (896, 2 * 3072, 3584),
        "blocks.1.channel.shared.inward.weight": (2 * 2 * 3072, 7168),
        "blocks.92.mixer.inward.weight": (1536 + 512 + 64 + 96 * 128, 7168),
        "blocks.92.mixer.query_up.weight": (96 * (128 + 64), 1536),
        "blocks.92.mixer.expand.weight": (96 * (128 + 128), 512),
        "residual.query": (187, 7168),
    },
}


@pytest.mark.parametrize(("name", "top_k", "scale"), [("kimi_linear_48b", 8, 2.446), ("kimi_k3", 16, 1.0)])
def test_published_sizes_are_those_of_the_papers_tables(name, top_k, scale):
    config = published_config(name)
    shapes = {key: tuple(value.shape) for key, value in skeleton(config).state_dict().items()}
    assert {key: shapes[key] for key in KIMI[name]} == KIMI[name]
    assert config.experts is not None and (config.experts.top_k, config.experts.routed_scale) == (top_k, scale)
    assert len(config.pattern) == {"kimi_linear_48b": 27, "kimi_k3": 93}[name]
    assert sum(config.pattern) == {"kimi_linear_48b": 7, "kimi_k3": 24}[name]
