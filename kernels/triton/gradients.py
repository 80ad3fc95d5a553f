"""Second kernel of the backward pass: the gradients of all operands, one program per chunk.

With S the state that enters the chunk, dS' the gradient that leaves it, and dU (both from before):

    dR = X^T dU;   dz = dR;   dA = lower(do U^T);   dL = -strict(dR U^T)            ((I + L) U = R, so dL = -dR U^T)
    dq = exp(G) (do S^T) + pairs;   de = -exp(G) (dR S^T) + pairs;   dk = exp(G_C - G) (U dS'^T) + pairs
    dg_t = sum over i >= t > j of the pair terms (i, j)  +  sum over i >= t of what row i read from S
         + sum over j < t of what row j wrote to S'      +  exp(G_C) <dS', S>

The gate gradient is a plain sum over what spans row t. The usual form, a reverse prefix sum of row sums minus column
sums, is the same number with cancellation: its relative error in float32 is 1 at a gate of -20.
"""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

from mnemolab.kernels.triton.pairs import anchored_gradients, is_mild, split_gradients
from mnemolab.kernels.triton.tiles import (
    GATE_FLOOR,
    channel_sums,
    exp,
    load_gate,
    load_rows,
    lower_mask,
    masked_sum,
    mm,
    panel,
    scalar_factors,
    square,
    store_rows,
    strict_mask,
)

__all__ = ["gradient_kernel"]


