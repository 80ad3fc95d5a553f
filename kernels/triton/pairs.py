"""Products inside one chunk under a per-channel decay, and their gradients.

P[a, b]_ij = sum_d a_id b_jd exp(sum over j < s <= i of g_sd), for i >= j. Two ways to evaluate it:

* split: a pair belongs to one of log2(C) levels, whose block of 2*half rows has it across its middle. With the middle
  row as anchor both factors have exponents <= 0, so any gate is exact and nothing overflows.
* anchored: one product of a exp(G) and b exp(-G), G the sums of gates from the start of the chunk, for mild chunks: those
  whose gates sum to more than SPAN on every channel, so that exp(-G) stays far inside float32.

No gate after row i enters row i in either way. The choice is made per chunk, from the gates alone: realistic gates take
the anchored way, which costs a quarter. The kernels branch around whole tails, not around these functions: merging large
tiles after a branch costs more registers than both of its arms.
"""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

from mnemolab.kernels.triton.tiles import mm, split_decay, split_gate_mask, split_pairs, strict_mask

__all__ = ["anchored_gradients", "anchored_products", "is_mild", "split_gradients", "split_products"]

SPAN = tl.constexpr(-40.0)


@triton.jit
def is_mild(total):
    """May the chunk whose gates sum to total (BK,) take the anchored way?"""
    return tl.min(total) > SPAN


@triton.jit
def _with_diagonal(A, q, k, C: tl.constexpr):
    i = tl.arange(0, C)
    return tl.where(i[:, None] == i[None, :], tl.sum(q * k, axis=1)[:, None], A)


@triton.jit
def anchored_products(q, k, e, row, col, C: tl.constexpr, ERASE: tl.constexpr, P: tl.constexpr):
    """A = P[q, k] with its diagonal and L = P[e, k] below the diagonal, (C, C) each; row = exp(G), col = exp(-G)."""
    kf = tl.trans(k * col)
    A = _with_diagonal(tl.where(strict_mask(C), mm(q * row, kf, P), 0.0), q, k, C)
    L = tl.zeros((C, C), tl.float32)
    if ERASE:
        L = tl.where(strict_mask(C), mm(e * row, kf, P), 0.0)
    return A, L


@triton.jit
def split_products(q, k, e, g, C: tl.constexpr, ERASE: tl.constexpr, P: tl.constexpr, P_SUM: tl.constexpr):
    """The same for any gates g (C, BK)."""
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
    return _with_diagonal(A, q, k, C), L


@triton.jit
def _masked(dA, dL, C: tl.constexpr):
    """dA and dL below the diagonal, and dA's diagonal (C, 1): a token's own pair has no gate between."""
    i = tl.arange(0, C)
    diagonal = tl.sum(tl.where(i[:, None] == i[None, :], dA, 0.0), axis=1)[:, None]
    return tl.where(strict_mask(C), dA, 0.0), tl.where(strict_mask(C), dL, 0.0), diagonal


@triton.jit
def anchored_gradients(
    q, k, e, dA, dL, row, col, C: tl.constexpr, ERASE: tl.constexpr, P: tl.constexpr, P_GATE: tl.constexpr
):
    """Gradients (C, BK) of q, k, e and g through A = P[q, k] and L = P[e, k], given dA and dL (C, C).

    The gate gradient of row t sums the pairs (i, j) with i >= t > j: here a difference of two suffix sums, whose terms are
    of its own size because the gates are mild.
    """
    dA, dL, diagonal = _masked(dA, dL, C)
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
    return dq + diagonal * k, dk + diagonal * q, de, dg


@triton.jit
def split_gradients(
    q, k, e, g, dA, dL, C: tl.constexpr, ERASE: tl.constexpr, P: tl.constexpr, P_SUM: tl.constexpr, P_GATE: tl.constexpr
):
    """The same for any gates g (C, BK); the gate gradient's pairs are summed as such, without cancellation."""
    dA, dL, diagonal = _masked(dA, dL, C)
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
    return dq + diagonal * k, dk + diagonal * q, de, dg
