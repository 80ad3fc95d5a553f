"""Short causal convolution with what follows it in a mixer (SiLU, unit heads, the split), one launch a direction.

The plain forms are in `neighbours/short_conv.py`. A program walks through time with the last rows in registers, so that
every row of the input, the outputs and their gradients crosses the memory bus about once. Its tile is G segments of time by
BD channels; a walk over a segment begins with the W - 1 rows before it and, backward, goes on over the W - 1 rows after it.
"""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mnemolab.kernels.derivatives import once_differentiable
from mnemolab.kernels.neighbours.short_conv import MAX_TAPS, MAX_UNIT
from mnemolab.kernels.triton.conv_tiles import (
    activate,
    before,
    convolve,
    filters_of,
    over_heads,
    row_of,
    segments_of,
    tile_of,
    window_of,
)
from mnemolab.kernels.triton.launch import run
from mnemolab.kernels.triton.sums import column_sums
from mnemolab.kernels.triton.table import padded

__all__ = ["MAX_TAPS", "MAX_UNIT", "short_conv", "short_conv_qkv"]

UNROLL = 4  # rows in a turn of the loop: fewer are moved from register to register


class Walk(NamedTuple):
    """How a direction walks. elements: of a row in a thread; rows: of a segment, a multiple of UNROLL; widest: channels of a
    tile; stages: turns of the loop whose rows are here or on their way. They come by way of shared memory: asked for from
    registers ahead of time, ptxas moves the loads back to where it saves registers, a row and a half before their use."""

    elements: int = 4
    rows: int = 32
    widest: int = 64
    stages: int = 3


FORWARD, BACKWARD = Walk(), Walk()


