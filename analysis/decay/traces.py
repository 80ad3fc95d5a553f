"""What each memory layer was told at each token, in fp32, and what that is by type of token.

B batch, T time, H heads, K key channels, V value channels. Half-lives are in tokens.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.models.backbone import Backbone
from mnemolab.tasks.base import Batch
from mnemolab.tasks.vocabulary import Vocabulary

__all__ = ["Trace", "gates_by_token", "token_kinds", "trace"]


@dataclass(frozen=True)
class Trace:
    """One layer. `kind`: `memory` (the recurrence) or `softmax`. q, k (B,T,H,K), v (B,T,H,V); gates None where absent."""

    layer: int
    kind: str
    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None = None
    erase: Tensor | None = None
    write: Tensor | None = None
    scale: float = 1.0

    @property
    def decay(self) -> Tensor:
        """Log-decay per key channel (B,T,H,K), zeros where there is none."""
        if self.log_decay is None:
            return torch.zeros_like(self.k)
        return self.log_decay.unsqueeze(-1).expand_as(self.k) if self.log_decay.dim() == 3 else self.log_decay

    @property
    def erase_key(self) -> Tensor:
        """erase * k (B,T,H,K), zeros where nothing is erased."""
        if self.erase is None:
            return torch.zeros_like(self.k)
        return (self.erase.unsqueeze(-1) if self.erase.dim() == 3 else self.erase) * self.k

    @property
    def write_strength(self) -> Tensor:
        """What the write multiplies the value by (B,T,H): its mean over value channels where it has them."""
        if self.write is None:
            return torch.ones_like(self.k[..., 0])
        return self.write if self.write.dim() == 3 else self.write.mean(-1)


@torch.no_grad()
def trace(model: Backbone, inputs: Tensor) -> list[Trace]:
    """Traces of the layers that have keys and queries, for tokens (B,T). Recurrent networks give none."""
    from mnemolab.models.mixers.memory import MemoryMixer

    was_training = model.training
    model.eval()
    found = model.traces(inputs)
    model.train(was_training)
    traces = []
    for layer, (block, said) in enumerate(zip(model.layers, found, strict=True)):
        if "k" not in said:
            continue
        parts = {name: said[name] for name in ("q", "k", "v", "log_decay", "erase", "write")}
        kind = "memory" if isinstance(block.mixer, MemoryMixer) else "softmax"
        scale = getattr(block.mixer, "scale", None) or parts["k"].shape[-1] ** -0.5  # type: ignore[union-attr]
        traces.append(Trace(layer, kind, scale=float(scale), **parts))  # type: ignore[arg-type]
    return traces


def token_kinds(inputs: Tensor, vocabulary: Vocabulary, batch: Batch | None = None) -> np.ndarray:
    """(B,T) names of the vocabulary's ranges; with `batch`, tokens that must be answered are `query` instead."""
    table = np.array([vocabulary.kind(t) for t in range(vocabulary.size)], dtype=object)
    kinds = table[inputs.cpu().numpy()]
    if batch is not None:
        kinds[(batch.targets != -100).cpu().numpy()] = "query"
    return kinds


def gates_by_token(traces: list[Trace], kinds: np.ndarray) -> pd.DataFrame:
    """Means by layer, head and type of token: columns layer, head, token, log_decay, decay, half_life, erase, write, tokens.

    `decay` is exp(mean log-decay), `half_life` ln 2 over minus that mean (infinite without decay). Layers without gates
    have log_decay 0, erase 0 and write 1. Raises BadRequest when `kinds` does not fit the traced tokens.
    """
    rows = []
    for found in traces:
        if found.kind != "memory":
            continue
        if kinds.shape != tuple(found.k.shape[:2]):
            raise BadRequest(f"kinds has shape {kinds.shape}; the traced tokens are {tuple(found.k.shape[:2])}")
        log_decay = found.decay.mean(-1).cpu().numpy()  # (B,T,H)
        erase = torch.zeros_like(found.k[..., 0]) if found.erase is None else found.erase
        erase = (erase if erase.dim() == 3 else erase.mean(-1)).cpu().numpy()
        write = found.write_strength.cpu().numpy()
        for token in np.unique(kinds.astype(str)):
            here = kinds == token
            for head in range(log_decay.shape[-1]):
                mean = float(log_decay[here, head].mean())
                rows.append(
                    {
                        "layer": found.layer,
                        "head": head,
                        "token": token,
                        "log_decay": mean,
                        "decay": float(np.exp(mean)),
                        "half_life": float(np.log(2) / -mean) if mean < 0 else float("inf"),
                        "erase": float(erase[here, head].mean()),
                        "write": float(write[here, head].mean()),
                        "tokens": int(here.sum()),
                    }
                )
    if not rows:
        raise BadRequest("gates: no layer of this model is a memory recurrence")
    return pd.DataFrame(rows)
