"""Normalisation layers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["RMSNorm", "make_norm"]


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, summed in at least fp32 (Zhang and Sennrich, 1910.07467)."""

    def __init__(self, width: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


def make_norm(kind: str, width: int, eps: float) -> nn.Module:
    """`rms` or `layer` (with bias, as GPT-2 has it)."""
    return RMSNorm(width, eps) if kind == "rms" else nn.LayerNorm(width, eps)
