"""Normalisation layers."""

import torch
from torch import Tensor, nn

from mnemolab.kernels.neighbours.norms import add_rms_norm

__all__ = ["RMSNorm", "add_norm", "make_norm"]


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, summed in at least fp32 (Zhang and Sennrich, 1910.07467)."""

    def __init__(self, width: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(x, None)[1]

    def after(self, h: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        """A step of a residual stream: h + y, and the norm of it, which under autocast comes in autocast's dtype.

        Several projections read what a norm gives: it is cast once instead of once for each.
        """
        kind = h.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return add_rms_norm(h, y, self.weight, eps=self.eps, dtype=dtype)


def add_norm(norm: nn.Module, h: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
    """(h + y, norm(h + y)); y None adds nothing."""
    if isinstance(norm, RMSNorm):
        return norm.after(h, y)
    h = h if y is None else h + y
    return h, norm(h)


def make_norm(kind: str, width: int, eps: float) -> nn.Module:
    """`rms` or `layer` (with bias, as GPT-2 has it)."""
    return RMSNorm(width, eps) if kind == "rms" else nn.LayerNorm(width, eps)
