"""The state itself: its rank, its norm, how its keys overlap, and how much of an old topic survives a switch."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.kernels import memory_scan

if TYPE_CHECKING:
    from mnemolab.analysis.decay.traces import Trace

__all__ = ["effective_rank", "final_state", "key_overlap", "retained_energy", "state_table"]


@torch.no_grad()
def final_state(trace: "Trace", until: int | None = None, initial: Tensor | None = None) -> Tensor:
    """State (B,H,K,V) after the first `until` tokens of a traced memory layer, from its operands."""
    if trace.kind != "memory":
        raise BadRequest("state: softmax layers have a cache, not a state")

    def cut(x: Tensor | None) -> Tensor | None:
        return x if x is None or until is None else x[:, :until]

    q, k, v = cut(trace.q), cut(trace.k), cut(trace.v)
    assert q is not None and k is not None and v is not None
    _, state = memory_scan(
        q,
        k,
        v,
        log_decay=cut(trace.log_decay),
        erase=cut(trace.erase),
        write=cut(trace.write),
        initial_state=initial,
        output_final_state=True,
    )
    assert isinstance(state, Tensor)
    return state


def effective_rank(state: Tensor) -> Tensor:
    """exp(entropy of the normalised singular values) of (...,K,V) -> (...) (Roy and Vetterli 2007); 0 for a zero state."""
    s = torch.linalg.svdvals(state.double())
    total = s.sum(-1, keepdim=True)
    p = s / total.clamp(min=1e-300)
    entropy = -(p * p.clamp(min=1e-300).log()).sum(-1)
    return torch.where(total[..., 0] > 1e-12, entropy.exp(), 0.0)


def key_overlap(keys: Tensor, tokens: Tensor | None = None) -> Tensor:
    """Root mean square cosine between different keys: (B,N,H,K) -> (H,). Random directions give 1 / sqrt(K).

    `tokens` (B,N) name the keys: writes of one key are not compared with each other, which would measure how well it is
    recognised. Raises BadRequest when no sequence has two different keys.
    """
    if keys.shape[1] < 2:
        raise BadRequest(f"key overlap: {keys.shape[1]} keys; need at least 2")
    unit = torch.nn.functional.normalize(keys.double(), dim=-1)
    gram = torch.einsum("bnhk,bmhk->bhnm", unit, unit).square()
    n = keys.shape[1]
    other = ~torch.eye(n, dtype=torch.bool, device=keys.device)[None]
    if tokens is not None:
        other = other & (tokens[:, :, None] != tokens[:, None])
    pairs = other.expand(len(keys), n, n).sum()
    if not bool(pairs):
        raise BadRequest("key overlap: every write is of one key; need at least 2 different keys")
    return ((gram * other[:, None]).sum((0, 2, 3)) / pairs).clamp(min=0).sqrt()


def state_table(
    traces: "list[Trace]", writes: Tensor | None = None, until: int | None = None, names: Tensor | None = None
) -> pd.DataFrame:
    """Columns layer, head, rank (effective), rank_most (min(K,V)), norm (Frobenius), key_overlap, overlap_random.

    `writes` (B,N): positions whose keys are compared (the value tokens of bindings); all tokens when None. `names` (B,N): the
    key token of each, so that no key is compared with itself.
    """
    rows = []
    for found in traces:
        if found.kind != "memory":
            continue
        state = final_state(found, until)
        rank, norm = effective_rank(state).mean(0), state.double().norm(dim=(-1, -2)).mean(0)
        keys = found.k
        if writes is not None:
            keys = keys[torch.arange(len(keys))[:, None], writes]
        overlap = key_overlap(keys, names)
        K, V = state.shape[-2:]
        for head in range(state.shape[1]):
            rows.append(
                {
                    "layer": found.layer,
                    "head": head,
                    "rank": float(rank[head]),
                    "rank_most": min(K, V),
                    "norm": float(norm[head]),
                    "key_overlap": float(overlap[head]),
                    "overlap_random": float(K**-0.5),
                }
            )
    if not rows:
        raise BadRequest("state: no layer of this model is a memory recurrence")
    return pd.DataFrame(rows)


@torch.no_grad()
def retained_energy(trace: "Trace", switch: int, until: int | None = None) -> np.ndarray:
    """Share of the squared norm of the state at `switch` that is left at `until` when nothing more is written: (B,H).

    Decay and erasure after the switch act as they did; the later values are taken to be zero.
    """
    T = trace.k.shape[1]
    end = T if until is None else until
    if not 0 < switch < end <= T:
        raise BadRequest(f"retained energy: switch={switch}, until={end}; need 0 < switch < until <= {T}")
    before = final_state(trace, switch)
    parts = {name: getattr(trace, name) for name in ("q", "k", "v", "log_decay", "erase", "write")}
    later = replace(trace, **{name: None if x is None else x[:, switch:end] for name, x in parts.items()})
    silent = replace(later, v=torch.zeros_like(later.v))
    after = final_state(silent, initial=before)
    energy = before.double().square().sum((-1, -2))
    return (after.double().square().sum((-1, -2)) / energy.clamp(min=1e-300)).cpu().numpy()
