"""How fast each head, or each key channel, forgets: natural-log decay from a projection of the input.

Sources: softplus gate, Mamba-2 (2405.21060) and Kimi Linear (2510.26692); bounded gate, Kimi K3 (2607.24653, eq. 5);
log-sigmoid gate, GLA (2312.06635); fixed rates, RetNet (2307.08621).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnemolab.kernels.neighbours.decay_gate import BOUND, TEMPERATURE, decay_gate
from mnemolab.models.precision import KeepsFp32

__all__ = ["DecayGate", "FixedDecay"]


class FixedDecay(KeepsFp32):
    """One rate per head that neither input nor training moves.

    Half-life `half_life` tokens, or RetNet's spread over the heads, 1 - 2^(-5-h), when it is 0.
    """

    log_decay: Tensor

    def __init__(self, heads: int, half_life: float):
        super().__init__()
        rate = -math.log(2) / half_life if half_life else 0.0
        rates = [rate or math.log1p(-(2.0 ** (-5 - h))) for h in range(heads)]
        self.register_buffer("log_decay", torch.tensor(rates))

    def forward(self, u: Tensor) -> Tensor:
        """u (B,T,...) gives the leading shape; returns (B,T,H)."""
        return self.log_decay.expand(*u.shape[:2], -1)


class DecayGate(KeepsFp32):
    """Log-decay (B,T,H) or (B,T,H,K) from u (B,T,H) or (B,T,H*K).

    softplus: -exp(A_log) softplus(u + dt_bias). bounded: -5 sigmoid(exp(A_log) (u + dt_bias)), which is another function
    and no clamp of it. logsigmoid: logsigmoid(u + dt_bias) / 16. A_log is per head, dt_bias per output.

    dt ~ LogUniform[1e-3, 1e-1] and dt_bias its inverse softplus; A ~ U(a_low, 16) for softplus, A_log = 0 for bounded;
    zero bias for logsigmoid. A `half_life` > 0 makes every output start there instead, at u = 0.
    """

    def __init__(self, kind: str, heads: int, channels: int | None, half_life: float = 0.0, a_low: float = 1.0):
        super().__init__()
        self.kind, self.heads, self.channels = kind, heads, channels
        self.half_life, self.a_low = half_life, a_low
        self.dt_bias = nn.Parameter(torch.empty(heads * (channels or 1)))
        if kind != "logsigmoid":
            self.A_log = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            if self.half_life:
                self._reset_to(math.log(2) / self.half_life)
                return
            if self.kind == "logsigmoid":
                self.dt_bias.zero_()
                return
            if self.kind == "softplus":
                # a_low = 0 (Gated DeltaNet) can draw an A of 0, whose log is no number to train
                self.A_log.uniform_(self.a_low, 16.0).clamp_(min=1e-4).log_()
            else:
                self.A_log.zero_()
            dt = self.dt_bias.uniform_(math.log(1e-3), math.log(1e-1)).exp_().clamp_(min=1e-4)
            dt.add_(torch.log(-torch.expm1(-dt)))

    def _reset_to(self, rate: float) -> None:
        """Biases that make the log-decay -rate at u = 0, with A = 1."""
        if self.kind == "logsigmoid":
            bias = -math.log(math.expm1(rate * TEMPERATURE))
        elif self.kind == "softplus":
            bias = math.log(math.expm1(rate))
        else:
            bias = math.log(rate / -BOUND) - math.log1p(rate / BOUND)
        self.dt_bias.fill_(bias)
        if self.kind != "logsigmoid":
            self.A_log.zero_()

    def forward(self, u: Tensor) -> Tensor:
        A_log = None if self.kind == "logsigmoid" else self.A_log
        found = decay_gate(u, self.dt_bias, A_log, self.kind, self.heads)
        return found if self.channels is not None else found.squeeze(-1)

    def step_size(self, u: Tensor) -> Tensor:
        """softplus(u + dt_bias): Mamba-2's step size (B,T,H), which scales what is written and drives the decay."""
        return F.softplus(u.to(self.dt_bias.dtype) + self.dt_bias)
