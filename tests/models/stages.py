"""Every stage in every recipe, small: one list, and each test of `test_stages.py` holds for all of it."""

from typing import Any

import torch

from mnemolab.models import STAGES, make_model

VOCABULARY = 17
SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "width": 16, "heads": 2, "head_dim": 8}

ALL = [(name, recipe) for name in STAGES for recipe in STAGES[name].recipes]
# what no stage is by default, as (name, options)
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("deltanet", {"second": "gpt2", "ratio": "1:1", "depth": 3}),
    ("lstm", {"second": "gla", "ratio": "1:1"}),
    ("kda", {"positions": "rotary", "residual": "attention", "residual_block": 1}),
    ("gpt2", {"positions": "rotary"}),
    ("gated_deltanet", {"positions": "rotary", "key_heads": 1}),
    ("deltanet", {"feature_map": "elu1", "beta_max": 2.0, "mlp": "none"}),
    ("linear_attention", {"feature_map": "elu1", "decay": "fixed", "positions": "learned"}),
    ("gated_deltanet2", {"write": "channel_erase"}),
    ("gated_deltanet2", {"write": "channel_write", "decay_gate": "bounded", "half_life": 5.0}),
    ("kimi_k3", {"recipe": "published", "depth": 5, "dense_layers": 0, "norm": "layer"}),
]
CASES = [(name, {"recipe": recipe}) for name, recipe in ALL] + VARIANTS


def case_id(value: Any) -> str:
    return value if isinstance(value, str) else ",".join(f"{k}={v}" for k, v in value.items())


def small(name: str, seed: int = 0, noise: float = 0.1, **options: Any) -> Any:
    """A small `Backbone` whose parameters are all off their start, so that zeros and ones hide nothing."""
    torch.manual_seed(seed)
    model = make_model(name, **{**SIZES, **options}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn_like(parameter))
    return model


def tokens(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
