"""What is really left of a write: gates and erasures together, exactly as the recurrence applies them.

o_t = sum_s w(t,s) v_s with w(t,s) = scale * write_s * q_t' [prod_{u=s+1..t} (I - k_u e_u') Diag(a_u)] k_s, where e = erase * k.
That is do_t/dv_s of the recurrence. B batch, T time, Q reads, S writes, H heads, K key channels.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemolab.errors import BadRequest

if TYPE_CHECKING:
    from mnemolab.analysis.decay.traces import Trace

__all__ = ["attention_by_lag", "functional_half_lives", "predicted_ratio", "read_weights", "retained"]


@torch.no_grad()
def read_weights(trace: "Trace", at: Tensor) -> Tensor:
    """w(t,s) of reads at positions `at` (B,Q) -> (B,Q,T,H), zero for s > t. Softmax layers give attention weights."""
    B, T, H, _ = trace.k.shape
    rows = torch.arange(B, device=trace.k.device)[:, None]
    q = trace.q[rows, at]  # (B,Q,H,K)
    if trace.kind == "softmax":
        scores = torch.einsum("bqhk,bthk->bqth", q, trace.k) * trace.scale
        later = torch.arange(T, device=at.device) > at[..., None]
        return scores.masked_fill(later[..., None], -torch.inf).softmax(2)
    u = torch.zeros_like(q)
    weights = q.new_zeros(B, at.shape[1], T, H)
    decay, erase_key, write = trace.decay.exp(), trace.erase_key, trace.write_strength
    for t in range(T - 1, -1, -1):  # u is q_t' times the product of what came after t
        u = torch.where((at == t)[..., None, None], q, u)
        k = trace.k[:, t, None]
        along = (u * k).sum(-1)
        weights[:, :, t] = along * write[:, t, None] * trace.scale
        u = (u - along[..., None] * erase_key[:, t, None]) * decay[:, t, None]
    return weights


@torch.no_grad()
def retained(trace: "Trace", starts: Tensor, longest: int, *, erase: bool = True, decay: bool = True) -> Tensor:
    """What a read with the written key still finds D tokens later, as a share of what it finds at once.

    starts (S,) write positions -> (B,S,longest + 1,H), NaN beyond the end of the sequence. Without `erase` this is the
    gates alone, weighted by the key's energy in each channel; without `decay`, the erasures alone.
    """
    if trace.kind != "memory":
        raise BadRequest("retained: softmax layers hold everything; see attention_by_lag")
    B, T, H, _ = trace.k.shape
    key = trace.k[:, starts]  # (B,S,H,K)
    norm = key.square().sum(-1).clamp(min=1e-12)
    p = key.clone()
    kept = key.new_full((B, len(starts), longest + 1, H), torch.nan)
    kept[:, :, 0] = 1
    gates, erase_keys = trace.decay.exp(), trace.erase_key
    for d in range(1, longest + 1):
        now = starts + d
        inside = now < T
        if not bool(inside.any()):
            break
        t = now.clamp(max=T - 1)
        if decay:
            p = p * gates[:, t]
        if erase:
            p = p - trace.k[:, t] * (erase_keys[:, t] * p).sum(-1, keepdim=True)
        share = (key * p).sum(-1) / norm
        kept[:, :, d] = torch.where(inside[None, :, None], share, torch.nan)
    return kept


def functional_half_lives(
    trace: "Trace", starts: Tensor, longest: int | None = None, **parts: bool
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """First D at which `retained` is at or below 1/2: times and observed (B*S,H), censored where the watch ends first."""
    T = trace.k.shape[1]
    watch = T - 1 - int(starts.min()) if longest is None else longest
    if watch < 1:
        raise BadRequest(f"functional half-lives: writes at {starts.tolist()} of T={T} leave nothing to watch")
    kept = retained(trace, starts, watch, **parts).flatten(0, 1).cpu().numpy()  # (B*S,D,H)
    # the traces are fp32: a share of exactly one half must not be missed by rounding
    below = np.nan_to_num(kept, nan=1.0) <= 0.5 * (1 + 1e-6)
    observed = np.asarray(below.any(1))
    watched = (~np.isnan(kept)).sum(1) - 1
    return np.where(observed, below.argmax(1), watched).astype(np.int64), observed


def predicted_ratio(trace: "Trace", read: Tensor, new: Tensor, stale: Tensor) -> Tensor:
    """Stale over new weight at each read: read, new, stale (B,Q) positions -> (B,Q,H); NaN where a position is -1.

    `new` and `stale` are the positions at which the memory took in the two values (the value's token). An additive memory
    without gates predicts 1, the delta rule 1 - beta cos^2 of the two keys.
    """
    known = (read >= 0) & (new >= 0) & (stale >= 0)
    weights = read_weights(trace, read.clamp(min=0))  # (B,Q,T,H)

    def pick(where: Tensor) -> Tensor:
        at = where.clamp(min=0)[..., None, None].expand(-1, -1, 1, weights.shape[-1])
        return weights.gather(2, at)[:, :, 0]

    fresh = pick(new)
    ratio = pick(stale) / torch.where(fresh.abs() < 1e-12, torch.nan, fresh)
    return torch.where(known[..., None], ratio, torch.nan)


def attention_by_lag(trace: "Trace", at: Tensor, edges: NDArray | None = None) -> pd.DataFrame:
    """Mean share of |weight| by lag of what is read: columns layer, head, lag (middle of the cell), mass, per_token.

    at (B,Q) reads. For softmax layers the shares are attention weights; for memory layers |w(t,s)| over its sum.
    """
    weights = read_weights(trace, at).abs()
    share = (weights / weights.sum(2, keepdim=True).clamp(min=1e-12)).cpu().numpy()  # (B,Q,T,H)
    T, H = share.shape[2:]
    lag = at.cpu().numpy()[..., None] - np.arange(T)  # (B,Q,T)
    if edges is None:
        edges = np.unique(np.concatenate([np.arange(min(8, T)), np.geomspace(8, max(9, T), 12).astype(int)]))
    rows = []
    for low, high in pairwise(edges):
        here = (lag >= low) & (lag < high)
        if not here.any():
            continue
        mass = (share * here[..., None]).sum(2).mean((0, 1))  # (H,)
        tokens = here.sum(2).mean()
        for head in range(H):
            row = {"layer": trace.layer, "kind": trace.kind, "head": head, "lag": (low + high - 1) / 2}
            rows.append(row | {"mass": float(mass[head]), "per_token": float(mass[head] / tokens)})
    return pd.DataFrame(rows)
