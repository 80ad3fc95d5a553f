"""Second kernel of the forward pass: the recurrence over chunks, one program per (batch, head, tile of V), or where heads are
few per (batch, head, segment, tile of V), with the states that enter the segments from `segments.py`.

Only two products per chunk depend on the previous chunk (W S and k^T U), since `prepare.py` has solved the chunk. Value
tiles are independent of each other. Without erase and per-channel decay nothing needs preparing: A is formed here.
"""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

from mnemolab.kernels.triton.tiles import (
    columns,
    load_factors,
    load_gate,
    load_rows,
    lower_mask,
    mm,
    panel,
    scalar_factors,
    square,
    store_rows,
)

__all__ = ["forward_kernel"]


@triton.jit(do_not_specialize=["T", "H", "NT", "span", "scale", "eps"])
def forward_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, w_ptr, s0_ptr, z0_ptr,
    W_ptr, A_ptr, X_ptr, Q_ptr, K_ptr, G_ptr,
    o_ptr, sT_ptr, zT_ptr, S_ptr, U_ptr, den_ptr, z_ptr, r_ptr,
    sq_b, sq_t, sq_h, sk_b, sk_t, sk_h, sv_b, sv_t, sv_h, T, H, NT, span, scale, eps,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, FV: tl.constexpr, GV: tl.constexpr, C: tl.constexpr,
    DECAY: tl.constexpr, ERASE: tl.constexpr, WRITE: tl.constexpr, NORM: tl.constexpr, SAVE: tl.constexpr,
    SEGMENTED: tl.constexpr,
    P_NATIVE: tl.constexpr, P_STATE: tl.constexpr, P_SMALL: tl.constexpr, P_SUM: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Writes o, the final state, and with SAVE the state before each chunk, U (both in panels of GV columns, as `gradients.py` takes
    them), and what `normalize` needs again. SEGMENTED: segments are of `span` chunks, s0 (BH, NS, BK, FV) and z0 (BH, NS, BK)
    enter them."""
    NV: tl.constexpr = FV // BV
    pid = tl.program_id(0)
    iv = pid % NV
    if SEGMENTED:
        NS = tl.cdiv(NT, span)
        at = (pid // NV).to(tl.int64)
        bh = at // NS
        first = (pid // NV) % NS * span
        stop = tl.minimum(first + span, NT)
    else:
        bh = (pid // NV).to(tl.int64)
        first = 0
        stop = NT
    b = bh // H
    h = bh % H
    d = tl.arange(0, BK)
    c = iv * BV + tl.arange(0, BV)
    i = tl.arange(0, C)
    wide = bh - bh  # an int64 zero: offsets past 2^31 must not wrap
    inside = (d < K)[:, None] & (c < V)[None, :]
    s = tl.zeros((BK, BV), tl.float32)
    if SEGMENTED:
        s = tl.load(s0_ptr + at * (BK * FV) + d[:, None] * FV + c[None, :])
    elif s0_ptr is not None:
        s = tl.load(s0_ptr + bh * (K * V) + d[:, None] * V + c[None, :], mask=inside, other=0.0).to(tl.float32)
    if NORM:
        z = tl.zeros((BK,), tl.float32)
        if SEGMENTED:
            z = tl.load(z0_ptr + at * BK + d)
        elif z0_ptr is not None:
            z = tl.load(z0_ptr + bh * K + d, mask=d < K, other=0.0).to(tl.float32)
    for n in tl.range(first, stop, num_stages=STAGES):
        chunk = bh * NT + n
        row0 = wide + n * C
        t = n * C + i
        token = (b * T + row0) * H + h
        v = load_rows(v_ptr + b * sv_b + row0 * sv_t + h * sv_h, t, c, sv_t, T, V)
        if WRITE == 1:
            w = load_gate(w_ptr + token, t, H, T)
            if ERASE:
                v = v.to(tl.float32) * w[:, None]
        if WRITE == 2:
            v = v.to(tl.float32) * load_rows(w_ptr + token * V, t, c, H * V, T, V).to(tl.float32)
        if DECAY == 2:
            q = tl.load(panel(Q_ptr + chunk * (C * BK), C, BK))
            k = tl.load(panel(K_ptr + chunk * (C * BK), C, BK))
            gc = tl.load(G_ptr + chunk * BK + d)
        else:
            q = load_rows(q_ptr + b * sq_b + row0 * sq_t + h * sq_h, t, d, sq_t, T, K)
            k = load_rows(k_ptr + b * sk_b + row0 * sk_t + h * sk_h, t, d, sk_t, T, K)
        if ERASE or DECAY == 2:
            A = tl.load(square(A_ptr + chunk * (C * C), C))
            if DECAY == 1:
                upto, after, total = load_factors(G_ptr + chunk * (3 * C), C)
        else:
            A = tl.where(lower_mask(C), mm(q, tl.trans(k), P_NATIVE), 0.0)
            if DECAY == 1:
                upto, after, total, decay = scalar_factors(load_gate(g_ptr + token, t, H, T), C, P_SUM)
                A *= decay
        if SAVE:
            tl.store(columns(S_ptr + chunk * (BK * FV), BK, c, GV), s)
        if ERASE:
            X = tl.load(square(X_ptr + chunk * (C * C), C))
            W = tl.load(panel(W_ptr + chunk * (C * BK), C, BK))
            u = mm(X, v, P_SMALL) - mm(W, s, P_STATE)
            if SAVE:
                tl.store(columns(U_ptr + chunk * (C * FV), C, c, GV), u)
        else:
            u = v
        o = mm(q, s, P_STATE)
        if DECAY == 1:
            o *= upto[:, None]
        if WRITE == 1 and not ERASE:
            # the gate goes to A and to what is added to the state: v stays as it was stored
            o += mm(A * w[None, :], v, P_SMALL)
            u = v.to(tl.float32) * w[:, None]
        else:
            o += mm(A, u, P_SMALL)
        o *= scale
        if NORM:
            if WRITE == 0:
                r = tl.where(t < T, 1.0, 0.0)
            if WRITE == 1:
                r = w
            if WRITE == 2:
                full = load_rows(w_ptr + token * V, t, tl.arange(0, FV), H * V, T, V)
                r = tl.sum(full.to(tl.float32), axis=1) / V
            if ERASE:
                r = tl.sum(X.to(tl.float32) * r[None, :], axis=1) - tl.sum(W.to(tl.float32) * z[None, :], axis=1)
            read = tl.sum(q.to(tl.float32) * z[None, :], axis=1)
            if DECAY == 1:
                read *= upto
            den = (read + tl.sum(A.to(tl.float32) * r[None, :], axis=1)) * scale + eps
            o = o / den[:, None]
            if SAVE:
                tl.store(den_ptr + chunk * C + i, den, mask=i < tl.where(iv == 0, C, 0))
                tl.store(z_ptr + chunk * BK + d, z, mask=d < tl.where(iv == 0, BK, 0))
                tl.store(r_ptr + chunk * C + i, r, mask=i < tl.where(iv == 0, C, 0))
            if DECAY == 0:
                z += tl.sum(k.to(tl.float32) * r[:, None], axis=0)
            if DECAY == 1:
                z = z * total + tl.sum(k.to(tl.float32) * (r * after)[:, None], axis=0)
            if DECAY == 2:
                z = z * gc + tl.sum(k.to(tl.float32) * r[:, None], axis=0)
        store_rows(o_ptr + token * V, o, t, c, H * V, T, V)
        if DECAY == 0:
            s += mm(tl.trans(k), u, P_STATE)
        if DECAY == 1:
            s = s * total + mm(tl.trans(k), u * after[:, None], P_STATE)
        if DECAY == 2:
            s = s * gc[:, None] + mm(tl.trans(k), u, P_STATE)
    ends = tl.where(iv == 0, K, 0)
    if SEGMENTED:
        reach = tl.where(stop == NT, K, 0)
        inside = inside & (d < reach)[:, None]
        ends = tl.minimum(ends, reach)
    tl.store(sT_ptr + bh * (K * V) + d[:, None] * V + c[None, :], s, mask=inside)
    if NORM:
        tl.store(zT_ptr + bh * K + d, z, mask=d < ends)
