"""The recurrence in chunks of C tokens: matrix products inside a chunk, one state per chunk between them."""

import torch
from torch import Tensor

from mnemolab.kernels.loop import _in_state_dtype
from mnemolab.kernels.loop import step as step
from mnemolab.kernels.operands import Operands, State, with_denominator

__all__ = ["scan", "step", "supports"]


def supports(operands: Operands) -> str | None:
    return None


def scan(operands: Operands, chunk_size: int | None = None) -> tuple[Tensor, State]:
    if operands.normalize:
        return with_denominator(operands, lambda plain: scan(plain, chunk_size))
    with torch.autocast(operands.device.type, enabled=False):
        return _scan(operands, chunk_size or 16)


def _scan(operands: Operands, C: int) -> tuple[Tensor, Tensor]:
    B, T, H, K, V = operands.sizes
    state = operands.first_state()
    q, k, z, e, _ = _in_state_dtype(operands)
    ell = q.new_zeros(B, T, H, K) if operands.log_decay is None else operands.log_decay.to(q.dtype)
    ell = (ell if ell.dim() == 4 else ell.unsqueeze(-1)).expand(B, T, H, K)
    if T == 0:
        return z.new_empty(z.shape).to(operands.v.dtype), state.clone()
    outputs = []
    for start in range(0, T, C):
        cut = lambda x: x[:, start : start + C].transpose(1, 2)  # noqa: B023
        qc, kc, zc, lc = cut(q), cut(k), cut(z), cut(ell)
        n = qc.shape[2]
        # masked before the sum: no difference of prefix sums, so -inf and cancellation do no harm
        later = torch.ones(n, n, n, dtype=torch.bool, device=q.device)
        i, j = torch.arange(n), torch.arange(n)
        later = (j[None, None, :] <= i[:, None, None]) & (j[None, None, :] > j[None, :, None])
        between = torch.where(later[..., None], lc[:, :, None, None], 0.0).sum(4)
        weight = between.exp()
        weight = torch.where((j[None, :] <= i[:, None])[..., None], weight, 0.0)
        A = torch.einsum("bhik,bhjk,bhijk->bhij", qc, kc, weight)
        head = lc.cumsum(2).exp()
        tail = weight[:, :, -1]
        rhs = zc
        if e is not None:
            ec = cut(e)
            T_ = torch.einsum("bhik,bhjk,bhijk->bhij", ec, kc, weight).tril(-1)
            rhs = zc - (head * ec) @ state
            R = torch.linalg.solve_triangular(T_ + torch.eye(n, dtype=q.dtype), rhs, upper=False, unitriangular=True)
        else:
            R = rhs
        outputs.append(operands.scale * ((head * qc) @ state + A @ R))
        state = head[:, :, -1, :, None] * state + (tail * kc).transpose(-1, -2) @ R
    return torch.cat(outputs, 2).transpose(1, 2).to(operands.v.dtype), state
