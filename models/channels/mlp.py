"""Feed-forward layers that act on each token alone."""

import torch.nn.functional as F
from torch import Tensor, nn

from mnemolab.kernels.neighbours.situ import glu
from mnemolab.models.fused import Fused
from mnemolab.models.outward import Outward

__all__ = ["GLU", "MLP", "gated"]


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
    """W2 (act(W1 x) * W3 x), W1 and W3 in one matrix: SwiGLU (Shazeer, 2002.05202), or SiTU-GLU (Kimi K3, eq. 12)."""

    def __init__(self, width: int, hidden: int, activation: str, bias: bool = False):
        super().__init__()
        self.activation = activation
        self.inward = Fused(width, (hidden, hidden), bias=bias)
        self.outward = Outward(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.outward(gated(self.inward(x), self.activation))


def gated(x: Tensor, activation: str) -> Tensor:
    """(..., 2F) -> (..., F): the first half, activated, gates the second. `situ` bounds both, at 4 and 25."""
    return glu(x, gate_bound=4.0, up_bound=25.0) if activation == "situ" else glu(x)