@triton.jit
def _walk(
    x_ptr, w_ptr, bias_ptr, cache_ptr, a_ptr, b_ptr, c_ptr, next_ptr, tile, b, start, owned, T, ROWS_, eps,
    A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, STRIDE: tl.constexpr, EVEN: tl.constexpr, K: tl.constexpr,
    BK: tl.constexpr, BD: tl.constexpr, W: tl.constexpr, SILU: tl.constexpr, U: tl.constexpr, STAGES: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    y_ptr, part, width, first, d, inside = tile_of(a_ptr, b_ptr, c_ptr, tile, A, B, C, K, BK, BD)
    inside, c, d = inside[None, :], (first + d)[None, :], d[None, :]
    w0, w1, w2, w3, bias = filters_of(w_ptr, bias_ptr, c, inside, W)
    real = inside & (owned > 0)
    x1, x2, x3 = window_of(x_ptr, cache_ptr, b, start, c, real, T, A + B + C, STRIDE, W)
    for r in tl.static_range(W - 1):
        head = real & (start == 0)
        last = before(x_ptr, cache_ptr, b, start + T - (W - 1) + r, c, head, T, A + B + C, STRIDE, W)
        tl.store(next_ptr + (b * (W - 1) + r) * (A + B + C) + c, last, mask=head)
    x_at = (b * T + start) * STRIDE + c
    y_at = (b * T + start) * width + d
    for i in tl.range(0, ROWS_, U, num_stages=STAGES):
        for u in tl.static_range(U):
            ready = i + u < owned
            x = row_of(x_ptr, x_at + u * STRIDE, ready, inside, EVEN).to(tl.float32)
            y, _slope = activate(convolve(x, x1, x2, x3, w0, w1, w2, w3, bias, W), part, SILU, PARTS)
            if K > 0 and PARTS != 4:
                y *= tl.rsqrt(over_heads(y * y, BK) + eps)
            if not EVEN:
                ready = ready & inside
            tl.store(y_ptr + y_at + u * width, y, mask=ready)
            x3 = x2
            x2 = x1
            x1 = x
        x_at += U * STRIDE
        y_at += U * width


@triton.jit(do_not_specialize=["T", "NS", "SEGMENTS", "ROWS_", "eps"])
def conv_forward_kernel(
    x_ptr, w_ptr, bias_ptr, cache_ptr, a_ptr, b_ptr, c_ptr, next_ptr, T, NS, SEGMENTS, ROWS_, eps,
    A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, STRIDE: tl.constexpr, TILES: tl.constexpr, KEYS: tl.constexpr,
    EVEN: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, G: tl.constexpr, W: tl.constexpr,
    SILU: tl.constexpr, U: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0) % TILES
    b, start, owned, _there = segments_of((tl.program_id(0) // TILES).to(tl.int64), T, NS, SEGMENTS, ROWS_, G)
    if KEYS == 0:
        _walk(
            x_ptr, w_ptr, bias_ptr, cache_ptr, a_ptr, b_ptr, c_ptr, next_ptr, tile, b, start, owned, T, ROWS_, eps,
            A, B, C, STRIDE, EVEN, K, BK, BD, W, SILU, U, STAGES, 7,
        )  # fmt: skip
    else:
        if tile < KEYS:
            _walk(
                x_ptr, w_ptr, bias_ptr, cache_ptr, a_ptr, b_ptr, c_ptr, next_ptr, tile, b, start, owned, T, ROWS_, eps,
                A, B, C, STRIDE, EVEN, K, BK, BD, W, SILU, U, STAGES, 3,
            )  # fmt: skip
        else:
            _walk(
                x_ptr, w_ptr, bias_ptr, cache_ptr, a_ptr, b_ptr, c_ptr, next_ptr, tile, b, start, owned, T, ROWS_, eps,
                A, B, C, STRIDE, EVEN, K, BK, BD, W, SILU, U, STAGES, 4,
            )  # fmt: skip


@triton.jit
def _copy(
    from_ptr, to_ptr, tile, first, N, ROWS_,
    FROM: tl.constexpr, TO: tl.constexpr, AT: tl.constexpr, BD: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Rows `first` to first + ROWS_ of N rows, FROM wide, into the columns from AT on of rows TO wide."""
    d = (tile * BD + tl.arange(0, BD))[None, :]
    for i in range(0, ROWS_, CHUNK):
        r = i + tl.arange(0, CHUNK)[:, None]
        mask = (r < ROWS_) & (first + r < N) & (d < FROM)
        x = tl.load(from_ptr + (first + r) * FROM + d, mask=mask, other=0.0)
        tl.store(to_ptr + (first + r) * TO + AT + d, x, mask=mask)


@triton.jit
def _before_activation(
    x, x1, x2, x3, dy, w0, w1, w2, w3, bias, part, eps,
    K: tl.constexpr, BK: tl.constexpr, W: tl.constexpr, SILU: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The gradient of a row of the convolution, from that of what the activation and the unit heads made of it."""
    y, slope = activate(convolve(x, x1, x2, x3, w0, w1, w2, w3, bias, W), part, SILU, PARTS)
    if K > 0 and PARTS != 4:
        scale = tl.rsqrt(over_heads(y * y, BK) + eps)
        dy = scale * (dy - y * (scale * scale * over_heads(dy * y, BK)))
    return dy * slope


@triton.jit
def _from_next(dnext_ptr, b, to, c, inside, CHANNELS: tl.constexpr, W: tl.constexpr):
    """Of the gradient of an input what came by way of the next cache, in whose row `to` it lies if that is not negative."""
    row = dnext_ptr + (b * (W - 1) + to) * CHANNELS + c
    return tl.load(row, mask=(to >= 0) & inside, other=0.0).to(tl.float32)


@triton.jit
def _walk_back(
    x_ptr, w_ptr, bias_ptr, cache_ptr, da_ptr, db_ptr, dc_ptr, dnext_ptr, dx_ptr, dw_ptr, dbias_ptr, dcache_ptr,
    tile, group, b, start, owned, there, T, ROWS_, eps,
    A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, STRIDE: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr,
    K: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, G: tl.constexpr, W: tl.constexpr, SILU: tl.constexpr,
    U: tl.constexpr, STAGES: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    dy_ptr, part, width, first, d, inside = tile_of(da_ptr, db_ptr, dc_ptr, tile, A, B, C, K, BK, BD)
    inside, c, d = inside[None, :], (first + d)[None, :], d[None, :]
    w0, w1, w2, w3, bias = filters_of(w_ptr, bias_ptr, c, inside, W)
    real = inside & (owned > 0)
    x1, x2, x3 = window_of(x_ptr, cache_ptr, b, start, c, real, T, A + B + C, STRIDE, W)
    # of the inputs 1, 2 and 3 tokens ago what is known of their gradient; of the filters the sums so far
    g1 = tl.zeros((G, BD), tl.float32)
    g2, g3, dw0, dw1, dw2, dw3, dbias = g1, g1, g1, g1, g1, g1, g1
    x_at = (b * T + start) * STRIDE + c
    y_at = (b * T + start) * width + d
    dx_at = (b * T + start) * WIDTH + c
    # the first rows complete no gradient of this segment's; what they give the filters is the segment's before, if there is one
    for r in tl.static_range(W - 1):
        x = row_of(x_ptr, x_at + r * STRIDE, r < there, inside, EVEN).to(tl.float32)
        dy = row_of(dy_ptr, y_at + r * width, r < there, inside, EVEN).to(tl.float32)
        dz = _before_activation(x, x1, x2, x3, dy, w0, w1, w2, w3, bias, part, eps, K, BK, W, SILU, PARTS)
        mine = tl.where(start == 0, dz, 0.0)
        dbias += mine
        dw0 += mine * x
        dw1 += mine * x1
        g1 += w1 * dz
        done = g1
        if W > 2:
            dw2 += mine * x2
            g2 += w2 * dz
            done = g2
        if W > 3:
            dw3 += mine * x3
            g3 += w3 * dz
            done = g3
        if dcache_ptr is not None:
            # a row of the next cache may be one of this
            if dnext_ptr is not None:
                done += _from_next(dnext_ptr, b, start + r - T, c, real & (start == 0), A + B + C, W)
            tl.store(dcache_ptr + (b * (W - 1) + r) * (A + B + C) + c, done, mask=real & (start == 0))
        g3 = g2
        g2 = g1
        g1 = w0 * dz
        x3 = x2
        x2 = x1
        x1 = x
    for i in tl.range(0, ROWS_, U, num_stages=STAGES):
        for u in tl.static_range(U):
            n = i + u + (W - 1)
            x = row_of(x_ptr, x_at + (u + W - 1) * STRIDE, n < there, inside, EVEN).to(tl.float32)
            dy = row_of(dy_ptr, y_at + (u + W - 1) * width, n < there, inside, EVEN).to(tl.float32)
            dz = _before_activation(x, x1, x2, x3, dy, w0, w1, w2, w3, bias, part, eps, K, BK, W, SILU, PARTS)
            dbias += dz
            dw0 += dz * x
            done = w0 * dz
            fresh = done
            if W > 1:
                dw1 += dz * x1
                g1 += w1 * dz
                done = g1
            if W > 2:
                dw2 += dz * x2
                g2 += w2 * dz
                done = g2
            if W > 3:
                dw3 += dz * x3
                g3 += w3 * dz
                done = g3
            ready = i + u < owned
            if dnext_ptr is not None:
                done += _from_next(dnext_ptr, b, start + n - T, c, real & ready, A + B + C, W)
            if not EVEN:
                ready = ready & inside
            tl.store(dx_ptr + dx_at + u * WIDTH, done, mask=ready)
            g3 = g2
            g2 = g1
            g1 = fresh
            x3 = x2
            x2 = x1
            x1 = x
        x_at += U * STRIDE
        y_at += U * width
        dx_at += U * WIDTH
    at = dw_ptr + (group * (A + B + C) + c) * W + (W - 1)
    tl.store(at, tl.sum(dw0, axis=0)[None, :], mask=inside)
    if W > 1:
        tl.store(at - 1, tl.sum(dw1, axis=0)[None, :], mask=inside)
    if W > 2:
        tl.store(at - 2, tl.sum(dw2, axis=0)[None, :], mask=inside)
    if W > 3:
        tl.store(at - 3, tl.sum(dw3, axis=0)[None, :], mask=inside)
    if dbias_ptr is not None:
        tl.store(dbias_ptr + group * (A + B + C) + c, tl.sum(dbias, axis=0)[None, :], mask=inside)


@triton.jit(do_not_specialize=["T", "NS", "SEGMENTS", "ROWS_", "eps"])
def conv_backward_kernel(
    x_ptr, w_ptr, bias_ptr, cache_ptr, da_ptr, db_ptr, dc_ptr, drest_ptr, dnext_ptr,
    dx_ptr, dw_ptr, dbias_ptr, dcache_ptr, T, NS, SEGMENTS, ROWS_, eps,
    A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, STRIDE: tl.constexpr, WIDTH: tl.constexpr, TILES: tl.constexpr,
    KEYS: tl.constexpr, COPIES: tl.constexpr, EVEN: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
    G: tl.constexpr, W: tl.constexpr, SILU: tl.constexpr, U: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dw and dbias are partial sums, one row a group of segments; the caller adds them up. The tiles after the
    convolution's copy the gradient of the columns that pass by it."""
    pid = tl.program_id(0)
    tile = pid % (TILES + COPIES)
    group = (pid // (TILES + COPIES)).to(tl.int64)
    b, start, owned, there = segments_of(group, T, NS, SEGMENTS, ROWS_, G)
    if tile < KEYS:
        if KEYS > 0:
            _walk_back(
                x_ptr, w_ptr, bias_ptr, cache_ptr, da_ptr, db_ptr, dc_ptr, dnext_ptr, dx_ptr, dw_ptr, dbias_ptr,
                dcache_ptr, tile, group, b, start, owned, there, T, ROWS_, eps,
                A, B, C, STRIDE, WIDTH, EVEN, K, BK, BD, G, W, SILU, U, STAGES, 3,
            )  # fmt: skip
    elif tile < TILES:
        _walk_back(
            x_ptr, w_ptr, bias_ptr, cache_ptr, da_ptr, db_ptr, dc_ptr, dnext_ptr, dx_ptr, dw_ptr, dbias_ptr,
            dcache_ptr, tile, group, b, start, owned, there, T, ROWS_, eps,
            A, B, C, STRIDE, WIDTH, EVEN, K, BK, BD, G, W, SILU, U, STAGES, 4 if KEYS > 0 else 7,
        )  # fmt: skip
    elif COPIES > 0:
        # of all rows in order, as many as the walks of this group take
        N = SEGMENTS // NS * T.to(tl.int64)
        _copy(
            drest_ptr, dx_ptr, tile - TILES, group * (G * ROWS_), N, G * ROWS_,
            WIDTH - A - B - C, WIDTH, A + B + C, BD, 8 * G,
        )  # fmt: skip


def _plan(
    walk: Walk, x: Tensor, W: int, sizes: tuple[int, int, int], silu: tuple[bool, bool, bool], unit: int
) -> dict[str, Any]:
    """A kernel's constants; under `segments` their number in a sequence, in all, and the rows of one."""
    B, T, _ = x.shape
    BK = padded(unit) if unit else 0
    BD = max(BK, min(walk.widest, padded(min(size for size in sizes if size))))
    # more threads than a tile has channels: else Triton (3.6) gives rows from shared memory the layout of the filters
    warps = max(4, BD // 16)
    wide, G = (BD // BK * unit if unit else BD), 32 * warps * walk.elements // BD
    keys = -(-sizes[0] // wide) + -(-sizes[1] // wide)
    tiles = keys + -(-sizes[2] // BD)
    rows = walk.rows
    # few programs: shorter walks, until every multiprocessor has one; many: fewer rows read twice, fewer partial sums
    while rows > 8 and B * -(-T // rows) * tiles < 256 * G:
        rows //= 2
    while rows < 128 and B * -(-T // rows) * tiles > 8192 * G:
        rows *= 2
    rows = min(rows, -(-T // UNROLL) * UNROLL)
    return {
        "segments": (-(-T // rows), B * -(-T // rows), rows),
        "A": sizes[0], "B": sizes[1], "C": sizes[2], "STRIDE": x.stride(1), "TILES": tiles,
        # q and k have code of their own where they are treated otherwise than v: chosen a row, both would be computed
        "KEYS": keys if sizes[2] and (unit or len(set(silu)) > 1) else 0,
        "EVEN": unit in (0, BK) and all(size % BD == 0 for size in sizes),
        "K": unit, "BK": BK, "BD": BD, "G": G, "W": W, "SILU": sum(on << p for p, on in enumerate(silu)), "U": UNROLL,
        "STAGES": walk.stages, "num_warps": warps,
    }  # fmt: skip


def _rows(x: Tensor) -> Tensor:
    """x (B,T,M), whose rows stand a constant stride apart over the whole batch, each contiguous."""
    B, T, M = x.shape
    even = (M == 1 or x.stride(2) == 1) and x.stride(1) >= M and (B == 1 or x.stride(0) == T * x.stride(1))
    return x if even else x.contiguous()


class _ShortConv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, mixed: Tensor, weight: Tensor, bias: Tensor | None, cache: Tensor | None,
        sizes: tuple[int, int, int], silu: tuple[bool, bool, bool], unit: int, eps: float,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        mixed, weight = _rows(mixed), weight.contiguous()
        bias, cache = (None if x is None else x.contiguous() for x in (bias, cache))
        (B, T, _), (channels, W) = mixed.shape, weight.shape
        parts = tuple(mixed.new_empty(B, T, size) for size in sizes)
        following = mixed.new_empty(B, W - 1, channels)
        plan = _plan(FORWARD, mixed, W, sizes, silu, unit)
        per_sequence, segments, rows = plan.pop("segments")
        run(
            conv_forward_kernel, (-(-segments // plan["G"]) * plan["TILES"],),
            mixed, weight, bias, cache, *parts, following, T, per_sequence, segments, rows, eps, **plan,
        )  # fmt: skip
        ctx.save_for_backward(mixed, weight, bias, cache)
        ctx.options = sizes, silu, unit, eps
        ctx.set_materialize_grads(False)
        return *parts, mixed[..., channels:], following

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        mixed, weight, bias, cache = ctx.saved_tensors
        sizes, silu, unit, eps = ctx.options
        (B, T, M), (channels, W) = mixed.shape, weight.shape
        *dparts, drest, dnext = gradients
        dparts = [
            mixed.new_zeros(B, T, size) if d is None else d.contiguous() for d, size in zip(dparts, sizes, strict=True)
        ]
        dmixed = torch.empty((B, T, M), dtype=mixed.dtype, device=mixed.device)
        if drest is None:
            dmixed[..., channels:] = 0
        drest = None if drest is None or M == channels else drest.contiguous()
        dnext = None if dnext is None or W == 1 else dnext.contiguous()
        dcache = None if cache is None else torch.empty_like(cache)
        plan = _plan(BACKWARD, mixed, W, sizes, silu, unit)
        per_sequence, segments, rows = plan.pop("segments")
        groups = -(-segments // plan["G"])
        dweight = torch.empty(groups, channels, W, dtype=torch.float32, device=mixed.device)
        dbias = None if bias is None else torch.empty(groups, channels, dtype=torch.float32, device=mixed.device)
        copies = 0 if drest is None else -(-(M - channels) // plan["BD"])
        run(
            conv_backward_kernel, (groups * (plan["TILES"] + copies),),
            mixed, weight, bias, cache, *dparts, drest, dnext, dmixed, dweight, dbias, dcache,
            T, per_sequence, segments, rows, eps, WIDTH=M, COPIES=copies, **plan,
        )  # fmt: skip
        dbias = None if bias is None or dbias is None else column_sums(dbias, bias.dtype)
        return dmixed, column_sums(dweight, weight.dtype), dbias, dcache, None, None, None, None


def short_conv_qkv(
    mixed: Tensor, weight: Tensor, bias: Tensor | None, cache: Tensor | None,
    sizes: tuple[int, int, int], silu: tuple[bool, bool, bool], unit: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As the plain form. B, T and the channels are positive; W is 1 to MAX_TAPS, `unit` at most MAX_UNIT."""
    return _ShortConv.apply(mixed, weight, bias, cache, sizes, silu, unit, eps)  # type: ignore[return-value]


def short_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, cache: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    """y (B,T,D) and the next cache (B,W-1,D), as the plain form gives them. B, T and D are positive; W to MAX_TAPS."""
    y, _, _, _, following = short_conv_qkv(x, weight, bias, cache, (x.shape[2], 0, 0), (silu,) * 3, 0, 0.0)
    return y, following
