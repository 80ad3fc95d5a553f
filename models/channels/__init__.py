"""Channel mixers: MLPs and mixtures of experts."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from mnemolab.models.config import ModelConfig


def make_channel_mixer(config: "ModelConfig", layer: int) -> "nn.Module | None":
    """The channel mixer (B,T,D) -> (B,T,D) of a layer; None when the model has none."""
    from mnemolab.models.channels.mlp import GLU, MLP
    from mnemolab.models.channels.moe import MoE

    if config.mlp == "none":
        return None
    if config.mlp in ("relu", "gelu"):
        return MLP(config.width, config.hidden, config.mlp, config.bias)
    if config.experts is None:
        return GLU(config.width, config.hidden, config.mlp, config.bias)
    if layer < config.experts.dense_layers:
        return GLU(config.width, config.hidden, config.activation)
    return MoE(config, config.experts)
