"""Normalisation layers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnemolab.kernels.neighbours.dispatch import fused
from mnemolab.kernels.neighbours.norms import rms_norm_gated

__all__ = ["RMSNorm", "make_norm"]


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, summed in at least fp32 (Zhang and Sennrich, 1910.07467)."""

    def __init__(self, width: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        # torch's own backward of the weight is slow on CUDA where rows are many and short
        if fused(x, self.weight):
            y = rms_norm_gated(x, None, self.weight, eps=self.eps)
        else:
            y = F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            # several projections read what a norm gives: cast it once instead of once for each
            y = y.to(torch.get_autocast_dtype(kind))
        return y


def make_norm(kind: str, width: int, eps: float) -> nn.Module:
    """`rms` or `layer` (with bias, as GPT-2 has it)."""
    return RMSNorm(width, eps) if kind == "rms" else nn.LayerNorm(width, eps)
