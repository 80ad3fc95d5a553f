"""Attention residuals, forward and backward, one launch each. Plain form: `neighbours/attention_residual.py`.

With p = query * gain, r_j = rsqrt(mean(v_j^2) + eps) and s_j = r_j (p . v_j): a = softmax(s), h = sum_j a_j v_j. Every source
is read once forward (the softmax is taken online) and once backward:

    ds_j = a_j (dh . v_j - dh . h);   dv_j = a_j dh + ds_j (r_j p - s_j r_j^2 v_j / D);   dp = sum of ds_j r_j v_j over all rows
"""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mnemolab.kernels.derivatives import once_differentiable
from mnemolab.kernels.triton.launch import run
from mnemolab.kernels.triton.table import padded

__all__ = ["attention_residual"]

# programs that share the rows of the backward pass, each with one partial sum of dp
PROGRAMS = 528


@triton.jit
def _score(v, p, eps, D: tl.constexpr):
    r = tl.rsqrt(tl.sum(v * v, axis=1) / D + eps)
    return r, r * tl.sum(v * p, axis=1)


@triton.jit(do_not_specialize=["N", "eps"])
def attention_residual_forward_kernel(
    sources, query_ptr, gain_ptr, h_ptr, lse_ptr, N, eps, J: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
    R: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, BD)
    n = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    at = n[:, None] * D + d[None, :]
    mask = (n < N)[:, None] & (d < D)[None, :]
    p = tl.load(query_ptr + d, mask=d < D, other=0.0).to(tl.float32)
    p = (p * tl.load(gain_ptr + d, mask=d < D, other=0.0).to(tl.float32))[None, :]
    top = tl.full((R,), float("-inf"), tl.float32)
    total = tl.zeros((R,), tl.float32)
    h = tl.zeros((R, BD), tl.float32)
    for j in tl.static_range(J):
        v = tl.load(sources[j] + at, mask=mask, other=0.0).to(tl.float32)
        _, s = _score(v, p, eps, D)
        higher = tl.maximum(top, s)
        old = tl.exp(top - higher)
        new = tl.exp(s - higher)
        h = h * old[:, None] + new[:, None] * v
        total = total * old + new
        top = higher
    tl.store(h_ptr + at, h / total[:, None], mask=mask)
    tl.store(lse_ptr + n, top + tl.log(total), mask=n < N)


@triton.jit(do_not_specialize=["N", "eps"])
def attention_residual_backward_kernel(
    sources, gradients, query_ptr, gain_ptr, h_ptr, lse_ptr, dh_ptr, dp_ptr, N, eps, J: tl.constexpr, D: tl.constexpr,
    BD: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, BD)
    pid = tl.program_id(0)
    p = tl.load(query_ptr + d, mask=d < D, other=0.0).to(tl.float32)
    p = (p * tl.load(gain_ptr + d, mask=d < D, other=0.0).to(tl.float32))[None, :]
    dp = tl.zeros((BD,), tl.float32)
    for block in range(pid, tl.cdiv(N, R), tl.num_programs(0)):
        n = tl.zeros((R,), tl.int64) + block * R + tl.arange(0, R)
        at = n[:, None] * D + d[None, :]
        mask = (n < N)[:, None] & (d < D)[None, :]
        dh = tl.load(dh_ptr + at, mask=mask, other=0.0).to(tl.float32)
        lse = tl.load(lse_ptr + n, mask=n < N, other=0.0)
        mean = tl.sum(dh * tl.load(h_ptr + at, mask=mask, other=0.0), axis=1)
        for j in tl.static_range(J):
            v = tl.load(sources[j] + at, mask=mask, other=0.0).to(tl.float32)
            r, s = _score(v, p, eps, D)
            a = tl.exp(s - lse)
            ds = tl.where(n < N, a * (tl.sum(dh * v, axis=1) - mean), 0.0)
            dv = a[:, None] * dh + ds[:, None] * (r[:, None] * p - (s * r * r / D)[:, None] * v)
            tl.store(gradients[j] + at, dv, mask=mask)
            dp += tl.sum((ds * r)[:, None] * v, axis=0)
    tl.store(dp_ptr + pid.to(tl.int64) * D + d, dp, mask=d < D)


def _rows(D: int) -> tuple[int, int]:
    BD = padded(D)
    return BD, max(1, min(16, 2048 // BD))


class _AttentionResidual(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, gain: Tensor, eps: float, *sources: Tensor) -> Tensor:
        values = tuple(value.contiguous() for value in sources)
        query, gain = query.contiguous(), gain.contiguous()
        D = values[0].shape[-1]
        N = values[0].numel() // D
        BD, R = _rows(D)
        # float32: the backward pass multiplies by it what the softmax makes small
        h = torch.empty(values[0].shape, dtype=torch.float32, device=values[0].device)
        lse = torch.empty(N, dtype=torch.float32, device=h.device)
        run(
            attention_residual_forward_kernel, (triton.cdiv(N, R),),
            values, query, gain, h, lse, N, eps, J=len(values), D=D, BD=BD, R=R, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(query, gain, h, lse, *values)
        ctx.eps = eps
        return h.to(values[0].dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor | None, ...]:
        query, gain, h, lse, *values = ctx.saved_tensors
        D = values[0].shape[-1]
        N = values[0].numel() // D
        BD, R = _rows(D)
        programs = min(PROGRAMS, triton.cdiv(N, R))
        gradients = tuple(torch.empty_like(value) for value in values)
        dp = torch.empty(programs, D, dtype=torch.float32, device=h.device)
        run(
            attention_residual_backward_kernel, (programs,),
            tuple(values), gradients, query, gain, h, lse, dh.contiguous(), dp, N, ctx.eps,
            J=len(values), D=D, BD=BD, R=R, num_warps=4,
        )  # fmt: skip
        total = dp.sum(0)
        dquery, dgain = (total * gain.float()).to(query.dtype), (total * query.float()).to(gain.dtype)
        return dquery, dgain, None, *gradients


def attention_residual(sources: list[Tensor], query: Tensor, gain: Tensor, eps: float) -> Tensor:
    """As the plain form; sources (...,D) are not empty, D at most 4096 and at most 16 of them."""
    return _AttentionResidual.apply(query, gain, eps, *sources)  # type: ignore[return-value]
