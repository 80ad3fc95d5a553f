"""Short causal convolution, forward and backward, one launch each. The plain form is `neighbours/short_conv.py`."""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mnemolab.kernels.derivatives import once_differentiable
from mnemolab.kernels.triton.table import padded

__all__ = ["short_conv"]

ROWS = 32


@triton.jit
def _input(x_ptr, cache_ptr, b, t, d, T, D, W: tl.constexpr):
    """Rows t of the input in float32, from the cache where t < 0; zero before the cache and from T on."""
    inside = (d < D)[None, :]
    x = tl.load(
        x_ptr + (b * T + t)[:, None] * D + d[None, :], mask=((t >= 0) & (t < T))[:, None] & inside, other=0.0
    ).to(tl.float32)
    if cache_ptr is not None:
        early = ((t < 0) & (t > -W))[:, None] & inside
        x += tl.load(cache_ptr + (b * (W - 1) + t + (W - 1))[:, None] * D + d[None, :], mask=early, other=0.0).to(
            tl.float32
        )
    return x


@triton.jit
def _convolved(x_ptr, w_ptr, bias_ptr, cache_ptr, b, t, d, T, D, W: tl.constexpr):
    z = tl.zeros((t.shape[0], d.shape[0]), tl.float32)
    if bias_ptr is not None:
        z += tl.load(bias_ptr + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
    for w in tl.static_range(W):
        tap = tl.load(w_ptr + d * W + w, mask=d < D, other=0.0).to(tl.float32)
        z += _input(x_ptr, cache_ptr, b, t - (W - 1 - w), d, T, D, W) * tap[None, :]
    return z


@triton.jit(do_not_specialize=["T"])
def forward_kernel(
    x_ptr, w_ptr, bias_ptr, cache_ptr, y_ptr, next_ptr, T, NT,
    D: tl.constexpr, W: tl.constexpr, SILU: tl.constexpr, R: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    d = (pid % tl.cdiv(D, BD)) * BD + tl.arange(0, BD)
    row = (pid // tl.cdiv(D, BD)).to(tl.int64)
    b = row // NT
    block = row % NT
    t = block * R + tl.arange(0, R)
    z = _convolved(x_ptr, w_ptr, bias_ptr, cache_ptr, b, t, d, T, D, W)
    if SILU:
        z = z * tl.sigmoid(z)
    tl.store(y_ptr + (b * T + t)[:, None] * D + d[None, :], z, mask=(t < T)[:, None] & (d < D)[None, :])
    if block == 0:
        for r in tl.static_range(W - 1):
            at = T - (W - 1) + r + tl.zeros((1,), tl.int64)
            last = _input(x_ptr, cache_ptr, b, at, d, T, D, W)
            there = next_ptr + (b * (W - 1) + r) * D + d[None, :] + tl.zeros((1, 1), tl.int32)
            tl.store(there, last, mask=(d < D)[None, :])


@triton.jit
def _dz(x_ptr, w_ptr, bias_ptr, cache_ptr, dy_ptr, b, t, d, T, D: tl.constexpr, W: tl.constexpr, SILU: tl.constexpr):
    """Gradient at rows t before the activation; zero outside 0..T."""
    mask = ((t >= 0) & (t < T))[:, None] & (d < D)[None, :]
    dz = tl.load(dy_ptr + (b * T + t)[:, None] * D + d[None, :], mask=mask, other=0.0).to(tl.float32)
    if SILU:
        z = _convolved(x_ptr, w_ptr, bias_ptr, cache_ptr, b, t, d, T, D, W)
        s = tl.sigmoid(z)
        dz = dz * s * (1.0 + z * (1.0 - s))
    return dz


@triton.jit(do_not_specialize=["T"])
def backward_kernel(
    x_ptr, w_ptr, bias_ptr, cache_ptr, dy_ptr, dnext_ptr, dx_ptr, dw_ptr, dbias_ptr, dcache_ptr, T, NT,
    D: tl.constexpr, W: tl.constexpr, SILU: tl.constexpr, R: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dw and dbias are partial sums, one row a (batch, block of time); the caller adds them up."""
    pid = tl.program_id(0)
    d = (pid % tl.cdiv(D, BD)) * BD + tl.arange(0, BD)
    row = (pid // tl.cdiv(D, BD)).to(tl.int64)
    b = row // NT
    block = row % NT
    t = block * R + tl.arange(0, R)
    here = _dz(x_ptr, w_ptr, bias_ptr, cache_ptr, dy_ptr, b, t, d, T, D, W, SILU)
    dx = tl.zeros((R, BD), tl.float32)
    for w in tl.static_range(W):
        tap = tl.load(w_ptr + d * W + w, mask=d < D, other=0.0).to(tl.float32)
        if w == W - 1:
            dx += here * tap[None, :]
        else:
            dx += _dz(x_ptr, w_ptr, bias_ptr, cache_ptr, dy_ptr, b, t + (W - 1 - w), d, T, D, W, SILU) * tap[None, :]
        seen = _input(x_ptr, cache_ptr, b, t - (W - 1 - w), d, T, D, W)
        tl.store(dw_ptr + (row * D + d) * W + w, tl.sum(here * seen, axis=0), mask=d < D)
    if dbias_ptr is not None:
        tl.store(dbias_ptr + row * D + d, tl.sum(here, axis=0), mask=d < D)
    if dnext_ptr is not None:
        r = t - T + (W - 1)
        kept = ((r >= 0) & (t < T))[:, None] & (d < D)[None, :]
        dx += tl.load(dnext_ptr + (b * (W - 1) + r)[:, None] * D + d[None, :], mask=kept, other=0.0).to(tl.float32)
    tl.store(dx_ptr + (b * T + t)[:, None] * D + d[None, :], dx, mask=(t < T)[:, None] & (d < D)[None, :])
    if dcache_ptr is not None:  # noqa: SIM102 (a constant first: the second is not even compiled)
        if block == 0:
            for r in tl.static_range(W - 1):
                # row r of the cache stands at time r - (W - 1)
                past = tl.zeros((1, BD), tl.float32)
                for w in tl.static_range(W):
                    at = r - w + tl.zeros((1,), tl.int64)
                    tap = tl.load(w_ptr + d * W + w, mask=d < D, other=0.0).to(tl.float32)
                    past += _dz(x_ptr, w_ptr, bias_ptr, cache_ptr, dy_ptr, b, at, d, T, D, W, SILU) * tap[None, :]
                if dnext_ptr is not None:
                    # with fewer tokens than W - 1, part of the old cache is handed on
                    to = r - T
                    past += tl.load(
                        dnext_ptr + (b * (W - 1) + to) * D + d[None, :] + tl.zeros((1, 1), tl.int32),
                        mask=(d < tl.where(to >= 0, D, 0))[None, :], other=0.0,
                    ).to(tl.float32)  # fmt: skip
                there = dcache_ptr + (b * (W - 1) + r) * D + d[None, :] + tl.zeros((1, 1), tl.int32)
                tl.store(there, past, mask=(d < D)[None, :])


def _tiles(B: int, T: int, D: int) -> tuple[int, int, tuple[int]]:
    BD = min(padded(D), 64)
    NT = -(-T // ROWS)
    return BD, NT, (B * NT * -(-D // BD),)


class _ShortConv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, cache: Tensor | None, silu: bool
    ) -> tuple[Tensor, Tensor]:
        x, weight = x.contiguous(), weight.contiguous()
        cache = None if cache is None else cache.contiguous()
        B, T, D = x.shape
        W = weight.shape[1]
        BD, NT, grid = _tiles(B, T, D)
        y, following = torch.empty_like(x), x.new_empty(B, W - 1, D)
        forward_kernel[grid](
            x, weight, bias, cache, y, following, T, NT, D=D, W=W, SILU=silu, R=ROWS, BD=BD, num_warps=4
        )
        ctx.save_for_backward(x, weight, bias, cache)
        ctx.silu = silu
        ctx.set_materialize_grads(False)
        return y, following

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dnext: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, bias, cache = ctx.saved_tensors
        B, T, D = x.shape
        W = weight.shape[1]
        BD, NT, grid = _tiles(B, T, D)
        dy = torch.zeros_like(x) if dy is None else dy.contiguous()
        dnext = None if dnext is None or W == 1 else dnext.contiguous()
        dx = torch.empty_like(x)
        dcache = None if cache is None else torch.empty_like(cache)
        dweight = torch.empty(B * NT, D, W, dtype=torch.float32, device=x.device)
        dbias = None if bias is None else torch.empty(B * NT, D, dtype=torch.float32, device=x.device)
        backward_kernel[grid](
            x, weight, bias, cache, dy, dnext, dx, dweight, dbias, dcache, T, NT,
            D=D, W=W, SILU=ctx.silu, R=ROWS, BD=BD, num_warps=4,
        )  # fmt: skip
        dbias = None if bias is None or dbias is None else dbias.sum(0).to(bias.dtype)
        return dx, dweight.sum(0).to(weight.dtype), dbias, dcache, None


def short_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, cache: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    """y (B,T,D) and the next cache (B,W-1,D), as the plain form gives them. B, T and D are positive; W is 1 to 8."""
    return _ShortConv.apply(x, weight, bias, cache, silu)  # type: ignore[return-value]
