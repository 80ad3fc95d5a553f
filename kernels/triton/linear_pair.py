"""Two linear maps of one input; the products with few channels are one launch a direction. Plain: `neighbours/linear_pair.py`.

Backward, the few channels' part is added to the other part of the input's gradient where it lies, and their weight's gradient is
summed in the same pass: as library calls that is two products, padded to 64 channels, and a sum over tensors of full width.
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
from mnemolab.kernels.triton.norms import PROGRAMS
from mnemolab.kernels.triton.sums import column_sums
from mnemolab.kernels.triton.table import padded

__all__ = ["linear_pair"]


@triton.jit(do_not_specialize=["N"])
def few_forward_kernel(
    x_ptr, w_ptr, y_ptr, N, D: tl.constexpr, J: tl.constexpr, BD: tl.constexpr, BJ: tl.constexpr, R: tl.constexpr
):
    """y (N,J) = x (N,D) w (J,D)^T."""
    d = tl.arange(0, BD)
    j = tl.arange(0, BJ)
    n = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    x = tl.load(x_ptr + n[:, None] * D + d[None, :], mask=(n < N)[:, None] & (d < D)[None, :], other=0.0)
    w = tl.load(w_ptr + j[None, :] * D + d[:, None], mask=(j < J)[None, :] & (d < D)[:, None], other=0.0)
    y = tl.dot(x, w, input_precision="ieee")
    tl.store(y_ptr + n[:, None] * J + j[None, :], y, mask=(n < N)[:, None] & (j < J)[None, :])


@triton.jit(do_not_specialize=["N"])
def few_backward_kernel(
    x_ptr, w_ptr, dy_ptr, dx_ptr, dw_ptr, N,
    D: tl.constexpr, J: tl.constexpr, BD: tl.constexpr, BJ: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """dx += dy w, in place; dw (programs,J,D) gets one partial sum of dy^T x a program."""
    d = tl.arange(0, BD)
    j = tl.arange(0, BJ)
    pid = tl.program_id(0)
    w = tl.load(w_ptr + j[:, None] * D + d[None, :], mask=(j < J)[:, None] & (d < D)[None, :], other=0.0)
    dw = tl.zeros((BJ, BD), tl.float32)
    for block in range(pid, tl.cdiv(N, R), tl.num_programs(0)):
        n = tl.zeros((R,), tl.int64) + block * R + tl.arange(0, R)
        at = n[:, None] * D + d[None, :]
        mask = (n < N)[:, None] & (d < D)[None, :]
        x = tl.load(x_ptr + at, mask=mask, other=0.0)
        dy = tl.load(dy_ptr + n[:, None] * J + j[None, :], mask=(n < N)[:, None] & (j < J)[None, :], other=0.0)
        turned = tl.load(dy_ptr + n[None, :] * J + j[:, None], mask=(n < N)[None, :] & (j < J)[:, None], other=0.0)
        dx = tl.load(dx_ptr + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx_ptr + at, tl.dot(dy, w, dx, input_precision="ieee"), mask=mask)
        dw = tl.dot(turned, x, dw, input_precision="ieee")
    tl.store(dw_ptr + (pid * J + j[:, None]) * D + d[None, :], dw, mask=(j < J)[:, None] & (d < D)[None, :])


def _tiles(D: int, J: int) -> dict[str, Any]:
    BD = padded(D)
    return {"D": D, "J": J, "BD": BD, "BJ": 16, "R": max(16, min(32, 4096 // BD)), "num_warps": 4}


class _LinearPair(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, few: Tensor) -> tuple[Tensor, Tensor]:
        x, few = x.contiguous(), few.contiguous()
        with torch.autocast(x.device.type, enabled=False):
            whole = torch.nn.functional.linear(x, weight)
        D, J = x.shape[-1], few.shape[0]
        N, tiles = x.numel() // D, _tiles(D, J)
        y = x.new_empty(*x.shape[:-1], J)
        run(few_forward_kernel, (triton.cdiv(N, tiles["R"]),), x, few, y, N, **tiles)
        ctx.save_for_backward(x, weight, few)
        return whole, y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dwhole: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, few = ctx.saved_tensors
        D, J = x.shape[-1], few.shape[0]
        N, tiles = x.numel() // D, _tiles(D, J)
        with torch.autocast(x.device.type, enabled=False):
            flat = dwhole.reshape(N, -1)
            dx, dweight = flat @ weight, flat.T @ x.view(N, D)
        programs = min(PROGRAMS, triton.cdiv(N, tiles["R"]))
        partial = torch.empty(programs, J, D, dtype=torch.float32, device=x.device)
        run(few_backward_kernel, (programs,), x, few, dy.contiguous(), dx, partial, N, **tiles)
        return dx.view_as(x), dweight, column_sums(partial, few.dtype)


def linear_pair(x: Tensor, weight: Tensor, few: Tensor) -> tuple[Tensor, Tensor]:
    """As the plain form; x (...,D), weight (M,D) and few (J,D) of one dtype, not empty, J at most 16, D at most 512."""
    return _LinearPair.apply(x, weight, few)  # type: ignore[return-value]
