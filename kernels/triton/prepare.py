"""First kernel of the forward pass: all that a chunk needs and the state does not decide, one program per chunk.

Inside a chunk of C tokens, with entering state S, erase keys e and written values z (reference in `scan.py`):

    L = strict P[e, k];  A = lower P[q, k];  X = (I + L)^-1;  W = X (e exp(G))
    U = X z - W S;  o = scale (exp(G) q S + A U);  S' = exp(G_C) S + (exp(G_C - G) k)^T U

This kernel writes X, A and W, and under a per-channel decay also exp(G) q, exp(G_C - G) k and exp(G_C).
"""

import triton
import triton.language as tl

from mnemolab.kernels.triton.pairs import pair_products
from mnemolab.kernels.triton.tiles import (
    GATE_FLOOR,
    channel_sums,
    load_gate,
    load_rows,
    lower_mask,
    mm,
    panel,
    scalar_sums,
    square,
    strict_mask,
    unit_lower_inverse,
)

__all__ = ["prepare_kernel"]


@triton.jit(do_not_specialize=["T", "H", "NT"])
def prepare_kernel(
    q_ptr, k_ptr, g_ptr, e_ptr, W_ptr, A_ptr, X_ptr, Q_ptr, K_ptr, G_ptr,
    sq_b, sq_t, sq_h, sk_b, sk_t, sk_h, T, H, NT,
    K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr,
    DECAY: tl.constexpr, ERASE: tl.constexpr, ANCHOR: tl.constexpr,
    P_NATIVE: tl.constexpr, P_PAIR: tl.constexpr, P_SUM: tl.constexpr, P_INVERSE: tl.constexpr, P_SMALL: tl.constexpr,
):  # fmt: skip
    """DECAY and ERASE: 0 none, 1 scalar, 2 per channel. Chunks of one head are contiguous in every output."""
    pid = tl.program_id(0)
    n = pid % NT
    bh = (pid // NT).to(tl.int64)
    b = bh // H
    h = bh % H
    chunk = bh * NT + n
    row0 = (n * C).to(tl.int64)
    t = n * C + tl.arange(0, C)
    d = tl.arange(0, BK)
    q = load_rows(q_ptr + b * sq_b + row0 * sq_t + h * sq_h, t, d, sq_t, T, K)
    k = load_rows(k_ptr + b * sk_b + row0 * sk_t + h * sk_h, t, d, sk_t, T, K)
    token = (b * T + row0) * H + h
    e = k
    if ERASE == 1:
        beta = load_gate(e_ptr + token, t, H, T)
        e = beta[:, None] * k
    if ERASE == 2:
        e = k * load_rows(e_ptr + token * K, t, d, H * K, T, K)
    if DECAY == 2:
        g = tl.maximum(load_rows(g_ptr + token * K, t, d, H * K, T, K), GATE_FLOOR)
        A, L = pair_products(q, k, e, g, C, ERASE, ANCHOR, P_PAIR, P_SUM)
        upto, after = channel_sums(g, C, P_SUM)
        tl.store(panel(Q_ptr + chunk * (C * BK), C, BK), q * tl.exp(upto))
        tl.store(panel(K_ptr + chunk * (C * BK), C, BK), k * tl.exp(after))
        tl.store(G_ptr + chunk * BK + d, tl.exp(tl.sum(g, axis=0)))
        e = e * tl.exp(upto)
    else:
        kt = tl.trans(k)
        A = tl.where(lower_mask(C), mm(q, kt, P_NATIVE), 0.0)
        if ERASE == 1:
            L = tl.where(strict_mask(C), mm(k, kt, P_NATIVE), 0.0) * beta[:, None]
        else:
            L = tl.where(strict_mask(C), mm(e, kt, P_SMALL), 0.0)
        if DECAY == 1:
            upto, after, decay = scalar_sums(load_gate(g_ptr + token, t, H, T), C, P_SUM)
            A *= decay
            L *= decay
            e = e * tl.exp(upto)[:, None]
    tl.store(square(A_ptr + chunk * (C * C), C), A)
    if ERASE:
        X = unit_lower_inverse(L, C, P_INVERSE)
        tl.store(square(X_ptr + chunk * (C * C), C), X)
        tl.store(panel(W_ptr + chunk * (C * BK), C, BK), mm(X, e, P_SMALL))
