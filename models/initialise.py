"""How a model's matrices start. Gates, convolutions and norms start themselves (`reset_parameters`)."""

import math

import torch
from torch import nn

from mnemolab.models.channels.moe import Experts
from mnemolab.models.config import ModelConfig
from mnemolab.models.fused import Fused
from mnemolab.models.mixers.wrapped import WrappedMixer
from mnemolab.models.outward import Outward

__all__ = ["initialise"]


@torch.no_grad()
def initialise(model: nn.Module, config: ModelConfig) -> None:
    """Fill every nn.Linear, nn.Embedding and stack of experts, except in mixers of the user's own, which start themselves.

    scaled: N(0, s), s = 0.02 sqrt(768 / fan_in), which is GPT-2's 0.02 at GPT-2's width and grows as models shrink;
    embeddings N(0, 1 / sqrt(D)), so that tied logits start with unit variance (0.02 cost linear attention at width 64 some
    300 steps of plateau on key_overwrite).
    normal: N(0, init_std) (GPT-2; the released Kimi K3 files; fla). uniform: torch's U(-1/sqrt(fan_in), 1/sqrt(fan_in))
    (Mamba-2 and the original linear attention). xavier: U with gain 2^-2.5 (Gated DeltaNet-2, official code), of each matrix
    of a fused one for itself.
    With `residual_init`, matrices that write to the residual stream are divided by the root of their number, 2 depth with MLPs
    (GPT-2) and depth without (Mamba-2). Biases are 0.
    """
    shrink = 1 / math.sqrt(config.sublayers * config.depth) if config.residual_init else 1.0
    own = {part for module in model.modules() if isinstance(module, WrappedMixer) for part in module.modules()}
    for module in (module for module in model.modules() if module not in own):
        if isinstance(module, nn.Embedding):
            module.weight.normal_(0.0, config.std)
        elif isinstance(module, nn.Linear):
            _fill(module.weight, module.in_features, config, module.parts if isinstance(module, Fused) else ())
            if isinstance(module, Outward):
                module.weight.mul_(shrink)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, Experts):
            _fill(module.inward, module.inward.shape[2], config, 2 * (module.inward.shape[1] // 2,))
            _fill(module.outward, module.outward.shape[1], config)
            module.outward.mul_(shrink)


def _fill(weight: torch.Tensor, fan_in: int, config: ModelConfig, parts: tuple[int, ...] = ()) -> None:
    """`parts` are the outputs of the matrices fused along the last axis but one; only Xavier looks at outputs."""
    if config.init == "uniform":
        weight.uniform_(-1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))
    elif config.init == "xavier":
        for matrix in weight.split(parts or (weight.shape[-2],), -2):
            bound = 2**-2.5 * math.sqrt(6 / (matrix.shape[-2] + matrix.shape[-1]))
            matrix.uniform_(-bound, bound)
    else:
        weight.normal_(0.0, config.std if config.init == "normal" else 0.02 * math.sqrt(768 / fan_in))
