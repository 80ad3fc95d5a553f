"""First kernel of the forward pass: all that a chunk needs and the state does not decide.

Inside a chunk of C tokens, with entering state S, erase keys e, written values z and G the sums of its gates:

    L = strict P[e, k];  A = lower P[q, k];  X = (I + L)^-1;  W = X (e exp(G))
    U = X z - W S;  o = scale (exp(G) q S + A U);  S' = exp(G_C) S + (exp(G_C - G) k)^T U

This kernel writes X, A, W and exp(G), exp(G_C - G), exp(G_C); under a per-channel decay exp(G) q and exp(G_C - G) k
instead of the first two factors.
"""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

from mnemolab.kernels.triton.pairs import anchored_products, is_mild, split_products
from mnemolab.kernels.triton.tiles import (
    GATE_FLOOR,
    channel_sums,
    exp,
    load_gate,
    load_rows,
    lower_mask,
    mm,
    panel,
    scalar_factors,
    square,
    strict_mask,
    unit_lower_inverse,
)

__all__ = ["prepare_kernel"]


@triton.jit
def _gated_tile(
    q_at, k_at, g_at, e_at, t, d, sq_t, sk_t, H, T, K: tl.constexpr, ERASE: tl.constexpr,
):  # fmt: skip
    """Tiles (C, TK) of q, k, e and the gates, for the key channels d."""
    q = load_rows(q_at, t, d, sq_t, T, K).to(tl.float32)
    k = load_rows(k_at, t, d, sk_t, T, K).to(tl.float32)
    g = tl.maximum(load_rows(g_at, t, d, H * K, T, K).to(tl.float32), GATE_FLOOR)
    if ERASE == 1:
        e = load_gate(e_at, t, H, T)[:, None] * k
    elif ERASE == 2:
        e = k * load_rows(e_at, t, d, H * K, T, K).to(tl.float32)
    else:
        e = k
    return q, k, e, g


@triton.jit
def _gated_pairs(
    first, q_at, k_at, g_at, e_at, Q_at, K_at, G_at, t, sq_t, sk_t, H, T, K: tl.constexpr, BK: tl.constexpr,
    TK: tl.constexpr, C: tl.constexpr, ERASE: tl.constexpr, P_PAIR: tl.constexpr, P_SUM: tl.constexpr,
):  # fmt: skip
    """What the TK channels from `first` add to A and L, and their e exp(G); writes their factors."""
    d = first + tl.arange(0, TK)
    q, k, e, g = _gated_tile(q_at, k_at, g_at, e_at, t, d, sq_t, sk_t, H, T, K, ERASE)
    G, after, total = channel_sums(g, C, P_SUM)
    row = exp(G, P_SUM)
    to = tl.arange(0, C)[:, None] * BK + d[None, :]
    tl.store(Q_at + to, q * row)
    tl.store(K_at + to, k * exp(after, P_SUM))
    tl.store(G_at + d, exp(total, P_SUM))
    if is_mild(total):
        A, L = anchored_products(q, k, e, row, exp(-G, P_SUM), C, ERASE, P_PAIR)
    else:
        A, L = split_products(q, k, e, g, C, ERASE, P_PAIR, P_SUM)
    return A, L, e * row


