"""First kernel of the forward pass: all that a chunk needs and the state does not decide.

Inside a chunk of C tokens, with entering state S, erase keys e, written values z and G the sums of its gates:

    L = strict P[e, k];  A = lower P[q, k];  X = (I + L)^-1;  W = X (e exp(G))
    U = X z - W S;  o = scale (exp(G) q S + A U);  S' = exp(G_C) S + (exp(G_C - G) k)^T U

This kernel writes X, A, W and exp(G), exp(G_C - G), exp(G_C); under a per-channel decay exp(G) q and exp(G_C - G) k
instead of the first two factors.
"""

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


@triton.jit(do_not_specialize=["T", "H", "NT"])
def prepare_kernel(
    q_ptr, k_ptr, g_ptr, e_ptr, W_ptr, A_ptr, X_ptr, Q_ptr, K_ptr, G_ptr,
    sq_b, sq_t, sq_h, sk_b, sk_t, sk_h, T, H, NT,
    K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, RUN: tl.constexpr,
    DECAY: tl.constexpr, ERASE: tl.constexpr,
    P_NATIVE: tl.constexpr, P_PAIR: tl.constexpr, P_SUM: tl.constexpr, P_INVERSE: tl.constexpr, P_SMALL: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """DECAY and ERASE: 0 none, 1 scalar, 2 per channel. A program takes RUN chunks of one head, in a pipeline.

    G holds 2 C + 1 factors a chunk under a scalar decay (padded to 3 C), and BK under a per-channel decay.
    """
    runs = tl.cdiv(NT, RUN)
    pid = tl.program_id(0)
    bh = (pid // runs).to(tl.int64)
    b = bh // H
    h = bh % H
    wide = bh - bh  # an int64 zero: offsets past 2^31 must not wrap
    first = (pid % runs) * RUN
    i = tl.arange(0, C)
    d = tl.arange(0, BK)
    for n in tl.range(first, tl.minimum(first + RUN, NT), num_stages=STAGES):
        chunk = bh * NT + n
        row0 = wide + n * C
        t = n * C + i
        q = load_rows(q_ptr + b * sq_b + row0 * sq_t + h * sq_h, t, d, sq_t, T, K)
        k = load_rows(k_ptr + b * sk_b + row0 * sk_t + h * sk_h, t, d, sk_t, T, K)
        token = (b * T + row0) * H + h
        if ERASE == 1:
            beta = load_gate(e_ptr + token, t, H, T)
            e = beta[:, None] * k.to(tl.float32)
        elif ERASE == 2:
            e = k.to(tl.float32) * load_rows(e_ptr + token * K, t, d, H * K, T, K).to(tl.float32)
        else:
            e = k.to(tl.float32)
        if DECAY == 2:
            g = load_rows(g_ptr + token * K, t, d, H * K, T, K).to(tl.float32)
            g = tl.maximum(g, GATE_FLOOR)
            qf = q.to(tl.float32)
            kf = k.to(tl.float32)
            G, after, total = channel_sums(g, C, P_SUM)
            upto = exp(G, P_SUM)
            tl.store(panel(Q_ptr + chunk * (C * BK), C, BK), qf * upto)
            tl.store(panel(K_ptr + chunk * (C * BK), C, BK), kf * exp(after, P_SUM))
            tl.store(G_ptr + chunk * BK + d, exp(total, P_SUM))
            if is_mild(total):
                A, L = anchored_products(qf, kf, e, upto, exp(-G, P_SUM), C, ERASE, P_PAIR)
            else:
                A, L = split_products(qf, kf, e, g, C, ERASE, P_PAIR, P_SUM)
            e = e * upto
        else:
            kt = tl.trans(k)
            A = tl.where(lower_mask(C), mm(q, kt, P_NATIVE), 0.0)
            if ERASE == 1:
                L = tl.where(strict_mask(C), mm(k, kt, P_NATIVE), 0.0) * beta[:, None]
            else:
                L = tl.where(strict_mask(C), mm(e, kt, P_SMALL), 0.0)
            if DECAY == 1:
                g = load_gate(g_ptr + token, t, H, T)
                upto, after, total, decay = scalar_factors(g, C, P_SUM)
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
            tl.store(panel(W_ptr + chunk * (C * BK), C, BK), mm(X, e, P_SMALL))
