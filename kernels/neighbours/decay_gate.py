"""From a projection to the log-decay of every key channel: the gates of the per-channel stages."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemolab.errors import BadRequest, unknown
from mnemolab.kernels.neighbours.dispatch import check_floating, fused

__all__ = ["BOUND", "GATES", "TEMPERATURE", "decay_gate"]

BOUND = -5.0  # the bounded gate's lower end, K3 eq. 5
TEMPERATURE = 16.0  # GLA's tau
GATES = ("softplus", "bounded", "logsigmoid")


def decay_gate(u: Tensor, bias: Tensor, A_log: Tensor | None, kind: str, heads: int) -> Tensor:
    """Log-decay (B,T,H,K) in bias.dtype from u (B,T,H*K), bias (H*K) and A_log (H); with z = u + bias and a = exp(A_log)

    softplus: -a softplus(z) (Mamba-2, 2405.21060; Kimi Linear, 2510.26692); bounded: -5 sigmoid(a z) (Kimi K3, 2607.24653, eq. 5);
    logsigmoid: logsigmoid(z) / 16 (GLA, 2312.06635), where A_log is None.

    Raises BadRequest for kinds and for shapes that do not fit, TypeError for dtypes.
    """
    check_floating(u=u, bias=bias, A_log=A_log)
    if kind not in GATES:
        raise unknown("decay gate", kind, GATES)
    rates = None if A_log is None else tuple(A_log.shape)
    if (
        u.dim() != 3
        or bias.shape != u.shape[2:]
        or u.shape[2] % heads
        or rates != (None if kind == "logsigmoid" else (heads,))
    ):
        raise BadRequest(
            f"{kind} gate of {heads} heads: u has shape {tuple(u.shape)}, bias {tuple(bias.shape)}, A_log {rates}; they must be "
            f"(B,T,H*K), (H*K,) and {'None' if kind == 'logsigmoid' else '(H,)'}"
        )
    if bias.dtype == torch.float32 and fused(u, bias, A_log):
        from mnemolab.kernels.triton import decay_gate as form

        return form.decay_gate(u, bias, A_log, GATES.index(kind), heads)
    z = (u.to(bias.dtype) + bias).unflatten(-1, (heads, -1))
    if A_log is None:
        return F.logsigmoid(z) / TEMPERATURE
    rate = A_log.exp()[:, None]
    return -rate * F.softplus(z) if kind == "softplus" else BOUND * torch.sigmoid(rate * z)
