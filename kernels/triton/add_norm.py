"""A step of the residual stream and its RMS norm, forward and backward, one launch each.

The plain form is `add_rms_norm` in `neighbours/norms.py`. Apart, the sum, the norm, its cast and the same backwards would
move three times as many bytes, on the widest tensors of a mini-model.
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
from mnemolab.kernels.triton.norms import PROGRAMS, rows_of
from mnemolab.kernels.triton.sums import column_sums

__all__ = ["add_rms_norm"]


@triton.jit(do_not_specialize=["N", "eps"])
def add_norm_forward_kernel(
    h_ptr, y_ptr, w_ptr, sum_ptr, x_ptr, N, eps, D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr
):  # fmt: skip
    d = tl.arange(0, BD)
    n = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    at = n[:, None] * D + d[None, :]
    mask = (n < N)[:, None] & (d < D)[None, :]
    h = tl.load(h_ptr + at, mask=mask, other=0.0)
    if y_ptr is not None:
        # rounded to the stream's dtype before the norm sees it, as two operations would
        h = (h.to(tl.float32) + tl.load(y_ptr + at, mask=mask, other=0.0).to(tl.float32)).to(h.dtype)
        tl.store(sum_ptr + at, h, mask=mask)
    h = h.to(tl.float32)
    weight = tl.load(w_ptr + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
    tl.store(x_ptr + at, h * tl.rsqrt(tl.sum(h * h, axis=1) / D + eps)[:, None] * weight, mask=mask)


@triton.jit(do_not_specialize=["N", "eps"])
def add_norm_backward_kernel(
    sum_ptr, w_ptr, dsum_ptr, dx_ptr, dh_ptr, dy_ptr, dw_ptr, N, eps, D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr
):  # fmt: skip
    """dy_ptr None: y takes h's gradient. dw_ptr: one partial sum a program."""
    d = tl.arange(0, BD)
    pid = tl.program_id(0)
    weight = tl.load(w_ptr + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
    dw = tl.zeros((BD,), tl.float32)
    for block in range(pid, tl.cdiv(N, R), tl.num_programs(0)):
        n = tl.zeros((R,), tl.int64) + block * R + tl.arange(0, R)
        at = n[:, None] * D + d[None, :]
        mask = (n < N)[:, None] & (d < D)[None, :]
        h = tl.load(sum_ptr + at, mask=mask, other=0.0).to(tl.float32)
        dx = tl.load(dx_ptr + at, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(h * h, axis=1) / D + eps)[:, None]
        unit = h * rstd
        dw += tl.sum(dx * unit, axis=0)
        dx = dx * weight
        dh = rstd * (dx - unit * (tl.sum(dx * unit, axis=1) / D)[:, None])
        if dsum_ptr is not None:
            dh += tl.load(dsum_ptr + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(dh_ptr + at, dh, mask=mask)
        if dy_ptr is not None:
            tl.store(dy_ptr + at, dh, mask=mask)
    tl.store(dw_ptr + pid.to(tl.int64) * D + d, dw, mask=d < D)


class _AddRmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, y: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        h, y, weight = h.contiguous(), None if y is None else y.contiguous(), weight.contiguous()
        D = h.shape[-1]
        BD, R = rows_of(D)
        N = h.numel() // D
        total, x = h if y is None else torch.empty_like(h), torch.empty_like(h, dtype=dtype)
        run(add_norm_forward_kernel, (-(-N // R),), h, y, weight, total, x, N, eps, D=D, BD=BD, R=R, num_warps=4)
        ctx.save_for_backward(total, weight)
        ctx.eps, ctx.added = eps, None if y is None else y.dtype
        ctx.set_materialize_grads(False)
        return total, x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dtotal: Tensor | None, dx: Tensor | None) -> tuple[Tensor | None, ...]:
        total, weight = ctx.saved_tensors
        if dx is None:  # only the sum was used
            return dtotal, None if ctx.added is None or dtotal is None else dtotal.to(ctx.added), None, None, None
        D = total.shape[-1]
        BD, R = rows_of(D)
        N = total.numel() // D
        programs = min(PROGRAMS, -(-N // R))
        dh = torch.empty_like(total)
        dy = torch.empty_like(total, dtype=ctx.added) if ctx.added not in (None, total.dtype) else None
        dweight = torch.empty(programs, D, dtype=torch.float32, device=total.device)
        run(
            add_norm_backward_kernel, (programs,),
            total, weight, None if dtotal is None else dtotal.contiguous(), dx.contiguous(), dh, dy, dweight, N, ctx.eps,
            D=D, BD=BD, R=R, num_warps=4,
        )  # fmt: skip
        return (
            dh,
            None if ctx.added is None else dh if dy is None else dy,
            column_sums(dweight, weight.dtype),
            None,
            None,
        )


def add_rms_norm(h: Tensor, y: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """As the plain form; h (...,D) is not empty, D is at most 4096, and h's dtype holds the sum."""
    return _AddRmsNorm.apply(h, y, weight, eps, dtype)  # type: ignore[return-value]
