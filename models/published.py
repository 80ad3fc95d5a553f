"""The sizes of three published models, as configs. Nothing here imports torch.

GPT-2: karpathy/nanoGPT. Kimi Linear 48B-A3B: 2510.26692 and its released config. Kimi K3: 2607.24653, Table 1, and its
released config.
"""

from typing import Any

from mnemolab.errors import unknown
from mnemolab.models.build import model_config
from mnemolab.models.config import ModelConfig

__all__ = ["PUBLISHED", "published_config"]

_LATENT = {"nope_dim": 128, "shared_dim": 64, "latent_value_dim": 128, "kv_rank": 512}

PUBLISHED: dict[str, dict[str, Any]] = {
    "gpt2": {
        "name": "gpt2",
        "vocab_size": 50257,
        "width": 768,
        "depth": 12,
        "heads": 12,
        "head_dim": 64,
        "max_length": 1024,
    },
    "kimi_linear_48b": {
        "name": "kimi_linear",
        "vocab_size": 163840,
        "width": 2304,
        "depth": 27,
        "heads": 32,
        "head_dim": 128,
        "mlp_width": 9216,
        "experts": 256,
        "top_k": 8,
        "shared_experts": 1,
        "expert_width": 1024,
        **_LATENT,
    },
    "kimi_k3": {
        "name": "kimi_k3",
        "vocab_size": 163840,
        "width": 7168,
        "depth": 93,
        "heads": 96,
        "head_dim": 128,
        "mlp_width": 33792,
        "experts": 896,
        "top_k": 16,
        "shared_experts": 2,
        "expert_width": 3072,
        "latent_width": 3584,
        "query_rank": 1536,
        "residual_block": 24,
        **_LATENT,
    },
}


def published_config(name: str) -> ModelConfig:
    """The config of `gpt2` (124M), `kimi_linear_48b` or `kimi_k3`. Raises BadRequest for another name."""
    if name not in PUBLISHED:
        raise unknown("published model", name, PUBLISHED)
    return model_config(**PUBLISHED[name], recipe="published")
