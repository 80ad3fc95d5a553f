"""First kernel of the backward pass: the gradient of the state, in reverse over the chunks.

    dU = A^T do + (exp(G_C - G) k) dS';   dS = exp(G_C) dS' + (exp(G) q)^T do - W^T dU        (do carries the scale)

It writes dS' (the gradient that leaves each chunk) and dU; `gradients.py` then treats all chunks at once. One program per
(batch, head, tile of V): value tiles are independent, as in the forward pass. Where heads are few, one per (batch, head,
segment, tile of V), with the gradients that enter the segments from `segments.py`.
"""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

from mnemolab.kernels.triton.tiles import columns, load_factors, load_gate, load_rows, mm, panel, scalar_factors, square

__all__ = ["backward_kernel"]


@triton.jit(do_not_specialize=["T", "H", "NT", "span", "scale"])
def backward_kernel(
    q_ptr, k_ptr, g_ptr, o_ptr, do_ptr, den_ptr, W_ptr, A_ptr, Q_ptr, K_ptr, G_ptr,
    dsT_ptr, dzT_ptr, D_ptr, dU_ptr, dz_ptr, dr_ptr, dden_ptr, ds0_ptr, dz0_ptr,
    sq_b, sq_t, sq_h, sk_b, sk_t, sk_h, T, H, NT, span, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, FV: tl.constexpr, GV: tl.constexpr, C: tl.constexpr,
    DECAY: tl.constexpr, ERASE: tl.constexpr, NORM: tl.constexpr, SEGMENTED: tl.constexpr,
    P_STATE: tl.constexpr, P_SMALL: tl.constexpr, P_SUM: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """D and dU lie in panels of GV columns, as `gradients.py` takes them. SEGMENTED: segments are of `span` chunks, dsT (BH, NS, BK, FV) and dzT (BH, NS, BK) enter them."""
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
    ds = tl.zeros((BK, BV), tl.float32)
    if SEGMENTED:
        ds = tl.load(dsT_ptr + at * (BK * FV) + d[:, None] * FV + c[None, :])
    elif dsT_ptr is not None:
        ds = tl.load(dsT_ptr + bh * (K * V) + d[:, None] * V + c[None, :], mask=inside, other=0.0).to(tl.float32)
    if NORM:
        dz = tl.zeros((BK,), tl.float32)
        if SEGMENTED:
            dz = tl.load(dzT_ptr + at * BK + d)
        elif dzT_ptr is not None:
            dz = tl.load(dzT_ptr + bh * K + d, mask=d < K, other=0.0).to(tl.float32)
    for m in tl.range(0, stop - first, num_stages=STAGES):
        n = stop - 1 - m
        chunk = bh * NT + n
        row0 = wide + n * C
        t = n * C + i
        token = (b * T + row0) * H + h
        do = load_rows(do_ptr + token * V, t, c, H * V, T, V).to(tl.float32) * scale
        if DECAY == 2:
            q = tl.load(panel(Q_ptr + chunk * (C * BK), C, BK))
            k = tl.load(panel(K_ptr + chunk * (C * BK), C, BK))
            gc = tl.load(G_ptr + chunk * BK + d)
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
            tl.store(dden_ptr + chunk * C + i, dden, mask=i < tl.where(iv == 0, C, 0))
            tl.store(dz_ptr + chunk * BK + d, dz, mask=d < tl.where(iv == 0, BK, 0))
            drop = tl.zeros((BK,), tl.float32)
            if ERASE:
                dr = tl.sum(k.to(tl.float32) * dz[None, :], axis=1)
                if DECAY == 1:
                    dr *= after
                dr += tl.sum(A.to(tl.float32) * dden[:, None], axis=0)
                tl.store(dr_ptr + chunk * C + i, dr, mask=i < tl.where(iv == 0, C, 0))
                drop = tl.sum(W.to(tl.float32) * dr[:, None], axis=0)
            if DECAY == 0:
                dz += tl.sum(q.to(tl.float32) * dden[:, None], axis=0) - drop
            if DECAY == 1:
                dz = dz * total + tl.sum(q.to(tl.float32) * (dden * upto)[:, None], axis=0) - drop
            if DECAY == 2:
                dz = dz * gc + tl.sum(q.to(tl.float32) * dden[:, None], axis=0) - drop
        tl.store(columns(D_ptr + chunk * (BK * FV), BK, c, GV), ds)
        if ERASE:
            du = mm(k, ds, P_STATE)
            if DECAY == 1:
                du *= after[:, None]
            du += mm(tl.trans(A), do, P_SMALL)
            tl.store(columns(dU_ptr + chunk * (C * FV), C, c, GV), du)
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
    ends = tl.where(iv == 0, K, 0)
    if SEGMENTED:
        reach = tl.where(first == 0, K, 0)
        inside = inside & (d < reach)[:, None]
        ends = tl.minimum(ends, reach)
    if ds0_ptr is not None:
        tl.store(ds0_ptr + bh * (K * V) + d[:, None] * V + c[None, :], ds, mask=inside)
    if NORM:  # noqa: SIM102 (a constant first: the second is not even compiled)
        if dz0_ptr is not None:
            tl.store(dz0_ptr + bh * K + d, dz, mask=d < ends)
