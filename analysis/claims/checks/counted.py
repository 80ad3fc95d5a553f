"""Claims that are counts: bytes of cache, operations of experts, models that fit in another."""

from dataclasses import replace
from typing import Any

import torch

from mnemolab.analysis.claims.checks.check import Check, first_seed
from mnemolab.analysis.claims.checks.exact import small_model, some_tokens
from mnemolab.models import count_parameters, model_config, published_config, state_bytes
from mnemolab.models.channels.moe import MoE
from mnemolab.models.config import ModelConfig
from mnemolab.models.published import PUBLISHED
from mnemolab.models.state import count_elements

__all__ = ["kv_bytes", "latent_moe_flops", "scale_22580", "token_flops"]

# layers of latent attention over all layers (Kimi Linear, 2510.26692; Kimi K3, 2607.24653)
SHARES = {"kimi_linear_48b": (7, 27), "kimi_k3": (24, 93)}
ABOUT_HALF = (0.4, 0.6)
# the articles divide 2.8T by 124M
ARTICLES_RATIO, RATIO_TOLERANCE = 22_580, 0.02


def kv_bytes(tier: str, device: str, *, ratio: str = "3:1") -> list[Check]:
    """Cache a token of the published hybrids over that of the same stack with latent attention in every layer.

    Counted from the published sizes, then measured on the state that a narrow model with as many layers really holds. The
    articles say "75% less"; the layers give 74.1 and 74.2%. `ratio` is that of the hybrid.
    """
    checks = []
    for name, (attention, layers) in SHARES.items():
        given = {**PUBLISHED[name], "recipe": "published"}
        config, pure = model_config(**given, ratio=ratio), model_config(**given, **_PURE)
        held, whole = (state_bytes(c, 1).cache_per_token for c in (config, pure))
        share = attention / layers
        detail = f"{sum(config.pattern)} of {config.depth} layers; {held} of {whole} bytes a token at bf16"
        checks.append(Check(f"{name}: counted", held / whole, share, share, "of a pure stack", detail))
        stage, depth = given["name"], config.depth
        grown, most = (_growth(stage, depth, tier, device, options) for options in ({"ratio": ratio}, _PURE))
        detail = f"{grown:g} of {most:g} elements a token, {depth} narrow layers"
        measured = grown / most
        checks.append(Check(f"{name}: measured", measured, share, share, "of a pure stack", detail))
    return checks


_PURE: dict[str, Any] = {"ratio": "0:1", "extra": False}


@torch.no_grad()
def _growth(stage: str, depth: int, tier: str, device: str, options: dict[str, Any]) -> float:
    """Elements that the state of a narrow model grows by a token."""
    seed = first_seed(tier)
    model = small_model(stage, seed, device, recipe="published", depth=depth, mlp="none", **options)
    inputs = some_tokens(1, 12, seed, device)
    short, long = (count_elements(model.prefill(inputs[:, :T])[1]) for T in (4, 12))
    return (long - short) / 8


def token_flops(config: ModelConfig) -> dict[str, int]:
    """Multiplications and additions of a mixture of experts for one token, counted from the shapes of its matrices.

    Keys: `routed` (the chosen experts), `latent` (projections to their width and back), `shared`.
    """
    assert config.experts is not None
    with torch.device("meta"):
        layer = MoE(config, config.experts)
    one = sum(parameter[0].numel() for parameter in layer.experts.parameters())
    latent = 0 if layer.down is None or layer.up is None else layer.down.weight.numel() + layer.up.weight.numel()
    shared = 0 if layer.shared is None else sum(parameter.numel() for parameter in layer.shared.parameters())
    return {"routed": 2 * one * config.experts.top_k, "latent": 2 * latent, "shared": 2 * shared}


def latent_moe_flops(tier: str, device: str) -> list[Check]:
    """Operations of one expert layer of Kimi K3, over those with the same experts at the model's full width.

    The projections to the latent width and back belong to the price; shared experts stay at full width in both.
    """
    config = published_config("kimi_k3")
    latent, full = token_flops(config), token_flops(replace(config, mlp="moe"))
    routed = (latent["routed"] + latent["latent"]) / full["routed"]
    everything = sum(latent.values()) / sum(full.values())
    parts = ", ".join(f"{name} {count / 1e9:.3f}" for name, count in latent.items())
    detail = f"GFLOP a token: {parts}; at full width routed {full['routed'] / 1e9:.3f}"
    return [
        Check("routed experts and their projections", routed, *ABOUT_HALF, "of full width", detail),
        Check("with the shared experts", everything, *ABOUT_HALF, "of full width", detail),
    ]


def scale_22580(tier: str, device: str) -> list[Check]:
    """Parameters of Kimi K3 over those of the smallest GPT-2, both counted from their configurations."""
    k3, gpt2 = (count_parameters(published_config(name)) for name in ("kimi_k3", "gpt2"))
    bounds = ARTICLES_RATIO * (1 - RATIO_TOLERANCE), ARTICLES_RATIO * (1 + RATIO_TOLERANCE)
    return [Check("GPT-2s in one Kimi K3", k3 / gpt2, *bounds, "models", f"{k3} / {gpt2} parameters")]