@triton.jit(do_not_specialize=["T", "H", "NT"])
def prepare_kernel(
    q_ptr, k_ptr, g_ptr, e_ptr, W_ptr, A_ptr, X_ptr, Q_ptr, K_ptr, G_ptr,
    sq_b, sq_t, sq_h, sk_b, sk_t, sk_h, T, H, NT,
    K: tl.constexpr, BK: tl.constexpr, TK: tl.constexpr, C: tl.constexpr,
    DECAY: tl.constexpr, ERASE: tl.constexpr,
    P_NATIVE: tl.constexpr, P_PAIR: tl.constexpr, P_SUM: tl.constexpr, P_INVERSE: tl.constexpr, P_SMALL: tl.constexpr,
):  # fmt: skip
    """DECAY and ERASE: 0 none, 1 scalar, 2 per channel. One program a chunk; under a per-channel decay it goes through the
    key channels in tiles of TK, since both operands of a gated product are made anew and stay in registers.

    G holds 2 C + 1 factors a chunk under a scalar decay (padded to 3 C), and BK under a per-channel decay.
    """
    pid = tl.program_id(0)
    bh = (pid // NT).to(tl.int64)
    b = bh // H
    h = bh % H
    n = pid % NT
    chunk = bh * NT + n
    row0 = (n * C).to(tl.int64)
    i = tl.arange(0, C)
    t = n * C + i
    token = (b * T + row0) * H + h
    q_at = q_ptr + b * sq_b + row0 * sq_t + h * sq_h
    k_at = k_ptr + b * sk_b + row0 * sk_t + h * sk_h
    e_at = e_ptr
    if ERASE == 1:
        e_at = e_ptr + token
    if ERASE == 2:
        e_at = e_ptr + token * K
    if DECAY == 2:
        g_at = g_ptr + token * K
        Q_at = Q_ptr + chunk * (C * BK)
        K_at = K_ptr + chunk * (C * BK)
        G_at = G_ptr + chunk * BK
        if TK == BK:
            A, L, e = _gated_pairs(
                0, q_at, k_at, g_at, e_at, Q_at, K_at, G_at, t, sq_t, sk_t, H, T, K, BK, TK, C, ERASE, P_PAIR, P_SUM
            )
        else:
            A = tl.zeros((C, C), tl.float32)
            L = tl.zeros((C, C), tl.float32)
            for first in tl.range(0, BK, TK):
                pA, pL, _ = _gated_pairs(
                    first, q_at, k_at, g_at, e_at, Q_at, K_at, G_at, t, sq_t, sk_t, H, T, K, BK, TK, C, ERASE, P_PAIR,
                    P_SUM,
                )  # fmt: skip
                A += pA
                L += pL
    else:
        d = tl.arange(0, BK)
        q = load_rows(q_at, t, d, sq_t, T, K)
        k = load_rows(k_at, t, d, sk_t, T, K)
        kt = tl.trans(k)
        A = tl.where(lower_mask(C), mm(q, kt, P_NATIVE), 0.0)
        if ERASE == 1:
            beta = load_gate(e_at, t, H, T)
            e = beta[:, None] * k.to(tl.float32)
            L = tl.where(strict_mask(C), mm(k, kt, P_NATIVE), 0.0) * beta[:, None]
        else:
            e = k.to(tl.float32) * load_rows(e_at, t, d, H * K, T, K).to(tl.float32)
            L = tl.where(strict_mask(C), mm(e, kt, P_SMALL), 0.0)
        if DECAY == 1:
            upto, after, total, decay = scalar_factors(load_gate(g_ptr + token, t, H, T), C, P_SUM)
            A *= decay
            L *= decay
            e = e * upto[:, None]
            at = G_ptr + chunk * (3 * C) + i
            tl.store(at, upto)
            tl.store(at + C, after)
            tl.store(at + 2 * C, total + tl.zeros((C,), tl.float32))
    tl.store(square(A_ptr + chunk * (C * C), C), A)
    if ERASE:
        X = unit_lower_inverse(L, C, P_INVERSE)
        tl.store(square(X_ptr + chunk * (C * C), C), X)
        if DECAY == 2 and TK < BK:
            for first in tl.range(0, BK, TK):
                d = first + tl.arange(0, TK)
                _, _, e, g = _gated_tile(q_at, k_at, g_at, e_at, t, d, sq_t, sk_t, H, T, K, ERASE)
                G, _, _ = channel_sums(g, C, P_SUM)
                to = chunk * (C * BK) + i[:, None] * BK + d[None, :]
                tl.store(W_ptr + to, mm(X, e * exp(G, P_SUM), P_SMALL))
        else:
            tl.store(panel(W_ptr + chunk * (C * BK), C, BK), mm(X, e, P_SMALL))
