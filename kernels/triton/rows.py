"""Rows of a matrix and their way back, one launch each. The plain form is `neighbours/rows.py`.

The gradient is written once, zeros included: filling it first and adding the rows to it moves the same bytes two to three times.
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

__all__ = ["take_rows"]

TILE = 2048


@triton.jit(do_not_specialize=["R"])
def rows_taken_kernel(
    x_ptr,
    from_ptr,
    y_ptr,
    R,
    STRIDE: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    BR: tl.constexpr,
    NONE: tl.constexpr,
):
    """Row r of y is row from[r] of x, whose rows are STRIDE apart, or NONE where from[r] < 0."""
    d = tl.arange(0, BD)
    r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    n = tl.load(from_ptr + r, mask=r < R, other=-1).to(tl.int64)
    x = tl.load(x_ptr + n[:, None] * STRIDE + d[None, :], mask=(n >= 0)[:, None] & (d < D)[None, :], other=NONE)
    tl.store(y_ptr + r[:, None] * D + d[None, :], x, mask=(r < R)[:, None] & (d < D)[None, :])


def _launch(x: Tensor, index: Tensor, none: float) -> Tensor:
    D, R = x.shape[1], index.shape[0]
    BD = padded(D)
    BR = max(1, TILE // BD)
    y = torch.empty((R, D), dtype=x.dtype, device=x.device)
    run(
        rows_taken_kernel, (triton.cdiv(R, BR),),
        x, index, y, R, STRIDE=x.stride(0), D=D, BD=BD, BR=BR, NONE=none, num_warps=4,
    )  # fmt: skip
    return y


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, place: Tensor) -> Tensor:
        if x.stride(1) != 1 and x.shape[1] > 1:
            x = x.contiguous()
        ctx.save_for_backward(place)
        return _launch(x, index, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        # the way back is the same kernel: every row of x asks where it went
        (place,) = ctx.saved_tensors
        return _launch(dy.contiguous(), place, 0.0), None, None


def take_rows(x: Tensor, index: Tensor, place: Tensor) -> Tensor:
    """As the plain form: x (N,D), index (R,), place (N,) -> (R,D). None is empty; D is at most 4096."""
    return _TakeRows.apply(x, index, place)  # type: ignore[return-value]
