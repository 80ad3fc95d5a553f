"""Segments of a sequence side by side: what the recurrence does where heads are few and sequences long.

What a segment makes of the state is affine: S_out = M S_in + L, and of its gradient dS_in = M^T dS_out + dL. `carry` takes
L of every segment but the last from the state 0 (from the given one in the first), one program per (batch, head, segment,
tile of V); with erase further programs take M of the segments between as what becomes of the identity, a tile of its
columns each. Without erase M is diagonal: the product of the decays. `combine` goes through the segments of a head and
leaves the state that enters each; `forward.py` then runs all of them at once. Backward the same in reverse, with the same M.
"""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

from mnemolab.kernels.triton.tiles import load_factors, load_gate, load_rows, mm, panel, scalar_factors, square

__all__ = ["carry_back_kernel", "carry_kernel", "combine_kernel"]


@triton.jit(do_not_specialize=["T", "H", "NT", "span"])
def carry_kernel(
    k_ptr, v_ptr, g_ptr, w_ptr, s0_ptr, z0_ptr, W_ptr, X_ptr, K_ptr, G_ptr, L_ptr, Lz_ptr, M_ptr,
    sk_b, sk_t, sk_h, sv_b, sv_t, sv_h, T, H, NT, span,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, FV: tl.constexpr, C: tl.constexpr,
    DECAY: tl.constexpr, ERASE: tl.constexpr, WRITE: tl.constexpr, NORM: tl.constexpr,
    P_STATE: tl.constexpr, P_SMALL: tl.constexpr, P_SUM: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Writes L (BH, NS, BK, FV), under `normalize` its column Lz (BH, NS, BK), and M: (BH, NS - 1, BK, BK), or without erase
    its diagonal (BH, NS - 1, BK). M of the first segment is never asked for."""
    NV: tl.constexpr = FV // BV
    NK: tl.constexpr = (BK + BV - 1) // BV
    NS = tl.cdiv(NT, span)
    valued = (NS - 1) * NV
    share = valued
    if ERASE:
        share += (NS - 2) * NK
    pid = tl.program_id(0)
    bh = (pid // share).to(tl.int64)
    place = pid % share
    b = bh // H
    h = bh % H
    # whether the program takes columns of M: there nothing is written, so V is 0 channels wide
    moves = place >= valued
    segment = tl.where(moves, 1 + (place - valued) // NK, place // NV)
    tile = tl.where(moves, (place - valued) % NK, place % NV)
    width = tl.where(moves, 0, V)
    d = tl.arange(0, BK)
    c = tile * BV + tl.arange(0, BV)
    i = tl.arange(0, C)
    wide = bh - bh  # an int64 zero: offsets past 2^31 must not wrap
    s = tl.zeros((BK, BV), tl.float32)
    if ERASE:
        s = tl.where((d[:, None] == c[None, :]) & moves, 1.0, 0.0)
    if s0_ptr is not None:
        inside = (d < K)[:, None] & (c < tl.where(segment == 0, width, 0))[None, :]
        s += tl.load(s0_ptr + bh * (K * V) + d[:, None] * V + c[None, :], mask=inside, other=0.0).to(tl.float32)
    if NORM:
        z = tl.zeros((BK,), tl.float32)
        if z0_ptr is not None:
            z = tl.load(z0_ptr + bh * K + d, mask=d < tl.where(segment == 0, K, 0), other=0.0).to(tl.float32)
    if DECAY and not ERASE:
        kept = tl.full((BK,), 1.0, tl.float32)
    for n in tl.range(segment * span, (segment + 1) * span, num_stages=STAGES):
        chunk = bh * NT + n
        row0 = wide + n * C
        t = n * C + i
        token = (b * T + row0) * H + h
        v = load_rows(v_ptr + b * sv_b + row0 * sv_t + h * sv_h, t, c, sv_t, T, width)
        if WRITE == 1:
            # M knows no write: a NaN in one is not to reach it by way of 0 * NaN
            w = load_gate(w_ptr + token, t, H, tl.where(moves, 0, T))
            v = v.to(tl.float32) * w[:, None]
        if WRITE == 2:
            v = v.to(tl.float32) * load_rows(w_ptr + token * V, t, c, H * V, T, width).to(tl.float32)
        if DECAY == 2:
            k = tl.load(panel(K_ptr + chunk * (C * BK), C, BK))
            gc = tl.load(G_ptr + chunk * BK + d)
        else:
            k = load_rows(k_ptr + b * sk_b + row0 * sk_t + h * sk_h, t, d, sk_t, T, K)
        if DECAY == 1:
            if ERASE:
                _, after, total = load_factors(G_ptr + chunk * (3 * C), C)
            else:
                _, after, total, _ = scalar_factors(load_gate(g_ptr + token, t, H, T), C, P_SUM)
        if ERASE:
            X = tl.load(square(X_ptr + chunk * (C * C), C))
            W = tl.load(panel(W_ptr + chunk * (C * BK), C, BK))
            u = mm(X, v, P_SMALL) - mm(W, s, P_STATE)
        else:
            u = v
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
            if DECAY == 0:
                z += tl.sum(k.to(tl.float32) * r[:, None], axis=0)
            if DECAY == 1:
                z = z * total + tl.sum(k.to(tl.float32) * (r * after)[:, None], axis=0)
            if DECAY == 2:
                z = z * gc + tl.sum(k.to(tl.float32) * r[:, None], axis=0)
        if DECAY == 0:
            s += mm(tl.trans(k), u, P_STATE)
        if DECAY == 1:
            s = s * total + mm(tl.trans(k), u * after[:, None], P_STATE)
        if DECAY == 2:
            s = s * gc[:, None] + mm(tl.trans(k), u, P_STATE)
        if DECAY and not ERASE:
            if DECAY == 1:
                kept *= total
            else:
                kept *= gc
    at = bh * NS + segment
    to = L_ptr + at * (BK * FV) + d[:, None] * FV + c[None, :]
    tl.store(to, s, mask=(c < tl.where(moves, 0, FV))[None, :])
    own = (tile == 0) & (place < valued)
    if NORM:
        tl.store(Lz_ptr + at * BK + d, z, mask=d < tl.where(own, BK, 0))
    at -= bh
    if ERASE:
        to = M_ptr + at * (BK * BK) + d[:, None] * BK + c[None, :]
        tl.store(to, s, mask=(c < tl.where(moves, BK, 0))[None, :])
    elif DECAY:
        tl.store(M_ptr + at * BK + d, kept, mask=d < tl.where(own, BK, 0))


@triton.jit(do_not_specialize=["T", "H", "NT", "span", "scale"])
def carry_back_kernel(
    q_ptr, k_ptr, g_ptr, o_ptr, do_ptr, den_ptr, W_ptr, A_ptr, Q_ptr, K_ptr, G_ptr, dsT_ptr, dzT_ptr, L_ptr, Lz_ptr,
    sq_b, sq_t, sq_h, sk_b, sk_t, sk_h, T, H, NT, span, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, FV: tl.constexpr, C: tl.constexpr,
    DECAY: tl.constexpr, ERASE: tl.constexpr, NORM: tl.constexpr,
    P_STATE: tl.constexpr, P_SMALL: tl.constexpr, P_SUM: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """`backward.py` for every segment but the first, from the gradient 0 (from the given one in the last): it leaves dL
    (BH, NS, BK, FV) and dLz (BH, NS, BK) and nothing on the way."""
    NV: tl.constexpr = FV // BV
    NS = tl.cdiv(NT, span)
    pid = tl.program_id(0)
    iv = pid % NV
    bh = (pid // NV // (NS - 1)).to(tl.int64)
    segment = 1 + (pid // NV) % (NS - 1)
    last = segment == NS - 1
    stop = tl.minimum((segment + 1) * span, NT)
    b = bh // H
    h = bh % H
    d = tl.arange(0, BK)
    c = iv * BV + tl.arange(0, BV)
    i = tl.arange(0, C)
    wide = bh - bh  # an int64 zero: offsets past 2^31 must not wrap
    ds = tl.zeros((BK, BV), tl.float32)
    if dsT_ptr is not None:
        inside = (d < K)[:, None] & (c < tl.where(last, V, 0))[None, :]
        ds = tl.load(dsT_ptr + bh * (K * V) + d[:, None] * V + c[None, :], mask=inside, other=0.0).to(tl.float32)
    if NORM:
        dz = tl.zeros((BK,), tl.float32)
        if dzT_ptr is not None:
            dz = tl.load(dzT_ptr + bh * K + d, mask=d < tl.where(last, K, 0), other=0.0).to(tl.float32)
    for m in tl.range(0, stop - segment * span, num_stages=STAGES):
        n = stop - 1 - m
        chunk = bh * NT + n
        row0 = wide + n * C
        t = n * C + i
        token = (b * T + row0) * H + h
        do = load_rows(do_ptr + token * V, t, c, H * V, T, V).to(tl.float32) * scale
        if DECAY == 2:
            q = tl.load(panel(Q_ptr + chunk * (C * BK), C, BK))
            gc = tl.load(G_ptr + chunk * BK + d)
            if ERASE:
                k = tl.load(panel(K_ptr + chunk * (C * BK), C, BK))
        else:
            q = load_rows(q_ptr + b * sq_b + row0 * sq_t + h * sq_h, t, d, sq_t, T, K)
            if ERASE:
                k = load_rows(k_ptr + b * sk_b + row0 * sk_t + h * sk_h, t, d, sk_t, T, K)
        if DECAY == 1:
            if ERASE:
                upto, after, total = load_factors(G_ptr + chunk * (3 * C), C)
            else:
                upto, after, total, _ = scalar_factors(load_gate(g_ptr + token, t, H, T), C, P_SUM)
        if ERASE:
            W = tl.load(panel(W_ptr + chunk * (C * BK), C, BK))
            A = tl.load(square(A_ptr + chunk * (C * C), C))
        if NORM:
            den = tl.load(den_ptr + chunk * C + i)
            do = do / den[:, None]
            a = tl.arange(0, FV)
            whole = load_rows(do_ptr + token * V, t, a, H * V, T, V).to(tl.float32)
            whole *= load_rows(o_ptr + token * V, t, a, H * V, T, V).to(tl.float32)
            dden = -tl.sum(whole, axis=1) * scale / den
            drop = tl.zeros((BK,), tl.float32)
            if ERASE:
                dr = tl.sum(k.to(tl.float32) * dz[None, :], axis=1)
                if DECAY == 1:
                    dr *= after
                dr += tl.sum(A.to(tl.float32) * dden[:, None], axis=0)
                drop = tl.sum(W.to(tl.float32) * dr[:, None], axis=0)
            if DECAY == 0:
                dz += tl.sum(q.to(tl.float32) * dden[:, None], axis=0) - drop
            if DECAY == 1:
                dz = dz * total + tl.sum(q.to(tl.float32) * (dden * upto)[:, None], axis=0) - drop
            if DECAY == 2:
                dz = dz * gc + tl.sum(q.to(tl.float32) * dden[:, None], axis=0) - drop
        if ERASE:
            du = mm(k, ds, P_STATE)
            if DECAY == 1:
                du *= after[:, None]
            du += mm(tl.trans(A), do, P_SMALL)
        if DECAY == 1:
            do *= upto[:, None]
        grown = mm(tl.trans(q), do, P_STATE)
        if DECAY == 1:
            ds *= total
        if DECAY == 2:
            ds *= gc[:, None]
        ds += grown
        if ERASE:
            ds -= mm(tl.trans(W), du, P_STATE)
    at = bh * NS + segment
    tl.store(L_ptr + at * (BK * FV) + d[:, None] * FV + c[None, :], ds)
    if NORM:
        tl.store(Lz_ptr + at * BK + d, dz, mask=d < tl.where(iv == 0, BK, 0))


@triton.jit(do_not_specialize=["NT", "span"])
def combine_kernel(
    s0_ptr, z0_ptr, L_ptr, Lz_ptr, M_ptr, E_ptr, Ez_ptr, NT, span,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, FV: tl.constexpr, CV: tl.constexpr,
    DECAY: tl.constexpr, ERASE: tl.constexpr, NORM: tl.constexpr, REVERSE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Writes E (BH, NS, BK, FV), the state that enters every segment, and Ez (BH, NS, BK) under `normalize`; with REVERSE the
    gradients, which enter from the right. One program per (batch, head, CV columns).

    States lie here as their transposes: products of CV < 64 rows are no wgmma at any number of warps.
    """
    pid = tl.program_id(0)
    iv = pid % (FV // CV)
    bh = (pid // (FV // CV)).to(tl.int64)
    NS = tl.cdiv(NT, span)
    d = tl.arange(0, BK)
    c = iv * CV + tl.arange(0, CV)
    tile = d[None, :] * FV + c[:, None]
    own = d < tl.where(iv == 0, BK, 0)
    if REVERSE:
        first = NS - 1
        step = -1
    else:
        first = 0
        step = 1
    s = tl.zeros((CV, BK), tl.float32)
    if s0_ptr is not None:
        inside = (d < K)[None, :] & (c < V)[:, None]
        s = tl.load(s0_ptr + bh * (K * V) + d[None, :] * V + c[:, None], mask=inside, other=0.0).to(tl.float32)
    at = bh * NS + first
    tl.store(E_ptr + at * (BK * FV) + tile, s)
    s = tl.load(L_ptr + at * (BK * FV) + tile)
    if NORM:
        z = tl.zeros((BK,), tl.float32)
        if z0_ptr is not None:
            z = tl.load(z0_ptr + bh * K + d, mask=d < K, other=0.0).to(tl.float32)
        tl.store(Ez_ptr + at * BK + d, z, mask=own)
        z = tl.load(Lz_ptr + at * BK + d)
    for p in tl.range(1, NS - 1, num_stages=STAGES):
        at = bh * NS + first + step * p
        tl.store(E_ptr + at * (BK * FV) + tile, s)
        left = tl.load(L_ptr + at * (BK * FV) + tile)
        if NORM:
            tl.store(Ez_ptr + at * BK + d, z, mask=own)
            z_left = tl.load(Lz_ptr + at * BK + d)
        if ERASE:
            # rows are what enters, columns what leaves
            if REVERSE:
                M = tl.load(M_ptr + (at - bh) * (BK * BK) + d[:, None] * BK + d[None, :])
            else:
                M = tl.load(M_ptr + (at - bh) * (BK * BK) + d[None, :] * BK + d[:, None])
            # a column of the state that is 0 stays 0 where M overflowed; NaN is not 0
            live = tl.sum(tl.where(s != 0.0, 1, 0), axis=1) > 0
            s = tl.where(live[:, None], mm(s, M, "tf32x3"), 0.0)
            if NORM:
                z = tl.sum(tl.where((z != 0.0)[:, None], M * z[:, None], 0.0), axis=0)
        elif DECAY:
            kept = tl.load(M_ptr + (at - bh) * BK + d)
            s *= kept[None, :]
            if NORM:
                z *= kept
        s += left
        if NORM:
            z += z_left
    at = bh * NS + first + step * (NS - 1)
    tl.store(E_ptr + at * (BK * FV) + tile, s)
    if NORM:
        tl.store(Ez_ptr + at * BK + d, z, mask=own)
