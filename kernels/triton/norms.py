"""RMS norm with an output gate, and the L2 norm, forward and backward. The plain forms are in `neighbours/norms.py`."""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mnemolab.kernels.derivatives import once_differentiable
from mnemolab.kernels.triton.launch import run
from mnemolab.kernels.triton.sums import column_sums
from mnemolab.kernels.triton.table import padded

__all__ = ["PROGRAMS", "l2_norm", "rms_norm_gated", "rows_of"]

ACTIVATIONS = {"none": 0, "silu": 1, "sigmoid": 2}
# programs that share the rows of a backward pass, each with one partial sum of the weight's gradient
PROGRAMS = 528


@triton.jit
def _opening(g, ACT: tl.constexpr):
    """The gate's activation and its derivative."""
    if ACT == 0:
        return g, tl.zeros_like(g) + 1.0
    else:
        s = tl.sigmoid(g)
        if ACT == 1:
            return g * s, s * (1.0 + g * (1.0 - s))
        else:
            return s, s * (1.0 - s)


@triton.jit(do_not_specialize=["N", "eps"])
def gated_norm_forward_kernel(
    x_ptr, g_ptr, w_ptr, y_ptr, N, eps,
    D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr, ACT: tl.constexpr, GATE_FIRST: tl.constexpr,
    INNER: tl.constexpr, STEP: tl.constexpr, OUTER: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, BD)
    n = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    at = n[:, None] * D + d[None, :]
    mask = (n < N)[:, None] & (d < D)[None, :]
    y = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if g_ptr is not None:
        g_at = (n // INNER * OUTER + n % INNER * STEP)[:, None] + d[None, :]
        opening, _ = _opening(tl.load(g_ptr + g_at, mask=mask, other=0.0).to(tl.float32), ACT)
        if GATE_FIRST:
            y = y * opening
    y = y * tl.rsqrt(tl.sum(y * y, axis=1) / D + eps)[:, None]
    if w_ptr is not None:
        y = y * tl.load(w_ptr + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
    if g_ptr is not None:  # noqa: SIM102 (a constant first: the second is not even compiled)
        if not GATE_FIRST:
            y = y * opening
    tl.store(y_ptr + at, y, mask=mask)


@triton.jit(do_not_specialize=["N", "eps"])
def gated_norm_backward_kernel(
    x_ptr, g_ptr, w_ptr, dy_ptr, dx_ptr, dg_ptr, dw_ptr, N, eps,
    D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr, ACT: tl.constexpr, GATE_FIRST: tl.constexpr,
    INNER: tl.constexpr, STEP: tl.constexpr, OUTER: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, BD)
    pid = tl.program_id(0)
    weight = tl.full((1, BD), 1.0, tl.float32)
    if w_ptr is not None:
        weight = tl.load(w_ptr + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
    dw = tl.zeros((BD,), tl.float32)
    for block in range(pid, tl.cdiv(N, R), tl.num_programs(0)):
        n = tl.zeros((R,), tl.int64) + block * R + tl.arange(0, R)
        at = n[:, None] * D + d[None, :]
        mask = (n < N)[:, None] & (d < D)[None, :]
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        u = x
        if g_ptr is not None:
            g_at = (n // INNER * OUTER + n % INNER * STEP)[:, None] + d[None, :]
            opening, slope = _opening(tl.load(g_ptr + g_at, mask=mask, other=0.0).to(tl.float32), ACT)
            if GATE_FIRST:
                u = x * opening
        rstd = tl.rsqrt(tl.sum(u * u, axis=1) / D + eps)[:, None]
        unit = u * rstd
        if g_ptr is not None:  # noqa: SIM102 (a constant first: the second is not even compiled)
            if not GATE_FIRST:
                tl.store(dg_ptr + at, dy * unit * weight * slope, mask=mask)
                dy = dy * opening
        dw += tl.sum(dy * unit, axis=0)
        dy = dy * weight
        du = rstd * (dy - unit * (tl.sum(dy * unit, axis=1) / D)[:, None])
        if g_ptr is not None:  # noqa: SIM102 (a constant first: the second is not even compiled)
            if GATE_FIRST:
                tl.store(dg_ptr + at, du * x * slope, mask=mask)
                du = du * opening
        tl.store(dx_ptr + at, du, mask=mask)
    if dw_ptr is not None:
        tl.store(dw_ptr + pid.to(tl.int64) * D + d, dw, mask=d < D)


def rows_of(D: int) -> tuple[int, int]:
    """The padded width and how many rows fill a tile of about 4096 elements."""
    BD = padded(D)
    return BD, max(1, min(64, 4096 // BD))


def _even(x: Tensor, dims: int) -> int | None:
    """The stride between rows along the first `dims` axes of x, numbered in order; None where it is not one number."""
    step = apart = None
    for size, stride in zip(reversed(x.shape[:dims]), reversed(x.stride()[:dims]), strict=True):
        if size == 1:
            continue
        if apart is not None and stride != apart:
            return None
        step, apart = stride if step is None else step, stride * size
    return step or 0


def _spaced(x: Tensor) -> tuple[Tensor, dict[str, int]]:
    """x (...,D), and how its rows stand in memory: groups of INNER rows, STEP apart, the groups OUTER apart.

    A gate's heads are columns of a wider projection: read where they are, they need not be copied.
    """
    if x.stride(-1) == 1 or x.shape[-1] == 1:
        rows = x.dim() - 1
        outer = _even(x, rows)
        if outer is not None:
            return x, {"INNER": 1, "STEP": 0, "OUTER": outer}
        outer = _even(x, rows - 1)
        if outer is not None:
            return x, {"INNER": x.shape[-2], "STEP": x.stride(-2), "OUTER": outer}
    return x.contiguous(), {"INNER": 1, "STEP": 0, "OUTER": x.shape[-1]}


class _RmsNormGated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gate: Tensor | None, weight: Tensor | None, eps: float, act: int, gate_first: bool
    ) -> Tensor:
        x, weight = x.contiguous(), None if weight is None else weight.contiguous()
        D = x.shape[-1]
        gate, spaced = (None, _spaced(x)[1]) if gate is None else _spaced(gate)
        BD, R = rows_of(D)
        y, N = torch.empty_like(x), x.numel() // D
        run(
            gated_norm_forward_kernel, (-(-N // R),),
            x, gate, weight, y, N, eps, D=D, BD=BD, R=R, ACT=act, GATE_FIRST=gate_first, **spaced, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(x, gate, weight)
        ctx.options = eps, act, gate_first, spaced
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, gate, weight = ctx.saved_tensors
        eps, act, gate_first, spaced = ctx.options
        D = x.shape[-1]
        BD, R = rows_of(D)
        N = x.numel() // D
        programs = min(PROGRAMS, -(-N // R))
        dx, dgate = torch.empty_like(x), None if gate is None else gate.new_empty(gate.shape)
        dweight = None if weight is None else torch.empty(programs, D, dtype=torch.float32, device=x.device)
        run(
            gated_norm_backward_kernel, (programs,),
            x, gate, weight, dy.contiguous(), dx, dgate, dweight, N, eps,
            D=D, BD=BD, R=R, ACT=act, GATE_FIRST=gate_first, **spaced, num_warps=4,
        )  # fmt: skip
        dweight = None if weight is None or dweight is None else column_sums(dweight, weight.dtype)
        return dx, dgate, dweight, None, None, None


def rms_norm_gated(
    x: Tensor, gate: Tensor | None, weight: Tensor | None, eps: float, activation: str, gate_first: bool
) -> Tensor:
    """As the plain form; x (...,D) is not empty and D is at most 4096. The gate's rows may stand apart."""
    return _RmsNormGated.apply(x, gate, weight, eps, ACTIVATIONS[activation], gate_first)  # type: ignore[return-value]


@triton.jit(do_not_specialize=["N", "eps"])
def l2_norm_forward_kernel(x_ptr, y_ptr, N, eps, D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr):
    d = tl.arange(0, BD)
    n = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    at = n[:, None] * D + d[None, :]
    mask = (n < N)[:, None] & (d < D)[None, :]
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, x * tl.rsqrt(tl.sum(x * x, axis=1) + eps)[:, None], mask=mask)


@triton.jit(do_not_specialize=["N", "eps"])
def l2_norm_backward_kernel(x_ptr, dy_ptr, dx_ptr, N, eps, D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr):
    d = tl.arange(0, BD)
    n = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    at = n[:, None] * D + d[None, :]
    mask = (n < N)[:, None] & (d < D)[None, :]
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
    r = tl.rsqrt(tl.sum(x * x, axis=1) + eps)[:, None]
    unit = x * r
    tl.store(dx_ptr + at, r * (dy - unit * tl.sum(dy * unit, axis=1)[:, None]), mask=mask)


class _L2Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        D = x.shape[-1]
        BD, R = rows_of(D)
        y, N = torch.empty_like(x), x.numel() // D
        run(l2_norm_forward_kernel, (-(-N // R),), x, y, N, eps, D=D, BD=BD, R=R, num_warps=4)
        ctx.save_for_backward(x)
        ctx.eps = eps
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        D = x.shape[-1]
        BD, R = rows_of(D)
        dx, N = torch.empty_like(x), x.numel() // D
        run(l2_norm_backward_kernel, (-(-N // R),), x, dy.contiguous(), dx, N, ctx.eps, D=D, BD=BD, R=R, num_warps=4)
        return dx, None


def l2_norm(x: Tensor, eps: float) -> Tensor:
    """As the plain form; x (...,D) is not empty and D is at most 4096."""
    return _L2Norm.apply(x, eps)  # type: ignore[return-value]
