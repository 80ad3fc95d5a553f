"""The parameters of a short causal depthwise convolution over queries, keys and values, one filter per channel."""

import math

import torch
from torch import Tensor, nn

from mnemolab.kernels.neighbours.short_conv import short_conv_qkv

__all__ = ["ShortConv"]


class ShortConv(nn.Module):
    """y_t = bias + sum_w weight[:, w] x_{t-taps+1+w} over the first sum(sizes) channels of a projection, then the split.

    `silu` says which of q, k and v get SiLU; unit > 0: q and k are brought to unit length over heads of that many channels.
    Filters start as U(-1/sqrt(taps), 1/sqrt(taps)), torch's own start for a depthwise convolution. The state is the last
    taps - 1 inputs (B,taps-1,sum(sizes)).
    """

    def __init__(
        self, sizes: tuple[int, int, int], taps: int, bias: bool, silu: tuple[bool, bool, bool], unit: int
    ):  # fmt: skip
        super().__init__()
        self.sizes, self.taps, self.silu, self.unit = sizes, taps, silu, unit
        self.weight = nn.Parameter(torch.empty(sum(sizes), taps))
        self.bias = nn.Parameter(torch.empty(sum(sizes))) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.taps)
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, mixed: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """mixed (B,T,M) -> q, k, v (B,T,channels), the rest of mixed as a view, the next state."""
        options = {"sizes": self.sizes, "silu": self.silu, "unit": self.unit}
        return short_conv_qkv(mixed, self.weight, self.bias, cache=state, **options)
