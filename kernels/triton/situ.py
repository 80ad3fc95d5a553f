"""Gated units, SiTU-GLU and SwiGLU, forward and backward: one launch each, nothing saved but the inputs.

The plain forms are in `neighbours/situ.py`. N rows of F units; gate and up are two tensors or the halves of one.
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

__all__ = ["glu", "situ_glu"]

TILE = 2048


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


@triton.jit
def _tile(N, F: tl.constexpr, R: tl.constexpr, BF: tl.constexpr):
    """Rows (R,1) and columns (1,BF) of this program, and which of them exist."""
    pid = tl.program_id(0)
    f = (pid % tl.cdiv(F, BF)) * BF + tl.arange(0, BF)
    n = (pid // tl.cdiv(F, BF)).to(tl.int64) * R + tl.arange(0, R)
    return n[:, None], f[None, :], (n < N)[:, None] & (f < F)[None, :]


@triton.jit(do_not_specialize=["N"])
def glu_forward_kernel(
    g_ptr, u_ptr, y_ptr, N,
    F: tl.constexpr, STRIDE: tl.constexpr, GATE: tl.constexpr, UP: tl.constexpr, R: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    n, f, mask = _tile(N, F, R, BF)
    g = tl.load(g_ptr + n * STRIDE + f, mask=mask, other=0.0).to(tl.float32)
    u = tl.load(u_ptr + n * STRIDE + f, mask=mask, other=0.0).to(tl.float32)
    bg, _ = _bounded(g, GATE)
    bu, _ = _bounded(u, UP)
    tl.store(y_ptr + n * F + f, bg * tl.sigmoid(g) * bu, mask=mask)


@triton.jit(do_not_specialize=["N"])
def glu_backward_kernel(
    g_ptr, u_ptr, dy_ptr, dg_ptr, du_ptr, N,
    F: tl.constexpr, STRIDE: tl.constexpr, GATE: tl.constexpr, UP: tl.constexpr, R: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    n, f, mask = _tile(N, F, R, BF)
    g = tl.load(g_ptr + n * STRIDE + f, mask=mask, other=0.0).to(tl.float32)
    u = tl.load(u_ptr + n * STRIDE + f, mask=mask, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + n * F + f, mask=mask, other=0.0).to(tl.float32)
    bg, slope_g = _bounded(g, GATE)
    bu, slope_u = _bounded(u, UP)
    s = tl.sigmoid(g)
    tl.store(dg_ptr + n * STRIDE + f, dy * bu * (slope_g * s + bg * s * (1.0 - s)), mask=mask)
    tl.store(du_ptr + n * STRIDE + f, dy * bg * s * slope_u, mask=mask)


def _options(F: int, stride: int, bounds: tuple[float | None, float | None]) -> dict[str, Any]:
    BF = min(128, padded(F))
    return {"F": F, "STRIDE": stride, "GATE": bounds[0], "UP": bounds[1], "R": TILE // BF, "BF": BF}


def _programs(N: int, options: dict[str, Any]) -> tuple[int]:
    return (triton.cdiv(N, options["R"]) * triton.cdiv(options["F"], options["BF"]),)


class _SituGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, gate_bound: float | None, up_bound: float | None) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        F = gate.shape[-1] if gate.dim() else 1
        y, N = torch.empty_like(gate), gate.numel() // F
        ctx.options = _options(F, F, (gate_bound, up_bound))
        run(glu_forward_kernel, _programs(N, ctx.options), gate, up, y, N, **ctx.options)
        ctx.save_for_backward(gate, up)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        dgate, dup, N = torch.empty_like(gate), torch.empty_like(up), gate.numel() // ctx.options["F"]
        run(glu_backward_kernel, _programs(N, ctx.options), gate, up, dy.contiguous(), dgate, dup, N, **ctx.options)
        return dgate, dup, None, None


class _Glu(torch.autograd.Function):
    """Gate and up as halves of one tensor: no copy on the way in, and one gradient instead of two to be joined."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate_bound: float | None, up_bound: float | None) -> Tensor:
        x = x.contiguous()
        F = x.shape[-1] // 2
        y, N = x.new_empty(*x.shape[:-1], F), x.numel() // (2 * F)
        ctx.options = _options(F, 2 * F, (gate_bound, up_bound))
        run(glu_forward_kernel, _programs(N, ctx.options), x, x[..., F:], y, N, **ctx.options)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        dx, F = torch.empty_like(x), ctx.options["F"]
        N = x.numel() // (2 * F)
        run(
            glu_backward_kernel, _programs(N, ctx.options),
            x, x[..., F:], dy.contiguous(), dx, dx[..., F:], N, **ctx.options,
        )  # fmt: skip
        return dx, None, None


def situ_glu(gate: Tensor, up: Tensor, gate_bound: float | None, up_bound: float | None) -> Tensor:
    """As the plain form; gate and up are not empty."""
    return _SituGlu.apply(gate, up, gate_bound, up_bound)  # type: ignore[return-value]


def glu(x: Tensor, gate_bound: float | None, up_bound: float | None) -> Tensor:
    """As the plain form; x is not empty."""
    return _Glu.apply(x, gate_bound, up_bound)  # type: ignore[return-value]
