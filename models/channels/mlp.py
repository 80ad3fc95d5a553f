"""Feed-forward layers that act on each token alone."""

import torch.nn.functional as F
from torch import Tensor, nn

from mnemolab.models.outward import Outward

__all__ = ["GLU", "MLP"]


class MLP(nn.Module):
    """W2 act(W1 x), act ReLU or exact GELU."""

    def __init__(self, width: int, hidden: int, activation: str, bias: bool):
        super().__init__()
        self.activation = activation
        self.inward = nn.Linear(width, hidden, bias=bias)
        self.outward = Outward(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inward(x)
        return self.outward(F.gelu(x) if self.activation == "gelu" else F.relu(x))


class GLU(nn.Module):
    """W2 (act(W1 x) * W3 x), W1 and W3 in one matrix; SwiGLU (Shazeer, 2002.05202)."""

    def __init__(self, width: int, hidden: int, activation: str, bias: bool = False):
        super().__init__()
        self.activation = activation
        self.inward = nn.Linear(width, 2 * hidden, bias=bias)
        self.outward = Outward(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.outward(glu(self.inward(x), self.activation))


def glu(x: Tensor, activation: str) -> Tensor:
    """(..., 2F) -> (..., F): the first half gates the second."""
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up
