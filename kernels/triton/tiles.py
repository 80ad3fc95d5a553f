"""Building blocks of the scan kernels: products of a stated precision, masked loads, sums of gates, the triangular inverse.

Axis letters: C tokens of a chunk, K key channels, V value channels, BK and BV their padded tiles. No value is ever
computed in bfloat16: tiles are loaded, cast to float32, and cast down only as operands of a product.
"""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

# exp(-104) is 0 in float32: a stronger gate, -inf included, wipes just the same and keeps sums finite
GATE_FLOOR = tl.constexpr(-104.0)


@triton.jit
def mm(a, b, P: tl.constexpr):
    """a @ b accumulated in float32; P is "bf16", "bf16a2" or "bf16b2" (a or b in two terms, where the other is bfloat16 as it
    is), or one of Triton's precisions for float32 operands."""
    if P == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    elif P == "bf16a2":
        high = a.to(tl.bfloat16)
        low = (a.to(tl.float32) - high.to(tl.float32)).to(tl.bfloat16)
        return tl.dot(low, b.to(tl.bfloat16), acc=tl.dot(high, b.to(tl.bfloat16)))
    elif P == "bf16b2":
        high = b.to(tl.bfloat16)
        low = (b.to(tl.float32) - high.to(tl.float32)).to(tl.bfloat16)
        return tl.dot(a.to(tl.bfloat16), low, acc=tl.dot(a.to(tl.bfloat16), high))
    else:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=P)


@triton.jit
def exp(x, P: tl.constexpr):
    """exp(x). Where P is "bf16", one machine instruction that takes denormal results as 0: a quarter of the exact cost."""
    if P == "bf16":
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * 1.4426950408889634], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp(x)


@triton.jit
def load_rows(base, t, d, stride_t, T, D):
    """Tile (C, BD) of rows t and channels d as stored; zero beyond T and D. `base` points to row 0 of the chunk."""
    i = tl.arange(0, t.shape[0])
    mask = (t < T)[:, None] & (d < D)[None, :]
    return tl.load(base + i[:, None] * stride_t + d[None, :], mask=mask, other=0.0)


@triton.jit
def store_rows(base, value, t, d, stride_t, T, D):
    i = tl.arange(0, t.shape[0])
    mask = (t < T)[:, None] & (d < D)[None, :]
    tl.store(base + i[:, None] * stride_t + d[None, :], value, mask=mask)


@triton.jit
def load_gate(base, t, stride_t, T):
    """(C,) scalars of one head, in float32; zero beyond T."""
    i = tl.arange(0, t.shape[0])
    return tl.load(base + i * stride_t, mask=t < T, other=0.0).to(tl.float32)


@triton.jit
def square(base, C: tl.constexpr):
    """Pointers of a contiguous (C, C) tile."""
    i = tl.arange(0, C)
    return base + i[:, None] * C + i[None, :]


@triton.jit
def panel(base, R: tl.constexpr, W: tl.constexpr):
    """Pointers of a contiguous (R, W) tile."""
    return base + tl.arange(0, R)[:, None] * W + tl.arange(0, W)[None, :]


