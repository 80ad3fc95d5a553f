"""Products inside one chunk under a per-channel decay, and their gradients.

P[a, b]_ij = sum_d a_id b_jd exp(sum over j < s <= i of g_sd), for i >= j. Two ways to evaluate it:

* split: a pair belongs to one of log2(C) levels, whose block of 2*half rows has it across its middle. With the middle
  row as anchor both factors have exponents <= 0, so any gate is exact and nothing overflows.
* anchored: one product with the first row as anchor, for chunks whose gates sum to more than SPAN on every channel.
  Its column factors reach exp(-SPAN), far inside float32. No gate after row i enters row i in either way.

The choice is made per chunk, from the gates alone. Realistic gates take the anchored way, which costs a quarter.
"""

import triton
import triton.language as tl

from mnemolab.kernels.triton.tiles import (
    channel_sums,
    masked_sum,
    mm,
    split_decay,
    split_gate_mask,
    split_pairs,
    strict_mask,
)

__all__ = ["channel_factors", "pair_gradients", "pair_products"]

SPAN = tl.constexpr(-40.0)


@triton.jit
def channel_factors(g, C: tl.constexpr, P: tl.constexpr):
    """From gates (C, BK): is the chunk mild, exp(G), exp(G_C - G), exp(G_C) (BK,), and the anchored factors.

    The anchored factors are exp of the sums of rows 1 to i and its inverse; without meaning when the chunk is not mild.
    """
    i = tl.arange(0, C)
    total = tl.sum(g, axis=0)
    x = masked_sum((i[None, :] >= 1) & (i[None, :] <= i[:, None]), g, P)
    mild = tl.min(x) > SPAN
    if mild:
        first = tl.sum(tl.where(i[:, None] == 0, g, 0.0), axis=0)
        row = tl.exp(x)
        col = tl.exp(-x)
        upto = row * tl.exp(first)[None, :]
        after = col * tl.exp(total - first)[None, :]
    else:
        upto, after = channel_sums(g, C, P)
        upto = tl.exp(upto)
        after = tl.exp(after)
        row = upto
        col = after
    return mild, upto, after, tl.exp(total), row, col


@triton.jit
def pair_products(
    q, k, e, g, mild, row, col, C: tl.constexpr, ERASE: tl.constexpr, P: tl.constexpr, P_SUM: tl.constexpr
):
    """A = P[q, k] with its diagonal and L = P[e, k] below the diagonal, (C, C) each; L is zero without erase."""
    if mild:
        A, L = _anchored_products(q, k, e, row, col, C, ERASE, P)
    else:
        A, L = _split_products(q, k, e, g, C, ERASE, P, P_SUM)
    i = tl.arange(0, C)
    return tl.where(i[:, None] == i[None, :], tl.sum(q * k, axis=1)[:, None], A), L


@triton.jit
def _anchored_products(q, k, e, row, col, C: tl.constexpr, ERASE: tl.constexpr, P: tl.constexpr):
    kf = tl.trans(k * col)
    A = tl.where(strict_mask(C), mm(q * row, kf, P), 0.0)
    L = tl.zeros((C, C), tl.float32)
    if ERASE:
        L = tl.where(strict_mask(C), mm(e * row, kf, P), 0.0)
    return A, L


@triton.jit
def _split_products(q, k, e, g, C: tl.constexpr, ERASE: tl.constexpr, P: tl.constexpr, P_SUM: tl.constexpr):
    A = tl.zeros((C, C), tl.float32)
    L = tl.zeros((C, C), tl.float32)
    half = C // 2
    # a loop, not unrolled: one level's code serves all, at a quarter of the registers and compile time
    while half >= 1:
        f = split_decay(g, half, C, P_SUM)
        pairs = split_pairs(half, C)
        kf = tl.trans(k * f)
        A += tl.where(pairs, mm(q * f, kf, P), 0.0)
        if ERASE:
            L += tl.where(pairs, mm(e * f, kf, P), 0.0)
        half = half // 2
    return A, L


@triton.jit
def pair_gradients(
    q, k, e, g, dA, dL, mild, row, col, C: tl.constexpr, ERASE: tl.constexpr, P: tl.constexpr, P_SUM: tl.constexpr,
    P_GATE: tl.constexpr,
):  # fmt: skip
    """Gradients (C, BK) of q, k, e and g through A = P[q, k] and L = P[e, k], given dA and dL (C, C).

    The gate gradient of row t sums the pairs (i, j) with i >= t > j. The split way forms that sum itself; the anchored
    way takes it as a difference of two suffix sums, whose terms are of its own size because the gates are mild.
    """
    i = tl.arange(0, C)
    diagonal = tl.sum(tl.where(i[:, None] == i[None, :], dA, 0.0), axis=1)[:, None]
    dA = tl.where(strict_mask(C), dA, 0.0)
    dL = tl.where(strict_mask(C), dL, 0.0)
    if mild:
        dq, dk, de, dg = _anchored_gradients(q, k, e, dA, dL, row, col, C, ERASE, P, P_GATE)
    else:
        dq, dk, de, dg = _split_gradients(q, k, e, g, dA, dL, C, ERASE, P, P_SUM, P_GATE)
    return dq + diagonal * k, dk + diagonal * q, de, dg


@triton.jit
def _anchored_gradients(
    q, k, e, dA, dL, row, col, C: tl.constexpr, ERASE: tl.constexpr, P: tl.constexpr, P_GATE: tl.constexpr
):
    kf = k * col
    dq = row * mm(dA, kf, P)
    back = mm(tl.trans(dA), q * row, P)
    pairs = dq * q
    de = tl.zeros_like(dq)
    if ERASE:
        de = row * mm(dL, kf, P)
        back += mm(tl.trans(dL), e * row, P)
        pairs += de * e
    dk = col * back
    i = tl.arange(0, C)
    dg = mm(tl.where(i[:, None] <= i[None, :], 1.0, 0.0), pairs - dk * k, P_GATE)
    return dq, dk, de, dg


@triton.jit
def _split_gradients(
    q, k, e, g, dA, dL, C: tl.constexpr, ERASE: tl.constexpr, P: tl.constexpr, P_SUM: tl.constexpr, P_GATE: tl.constexpr
):
    dq = tl.zeros_like(q)
    dk = tl.zeros_like(q)
    de = tl.zeros_like(q)
    dg = tl.zeros_like(q)
    half = C // 2
    while half >= 1:
        f = split_decay(g, half, C, P_SUM)
        pairs = split_pairs(half, C)
        kf = k * f
        M = tl.where(pairs, dA, 0.0)
        row = f * mm(M, kf, P)
        back = mm(tl.trans(M), q * f, P)
        held = row * q
        dq += row
        if ERASE:
            N = tl.where(pairs, dL, 0.0)
            row = f * mm(N, kf, P)
            back += mm(tl.trans(N), e * f, P)
            held += row * e
            de += row
        back = f * back
        dk += back
        # rows of the later half hold q and e terms, rows of the earlier half k terms: one product sums both
        dg += mm(split_gate_mask(half, C), held + back * k, P_GATE)
        half = half // 2
    return dq, dk, de, dg
