"""Pieces of the short convolution's kernels: which channels and rows a program has, a row's convolution and activation."""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

__all__ = [
    "activate",
    "before",
    "convolve",
    "filters_of",
    "over_heads",
    "row_of",
    "segments_of",
    "tile_of",
    "window_of",
]


@triton.jit
def tile_of(
    a_ptr, b_ptr, c_ptr, tile, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr,
    K: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """The part that channel tile number `tile` lies in: its tensor, number, width, first channel in the input; then the
    tile's channels within the part and which of them exist. Parts are A, B and C wide; of A and B, whole heads of K."""
    wide: tl.constexpr = BD if K == 0 else BD // BK * K
    second: tl.constexpr = (A + wide - 1) // wide
    third: tl.constexpr = second + (B + wide - 1) // wide
    part = (tile >= second).to(tl.int32) + (tile >= third).to(tl.int32)
    ptr = a_ptr
    if part == 1:
        ptr = b_ptr
    if part == 2:
        ptr = c_ptr
    width = tl.where(part == 2, C, tl.where(part == 1, B, A))
    first = tl.where(part == 2, A + B, tl.where(part == 1, A, 0))
    j = tile - tl.where(part == 2, third, tl.where(part == 1, second, 0))
    lane = tl.arange(0, BD)
    d = j * BD + lane
    inside = d < width
    if wide != BD:
        headed = j * wide + lane // BK * K + lane % BK
        inside = tl.where(part == 2, inside, (lane % BK < K) & (headed < width))
        d = tl.where(part == 2, d, headed)
    return ptr, part, width, first, d, inside


@triton.jit
def segments_of(group, T, NS, SEGMENTS, ROWS_, G: tl.constexpr):
    """Of G segments: the sequence, the first row, how many rows from there belong to the segment and to the sequence."""
    s = group * G + tl.arange(0, G)
    start = (s % NS) * ROWS_
    # compared for every row: in 64 bits that is two instructions
    there = tl.where(s < SEGMENTS, T - start, 0).to(tl.int32)
    return (s // NS)[:, None], start[:, None], tl.minimum(there, ROWS_)[:, None], there[:, None]


@triton.jit
def before(x_ptr, cache_ptr, b, t, c, inside, T, CHANNELS, STRIDE: tl.constexpr, W: tl.constexpr):
    """Rows t of the input in float32, from the cache where t < 0; zero before the cache and from T on."""
    x = tl.load(x_ptr + (b * T + t) * STRIDE + c, mask=(t >= 0) & (t < T) & inside, other=0.0).to(tl.float32)
    if cache_ptr is not None:
        early = (t < 0) & (t > -W) & inside
        x += tl.load(cache_ptr + (b * (W - 1) + t + (W - 1)) * CHANNELS + c, mask=early, other=0.0).to(tl.float32)
    return x


@triton.jit
def tap(w_ptr, c, inside, j: tl.constexpr, W: tl.constexpr):
    """The filters' weight of the input j tokens ago; zero beyond the filter."""
    if j < W:
        return tl.load(w_ptr + c * W + (W - 1 - j), mask=inside, other=0.0).to(tl.float32)
    else:
        return tl.zeros(c.shape, tl.float32)


@triton.jit
def filters_of(w_ptr, bias_ptr, c, inside, W: tl.constexpr):
    """The filters' weights of the inputs 0 to 3 tokens ago, and the bias, of channels c (1, BD)."""
    bias = tl.zeros(c.shape, tl.float32)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + c, mask=inside, other=0.0).to(tl.float32)
    w0, w1 = tap(w_ptr, c, inside, 0, W), tap(w_ptr, c, inside, 1, W)
    w2, w3 = tap(w_ptr, c, inside, 2, W), tap(w_ptr, c, inside, 3, W)
    return w0, w1, w2, w3, bias


@triton.jit
def window_of(x_ptr, cache_ptr, b, start, c, real, T, CHANNELS, STRIDE: tl.constexpr, W: tl.constexpr):
    """The inputs 1, 2 and 3 tokens before each segment's first."""
    x1 = before(x_ptr, cache_ptr, b, start - 1, c, real, T, CHANNELS, STRIDE, W)
    x2 = before(x_ptr, cache_ptr, b, start - 2, c, real, T, CHANNELS, STRIDE, W)
    x3 = before(x_ptr, cache_ptr, b, start - 3, c, real, T, CHANNELS, STRIDE, W)
    return x1, x2, x3


@triton.jit
def convolve(x, x1, x2, x3, w0, w1, w2, w3, bias, W: tl.constexpr):
    """A row before the activation. What lies beyond the filter is left out, not weighted by 0: it may be infinite."""
    z = bias + w0 * x
    if W > 1:
        z += w1 * x1
    if W > 2:
        z += w2 * x2
    if W > 3:
        z += w3 * x3
    return z


@triton.jit
def over_heads(x, BK: tl.constexpr):
    """The sum over each head's BK channels, at each of them."""
    G: tl.constexpr = x.shape[0]
    BD: tl.constexpr = x.shape[1]
    heads = tl.reshape(x, (G, BD // BK, BK))
    sums = tl.broadcast_to(tl.sum(heads, axis=2)[:, :, None], (G, BD // BK, BK))
    return tl.reshape(sums, (G, BD))


@triton.jit
def activate(z, part, SILU: tl.constexpr, PARTS: tl.constexpr):
    """The activation of a row and its derivative. Bit p of SILU: part p has SiLU; of PARTS: the row may be of part p."""
    if SILU & PARTS == 0:
        return z, tl.zeros_like(z) + 1.0
    else:
        # 1 / (1 + exp(-z)) with neither a division nor a rescaled exponential: five instructions, which are twelve as written
        root = tl.rsqrt(1.0 + tl.exp2(z * -1.4426950408889634))
        s = root * root
        y = z * s
        slope = s + y * (1.0 - s)
        if SILU & PARTS != PARTS:
            on = ((SILU >> part) & 1) == 1
            y = tl.where(on, y, z)
            slope = tl.where(on, slope, 1.0)
        return y, slope


@triton.jit
def row_of(ptr, at, there, inside, EVEN: tl.constexpr):
    """A row of every segment, zero where it does not exist. EVEN: all of the tile's channels do."""
    if EVEN:
        return tl.load(ptr + at, mask=there, other=0.0)
    else:
        return tl.load(ptr + at, mask=there & inside, other=0.0)
