"""One token of the memory recurrence, for decoding: one launch, the state updated in place.

The state is read and written once, 8 K V bytes a head in float32, and nothing else of that size moves.
"""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from mnemolab.kernels.operands import EPSILON, Operands, State
from mnemolab.kernels.triton.launch import run
from mnemolab.kernels.triton.scan import kind, scan
from mnemolab.kernels.triton.table import padded

__all__ = ["step"]


@triton.jit(do_not_specialize=["H", "scale", "eps"])
def step_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, e_ptr, w_ptr, s_ptr, z_ptr, o_ptr, zn_ptr, H, scale, eps,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, FV: tl.constexpr,
    DECAY: tl.constexpr, ERASE: tl.constexpr, WRITE: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """All operands are contiguous over (B,1,H,...); the denominator's new state goes to zn, apart from the old one."""
    NV: tl.constexpr = FV // BV
    pid = tl.program_id(0)
    iv = pid % NV
    bh = (pid // NV).to(tl.int64)
    d = tl.arange(0, BK)
    c = iv * BV + tl.arange(0, BV)
    at = s_ptr + bh * (K * V) + d[:, None] * V + c[None, :]
    inside = (d < K)[:, None] & (c < V)[None, :]
    s = tl.load(at, mask=inside, other=0.0)
    q = tl.load(q_ptr + bh * K + d, mask=d < K, other=0.0).to(tl.float32)
    k = tl.load(k_ptr + bh * K + d, mask=d < K, other=0.0).to(tl.float32)
    rho = tl.load(v_ptr + bh * V + c, mask=c < V, other=0.0).to(tl.float32)
    lam = tl.full((BK,), 1.0, tl.float32)
    if DECAY == 1:
        lam *= tl.exp(tl.load(g_ptr + bh).to(tl.float32))
    if DECAY == 2:
        lam = tl.exp(tl.load(g_ptr + bh * K + d, mask=d < K, other=0.0).to(tl.float32))
    e = k
    if ERASE == 1:
        e = k * tl.load(e_ptr + bh).to(tl.float32)
    if ERASE == 2:
        e = k * tl.load(e_ptr + bh * K + d, mask=d < K, other=0.0).to(tl.float32)
    if WRITE == 1:
        rho *= tl.load(w_ptr + bh).to(tl.float32)
    if WRITE == 2:
        rho *= tl.load(w_ptr + bh * V + c, mask=c < V, other=0.0).to(tl.float32)
    s *= lam[:, None]
    if ERASE:
        rho -= tl.sum(s * e[:, None], axis=0)
    s += k[:, None] * rho[None, :]
    tl.store(at, s, mask=inside)
    o = tl.sum(s * q[:, None], axis=0) * scale
    if NORM:
        z = tl.load(z_ptr + bh * K + d, mask=d < K, other=0.0) * lam
        one = 1.0
        if WRITE == 1:
            one = tl.load(w_ptr + bh).to(tl.float32)
        if WRITE == 2:
            a = tl.arange(0, FV)
            one = tl.sum(tl.load(w_ptr + bh * V + a, mask=a < V, other=0.0).to(tl.float32), axis=0) / V
        if ERASE:
            one = one - tl.sum(z * e, axis=0)
        z += k * one
        o /= tl.sum(z * q, axis=0) * scale + eps
        tl.store(zn_ptr + bh * K + d, z, mask=d < tl.where(iv == 0, K, 0))
    tl.store(o_ptr + bh * V + c, o, mask=c < V)


def step(operands: Operands) -> tuple[Tensor, State]:
    """o (B,1,H,V) and the state, which is the given one, updated in place, when no gradient is wanted."""
    x = operands
    if x.q.numel() == 0 or (torch.is_grad_enabled() and x.requires_grad()):
        return scan(x)
    B, _, H, K, V = x.sizes
    make = {"dtype": torch.float32, "device": x.device}
    state = torch.zeros(B, H, K, V, **make) if x.state0 is None else x.state0.contiguous()
    norm = fresh = None
    if x.normalize:
        norm = torch.zeros(B, H, K, **make) if x.norm0 is None else x.norm0.contiguous()
        # every tile of V reads the old one
        fresh = torch.empty_like(norm)
    o = torch.empty(B, 1, H, V, dtype=x.v.dtype, device=x.device)
    BK, FV = padded(K), padded(V)
    BV = min(FV, max(16, 4096 // BK))
    gates = [None if gate is None else gate.contiguous() for gate in (x.log_decay, x.erase, x.write)]
    run(
        step_kernel, (B * H * (FV // BV),),
        x.q.contiguous(), x.k.contiguous(), x.v.contiguous(), *gates, state, norm, o, fresh, H, x.scale, EPSILON,
        K=K, V=V, BK=BK, BV=BV, FV=FV,
        DECAY=kind(x.log_decay), ERASE=kind(x.erase), WRITE=kind(x.write), NORM=x.normalize, num_warps=4,
    )  # fmt: skip
    return o, (state, fresh) if fresh is not None else state
