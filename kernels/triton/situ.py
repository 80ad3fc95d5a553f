"""SiTU-GLU, forward and backward, one launch each and nothing saved but the inputs. Plain form: `neighbours/situ.py`."""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mnemolab.kernels.derivatives import once_differentiable

__all__ = ["situ_glu"]

BLOCK = 1024


@triton.jit
def _tanh(x):
    """tanh by exp(-2|x|); near 0, where that cancels, the odd series to x^7 (relative error 2e-11 at 0.1)."""
    a = tl.abs(x)
    e = tl.exp(-2.0 * a)
    big = (1.0 - e) / (1.0 + e)
    s = x * x
    small = a * (1.0 + s * (-1.0 / 3.0 + s * (2.0 / 15.0 - s * (17.0 / 315.0))))
    return tl.where(x < 0, -1.0, 1.0) * tl.where(a < 0.1, small, big)


@triton.jit
def _bounded(x, bound: tl.constexpr):
    """bound tanh(x / bound) and its derivative; x itself without a bound."""
    if bound is None:
        return x, tl.zeros_like(x) + 1.0
    else:
        t = _tanh(x / bound)
        return bound * t, 1.0 - t * t


@triton.jit(do_not_specialize=["N"])
def forward_kernel(g_ptr, u_ptr, y_ptr, N, GATE: tl.constexpr, UP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < N
    g = tl.load(g_ptr + at, mask=mask, other=0.0).to(tl.float32)
    u = tl.load(u_ptr + at, mask=mask, other=0.0).to(tl.float32)
    bg, _ = _bounded(g, GATE)
    bu, _ = _bounded(u, UP)
    tl.store(y_ptr + at, bg * tl.sigmoid(g) * bu, mask=mask)


@triton.jit(do_not_specialize=["N"])
def backward_kernel(g_ptr, u_ptr, dy_ptr, dg_ptr, du_ptr, N, GATE: tl.constexpr, UP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < N
    g = tl.load(g_ptr + at, mask=mask, other=0.0).to(tl.float32)
    u = tl.load(u_ptr + at, mask=mask, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
    bg, slope_g = _bounded(g, GATE)
    bu, slope_u = _bounded(u, UP)
    s = tl.sigmoid(g)
    tl.store(dg_ptr + at, dy * bu * (slope_g * s + bg * s * (1.0 - s)), mask=mask)
    tl.store(du_ptr + at, dy * bg * s * slope_u, mask=mask)


class _SituGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, gate_bound: float | None, up_bound: float | None) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        y, N = torch.empty_like(gate), gate.numel()
        forward_kernel[(triton.cdiv(N, BLOCK),)](gate, up, y, N, GATE=gate_bound, UP=up_bound, BLOCK=BLOCK)
        ctx.save_for_backward(gate, up)
        ctx.bounds = gate_bound, up_bound
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        dgate, dup, N = torch.empty_like(gate), torch.empty_like(up), gate.numel()
        backward_kernel[(triton.cdiv(N, BLOCK),)](
            gate, up, dy.contiguous(), dgate, dup, N, GATE=ctx.bounds[0], UP=ctx.bounds[1], BLOCK=BLOCK
        )
        return dgate, dup, None, None


def situ_glu(gate: Tensor, up: Tensor, gate_bound: float | None, up_bound: float | None) -> Tensor:
    """As the plain form; gate and up are not empty."""
    return _SituGlu.apply(gate, up, gate_bound, up_bound)  # type: ignore[return-value]