@triton.jit(do_not_specialize=["T", "H", "NT", "scale"])
def gradient_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, e_ptr, w_ptr, do_ptr, den_ptr, A_ptr, X_ptr, S_ptr, U_ptr, D_ptr, dU_ptr,
    z_ptr, r_ptr, dz_ptr, dr_ptr, dden_ptr, dq_ptr, dk_ptr, dv_ptr, dg_ptr, de_ptr, dw_ptr,
    sq_b, sq_t, sq_h, sk_b, sk_t, sk_h, sv_b, sv_t, sv_h, T, H, NT, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, FV: tl.constexpr, C: tl.constexpr,
    GV: tl.constexpr, RUN: tl.constexpr,
    DECAY: tl.constexpr, ERASE: tl.constexpr, WRITE: tl.constexpr, NORM: tl.constexpr,
    P_NATIVE: tl.constexpr, P_PAIR: tl.constexpr, P_SUM: tl.constexpr, P_GATE: tl.constexpr,
    STAGES: tl.constexpr, V_STAGES: tl.constexpr,
):  # fmt: skip
    """GV is this kernel's tile of V, in panels of which S, U, D and dU were stored. A program takes RUN chunks of one head, in
    a pipeline. Products take the tiles as they were stored (P_NATIVE): gradients are rounded anyway."""
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
        token = (b * T + row0) * H + h
        q = load_rows(q_ptr + b * sq_b + row0 * sq_t + h * sq_h, t, d, sq_t, T, K)
        k = load_rows(k_ptr + b * sk_b + row0 * sk_t + h * sk_h, t, d, sk_t, T, K)
        if ERASE == 1:
            beta = load_gate(e_ptr + token, t, H, T)
        if ERASE == 2:
            gate = load_rows(e_ptr + token * K, t, d, H * K, T, K).to(tl.float32)
        if DECAY == 1:
            upto, after, total, decay = scalar_factors(load_gate(g_ptr + token, t, H, T), C, P_SUM)
            upto = upto[:, None]
            after = after[:, None]
        if DECAY == 2:
            g = tl.maximum(load_rows(g_ptr + token * K, t, d, H * K, T, K).to(tl.float32), GATE_FLOOR)
            G, after, total = channel_sums(g, C, P_SUM)
            upto = exp(G, P_SUM)
            after = exp(after, P_SUM)
        if ERASE:
            X = tl.load(square(X_ptr + chunk * (C * C), C)).to(tl.float32)
        elif DECAY == 2:
            A = tl.load(square(A_ptr + chunk * (C * C), C)).to(tl.float32)
        else:
            A = tl.where(lower_mask(C), mm(q, tl.trans(k), P_NATIVE), 0.0)
            if DECAY == 1:
                A *= decay
        if WRITE == 1:
            w = load_gate(w_ptr + token, t, H, T)
            dw = tl.zeros((C,), tl.float32)
        # what do is worth: the scale, and under `normalize` the denominator
        if NORM:
            worth = scale / tl.load(den_ptr + chunk * C + i)
            dden = tl.load(dden_ptr + chunk * C + i)
            z = tl.load(z_ptr + chunk * BK + d)
            dz = tl.load(dz_ptr + chunk * BK + d)
            r = tl.load(r_ptr + chunk * C + i)
            # dr: the gradient of what the denominator writes
            if ERASE:
                dr = tl.sum(X.to(tl.float32) * tl.load(dr_ptr + chunk * C + i)[:, None], axis=0)
            elif WRITE:
                if DECAY == 2:
                    dr = tl.sum(k.to(tl.float32) * after * dz[None, :], axis=1)
                else:
                    dr = tl.sum(k.to(tl.float32) * dz[None, :], axis=1)
                    if DECAY == 1:
                        dr *= tl.sum(after, axis=1)
                dr += tl.sum(A * dden[:, None], axis=0)
        else:
            worth = scale + tl.zeros((C,), tl.float32)

        dq = tl.zeros((C, BK), tl.float32)
        dk = tl.zeros((C, BK), tl.float32)
        dA = tl.zeros((C, C), tl.float32)
        if ERASE:
            de = tl.zeros((C, BK), tl.float32)
            dL = tl.zeros((C, C), tl.float32)
        if DECAY:
            kept = tl.zeros((BK,), tl.float32)
        for iv in tl.range(0, FV // GV, num_stages=V_STAGES):
            c = iv * GV + tl.arange(0, GV)
            S_at = chunk * (BK * FV) + iv * (BK * GV)
            U_at = chunk * (C * FV) + iv * (C * GV)
            S = tl.load(panel(S_ptr + S_at, BK, GV))
            D = tl.load(panel(D_ptr + S_at, BK, GV))
            do = load_rows(do_ptr + token * V, t, c, H * V, T, V)
            if ERASE:
                u = tl.load(panel(U_ptr + U_at, C, GV))
                dR = mm(tl.trans(X), tl.load(panel(dU_ptr + U_at, C, GV)), P_NATIVE)
            else:
                u = load_rows(v_ptr + b * sv_b + row0 * sv_t + h * sv_h, t, c, sv_t, T, V)
                if WRITE == 1:
                    u = u.to(tl.float32) * w[:, None]
                if WRITE == 2:
                    u = u.to(tl.float32) * load_rows(w_ptr + token * V, t, c, H * V, T, V).to(tl.float32)
                if DECAY == 2:
                    dR = mm(k.to(tl.float32) * after, D, P_NATIVE)
                else:
                    dR = mm(k, D, P_NATIVE)
                    if DECAY == 1:
                        dR *= after
                dR += mm(tl.trans(A * worth[:, None]), do, P_NATIVE)
            ut = tl.trans(u)
            St = tl.trans(S)
            dA += mm(do, ut, P_NATIVE)
            dq += mm(do, St, P_NATIVE)
            dk += mm(u, tl.trans(D), P_NATIVE)
            if ERASE:
                dL -= mm(dR, ut, P_NATIVE)
                de -= mm(dR, St, P_NATIVE)
            if DECAY:
                kept += tl.sum(S.to(tl.float32) * D.to(tl.float32), axis=1)
            if WRITE:
                v = load_rows(v_ptr + b * sv_b + row0 * sv_t + h * sv_h, t, c, sv_t, T, V).to(tl.float32)
                if WRITE == 1:
                    dw += tl.sum(dR * v, axis=1)
                    dR *= w[:, None]
                else:
                    drop = dR * v
                    if NORM:
                        drop += (dr / V)[:, None]
                    store_rows(dw_ptr + token * V, drop, t, c, H * V, T, V)
                    dR *= load_rows(w_ptr + token * V, t, c, H * V, T, V).to(tl.float32)
            store_rows(dv_ptr + token * V, dR, t, c, H * V, T, V)

        dA *= worth[:, None]
        dq *= worth[:, None]
        if NORM:
            dA += dden[:, None] * r[None, :]
            dq += dden[:, None] * z[None, :]
            dk += r[:, None] * dz[None, :]
            if ERASE:
                dL -= dr[:, None] * r[None, :]
                de -= dr[:, None] * z[None, :]
            if WRITE == 1:
                dw += dr
            if DECAY:
                kept += dz * z
        if WRITE == 1:
            tl.store(dw_ptr + token + i * H, dw, mask=t < T)
        if DECAY:
            dq *= upto
            dk *= after
            read = dq * q.to(tl.float32)
            wrote = dk * k.to(tl.float32)
            if ERASE:
                de *= upto
        e = k.to(tl.float32)
        if ERASE == 1:
            e *= beta[:, None]
        if ERASE == 2:
            e *= gate
        if DECAY and ERASE:
            read += de * e
        if DECAY == 2:
            if not ERASE:
                dL = dA
            qf = q.to(tl.float32)
            kf = k.to(tl.float32)
            # wrote before row t; read at t or later
            dg = mm(tl.where(strict_mask(C), 1.0, 0.0), wrote, P_GATE) + (kept * exp(total, P_SUM))[None, :]
            dg += mm(tl.where(i[:, None] <= i[None, :], 1.0, 0.0), read, P_GATE)
            if is_mild(total):
                pq, pk, pe, pg = anchored_gradients(qf, kf, e, dA, dL, upto, exp(-G, P_SUM), C, ERASE, P_PAIR, P_GATE)
            else:
                pq, pk, pe, pg = split_gradients(qf, kf, e, g, dA, dL, C, ERASE, P_PAIR, P_SUM, P_GATE)
            dq += pq
            dk += pk
            if ERASE:
                de += pe
            store_rows(dg_ptr + token * K, dg + pg, t, d, H * K, T, K)
        else:
            kt = tl.trans(k)
            dA = tl.where(lower_mask(C), dA, 0.0)
            if DECAY == 1:
                dA *= decay
                M = dA * mm(q, kt, P_NATIVE)
            if ERASE:
                dL = tl.where(strict_mask(C), dL, 0.0)
                if DECAY == 1:
                    dL *= decay
                    if ERASE == 1:
                        M += dL * mm(k, kt, P_NATIVE) * beta[:, None]
                    else:
                        M += dL * mm(e, kt, P_NATIVE)
                de += mm(dL, k, P_NATIVE)
                dk += mm(tl.trans(dL), e, P_NATIVE)
            if DECAY == 1:
                # row t: pairs with i >= t (suffix over rows), then j < t
                M = tl.where(strict_mask(C), M, 0.0)
                spans = masked_sum(i[:, None] <= i[None, :], M, P_GATE)
                dg = tl.sum(tl.where(strict_mask(C), spans, 0.0), axis=1)
                read = tl.sum(read, axis=1)
                wrote = tl.sum(wrote, axis=1)
                dg += tl.sum(tl.where(i[:, None] <= i[None, :], read[None, :], 0.0), axis=1)
                dg += tl.sum(tl.where(i[:, None] > i[None, :], wrote[None, :], 0.0), axis=1)
                dg += tl.sum(kept, axis=0) * total
                tl.store(dg_ptr + token + i * H, dg, mask=t < T)
            dq += mm(dA, k, P_NATIVE)
            dk += mm(tl.trans(dA), q, P_NATIVE)
        if ERASE == 1:
            dk += beta[:, None] * de
            tl.store(de_ptr + token + i * H, tl.sum(de * k.to(tl.float32), axis=1), mask=t < T)
        if ERASE == 2:
            dk += gate * de
            store_rows(de_ptr + token * K, de * k.to(tl.float32), t, d, H * K, T, K)
        store_rows(dq_ptr + token * K, dq, t, d, H * K, T, K)
        store_rows(dk_ptr + token * K, dk, t, d, H * K, T, K)
