"""The parameters of a short causal depthwise convolution, one filter per channel."""

import math

import torch
from torch import Tensor, nn

from mnemolab.kernels.neighbours.short_conv import short_conv

__all__ = ["ShortConv"]


class ShortConv(nn.Module):
    """y_t = act(bias + sum_w weight[:, w] x_{t-taps+1+w}), over (B,T,channels).

    Filters start as U(-1/sqrt(taps), 1/sqrt(taps)), torch's own start for a depthwise convolution. The state is the last
    taps - 1 inputs (B,taps-1,channels).
    """

    def __init__(self, channels: int, taps: int, bias: bool = False, activation: str | None = "silu"):
        super().__init__()
        self.channels, self.taps, self.activation = channels, taps, activation
        self.weight = nn.Parameter(torch.empty(channels, taps))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.taps)
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B,T,channels), state (B,taps-1,channels) or None -> y (B,T,channels), the next state."""
        return short_conv(x, self.weight, self.bias, cache=state, activation=self.activation)