@triton.jit
def columns(base, R: tl.constexpr, c, W: tl.constexpr):
    """Pointers of the columns c of a matrix of R rows that lies in contiguous panels of W columns."""
    return base + ((c // W) * (R * W) + c % W)[None, :] + tl.arange(0, R)[:, None] * W


@triton.jit
def lower_mask(C: tl.constexpr):
    i = tl.arange(0, C)
    return i[:, None] >= i[None, :]


@triton.jit
def strict_mask(C: tl.constexpr):
    i = tl.arange(0, C)
    return i[:, None] > i[None, :]


@triton.jit
def load_factors(base, C: tl.constexpr):
    """What `prepare.py` wrote of a scalar decay: exp(G), exp(G_C - G), each (C,), and exp(G_C)."""
    i = tl.arange(0, C)
    return tl.load(base + i), tl.load(base + C + i), tl.load(base + 2 * C)


@triton.jit
def scalar_factors(g, C: tl.constexpr, P: tl.constexpr):
    """The same from the gates themselves, and the (C, C) decay between rows."""
    upto, after, decay = scalar_sums(g, C, P)
    total = exp(tl.sum(tl.maximum(g, GATE_FLOOR), axis=0), P)
    return exp(upto, P), exp(after, P), total, decay


@triton.jit
def masked_sum(mask, g, P: tl.constexpr):
    """(C, BK) sums of the rows of g that `mask` (C, C) picks. With P "bf16" g enters as two bfloat16 terms: 2^-16."""
    ones = tl.where(mask, 1.0, 0.0)
    if P == "bf16":
        high = g.to(tl.bfloat16)
        return mm(ones, high, P) + mm(ones, g - high.to(tl.float32), P)
    else:
        return mm(ones, g, P)


@triton.jit
def scalar_sums(g, C: tl.constexpr, P: tl.constexpr):
    """From gates (C,): sums up to row i, sums after row i, and the (C, C) decay exp(sum over j < s <= i), 0 above.

    Every entry is a plain sum of gates, never a difference of prefix sums: nothing cancels after a strong gate. With P
    "bf16" differences do: with all gates at the floor they are off by 3e-4 (16 tokens) to 1e-3 (64), one in bfloat16's last place
    at most, and only between tokens that stand apart by strong gates.
    """
    g = tl.maximum(g, GATE_FLOOR)
    i = tl.arange(0, C)
    low = i[:, None] >= i[None, :]
    if P == "bf16":
        upto = tl.cumsum(g, axis=0)
        after = tl.minimum(tl.sum(g, axis=0) - upto, 0.0)
        between = tl.minimum(upto[:, None] - upto[None, :], 0.0)
    else:
        upto = tl.sum(tl.where(low, g[None, :], 0.0), axis=1)
        after = tl.sum(tl.where(low, 0.0, g[None, :]), axis=1)
        between = mm(tl.where(low, 1.0, 0.0), tl.where(i[:, None] > i[None, :], g[:, None], 0.0), P)
    decay = tl.where(low, exp(tl.where(low, between, 0.0), P), 0.0)
    return upto, after, decay


@triton.jit
def channel_sums(g, C: tl.constexpr, P: tl.constexpr):
    """From gates (C, BK), clamped by the caller: sums up to row i, after row i, (C, BK) each, and of all rows (BK,).

    As in `scalar_sums`, a difference serves where P is "bf16".
    """
    i = tl.arange(0, C)
    upto = masked_sum(i[:, None] >= i[None, :], g, P)
    total = tl.sum(g, axis=0)
    if P == "bf16":
        after = tl.minimum(total[None, :] - upto, 0.0)
    else:
        after = masked_sum(i[:, None] < i[None, :], g, P)
    return upto, after, total


@triton.jit
def split_decay(g, half, C: tl.constexpr, P: tl.constexpr):
    """(C, BK) factors of one split level: blocks of 2*half rows, anchored at their middle row a.

    A row i >= a gets exp(sum over a < s <= i), a row j < a gets exp(sum over j < s <= a), so the product for a pair
    j < a <= i is its decay. All exponents are sums of gates <= 0, and no gate after i enters.
    """
    i = tl.arange(0, C)
    anchor = (i // (2 * half)) * (2 * half) + half
    late = (i >= anchor)[:, None]
    s = i[None, :]
    a = anchor[:, None]
    t = i[:, None]
    pick = (late & (s > a) & (s <= t)) | ((t < a) & (s > t) & (s <= a))
    return exp(masked_sum(pick, g, P), P)


@triton.jit
def split_pairs(half, C: tl.constexpr):
    """(C, C) mask of the pairs that the level serves: i in the later and j in the earlier half of one block."""
    i = tl.arange(0, C)
    block = i // (2 * half)
    late = (i // half) % 2
    return (block[:, None] == block[None, :]) & (late[:, None] > late[None, :])


@triton.jit
def split_gate_mask(half, C: tl.constexpr):
    """(C, C) ones where row s of the level's pair sums enters the gate gradient of row t.

    Pairs (i, j) hold t when j < t <= i: for t in the later half all rows s >= t, in the earlier half all rows s < t.
    """
    i = tl.arange(0, C)
    block = i // (2 * half)
    late = ((i // half) % 2 == 1)[:, None]
    t = i[:, None]
    s = i[None, :]
    same = block[:, None] == block[None, :]
    return tl.where(same & ((late & (s >= t)) | (~late & (s < t))), 1.0, 0.0)


@triton.jit
def unit_lower_inverse(L, C: tl.constexpr, P: tl.constexpr):
    """(I + L)^-1 for strictly lower L (C, C): blocks of 2 are I - L, then merges X - X E X double them.

    A Neumann series in blocks of 8 takes as many products, but its powers outgrow the inverse on near-collinear keys and
    cancel: in tf32 that cost identical keys an error of 1.2e-2 in the output, where this one costs 1e-3.
    """
    i = tl.arange(0, C)
    row = i[:, None]
    col = i[None, :]
    X = tl.where(row == col, 1.0, 0.0) - tl.where(row // 2 == col // 2, L, 0.0)
    X = _merge(X, L, 2, C, P)
    X = _merge(X, L, 4, C, P)
    if C > 8:
        X = _merge(X, L, 8, C, P)
    if C > 16:
        X = _merge(X, L, 16, C, P)
    if C > 32:
        X = _merge(X, L, 32, C, P)
    return X


@triton.jit
def _merge(X, L, B: tl.constexpr, C: tl.constexpr, P: tl.constexpr):
    i = tl.arange(0, C)
    row = i[:, None]
    col = i[None, :]
    E = tl.where((row // (2 * B) == col // (2 * B)) & (row // B != col // B), L, 0.0)
    return X - mm(X, mm(E, X, P), P)
