"""Multi-head latent attention: the cache holds one narrow latent per token, which all heads expand.

Sources: DeepSeek-V3 (2412.19437); without positions in Kimi Linear (2510.26692); with output gate in Kimi K3 (2607.24653).
B batch, T time, D model width, H heads, R latent width, P channels that all heads share.
"""

from typing import Any

import torch
from torch import Tensor, nn

from mnemolab.errors import BadRequest
from mnemolab.models.config import LatentConfig, ModelConfig
from mnemolab.models.fused import Fused
from mnemolab.models.mixers.base import Mixer
from mnemolab.models.mixers.softmax import causal_attention
from mnemolab.models.norms import RMSNorm
from mnemolab.models.outward import Outward
from mnemolab.models.state import Cache

__all__ = ["LatentMixer"]

LATENT_EPS = 1e-6  # the released files norm latents with this, everything else with 1e-5


class LatentMixer(Mixer):
    """c, s = W_kva x; k = [W_kb norm(c) ; s], v = W_vb norm(c); softmax attention; optional sigmoid gate; W_o.

    Queries are W_q x, or W_qb norm(W_qa x). Order is given by nothing here: the shared channels are not rotated.
    """

    def __init__(self, model: ModelConfig, config: LatentConfig):
        super().__init__()
        if model.positions == "rotary":
            raise BadRequest("positions='rotary': latent attention has no positions; choose 'none' or 'learned'")
        self.heads, self.config = model.heads, config
        self.nope = config.nope_dim or model.head_dim
        self.shared = model.head_dim // 2 if config.shared_dim < 0 else config.shared_dim
        self.value_dim = config.latent_value_dim or model.head_dim
        self.rank = config.kv_rank or min(4 * model.head_dim, model.width)
        self.scale = (self.nope + self.shared) ** -0.5
        queries, inner = self.heads * (self.nope + self.shared), self.heads * self.value_dim
        query_rank = config.query_rank or max(1, min(12 * model.head_dim, model.width // 2))
        first = query_rank if config.low_rank_query else queries
        self.sizes = (first, self.rank, self.shared, inner if config.latent_gate else 0)
        self.inward = Fused(model.width, self.sizes)
        self.query_norm = RMSNorm(query_rank, LATENT_EPS) if config.low_rank_query else None
        self.query_up = nn.Linear(query_rank, queries, bias=False) if config.low_rank_query else None
        self.latent_norm = RMSNorm(self.rank, LATENT_EPS)
        self.expand = nn.Linear(self.rank, self.heads * (self.nope + self.value_dim), bias=False)
        self.outward = Outward(inner, model.width, bias=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """x (B,T,D) -> q (B,T,H,nope+P), what is cached (B,T,R+P), gate (B,T,H*V) or None."""
        q, latent, shared, gate = self.inward(x).split(self.sizes, -1)
        if self.query_norm is not None and self.query_up is not None:
            q = self.query_up(self.query_norm(q))
        cached = torch.cat((self.latent_norm(latent), shared), -1)
        return q.unflatten(-1, (self.heads, -1)), cached, gate if self.config.latent_gate else None

    def expanded(self, cached: Tensor) -> tuple[Tensor, Tensor]:
        """What is cached (B,T,R+P) -> keys (B,T,H,nope+P) and values (B,T,H,V) of every head."""
        latent, shared = cached.split((self.rank, self.shared), -1)
        k, v = self.expand(latent).unflatten(-1, (self.heads, -1)).split((self.nope, self.value_dim), -1)
        return torch.cat((k, shared.unsqueeze(2).expand(-1, -1, self.heads, -1)), -1), v

    def close(self, o: Tensor, gate: Tensor | None) -> Tensor:
        o = o.flatten(2)
        return self.outward(o if gate is None else o * torch.sigmoid(gate))

    def forward(self, x: Tensor, state: Any = None, need_state: bool = True) -> tuple[Tensor, Any]:
        q, new, gate = self.project(x)
        cache = Cache.of(new) if state is None else state["latent"].append(new)
        k, v = self.expanded(cache.view)
        y = self.close(causal_attention(q, k, v, self.scale), gate)
        return y, {"latent": cache} if need_state else None

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """The absorbed form: queries go to the latent, so that no key or value is ever expanded."""
        q, new, gate = self.project(x[:, None])
        cache = Cache.of(new) if state is None else state["latent"].append(new)
        latent = cache.view[..., : self.rank]
        to_key, to_value = self.expand.weight.unflatten(0, (self.heads, -1)).split((self.nope, self.value_dim), 1)
        q_nope, q_shared = q[:, 0].split((self.nope, self.shared), -1)
        absorbed = torch.einsum("bhn,hnr->bhr", q_nope, to_key.to(q.dtype))
        scores = torch.einsum("bhr,btr->bht", torch.cat((absorbed, q_shared), -1), cache.view) * self.scale
        weights = scores.to(torch.promote_types(scores.dtype, torch.float32)).softmax(-1).to(scores.dtype)
        o = torch.einsum("bht,btr->bhr", weights, latent)
        o = torch.einsum("bhr,hvr->bhv", o, to_value.to(q.dtype))
        return self.close(o[:, None], gate)[:, 0], {"latent": cache}

    def state_parts(self, T: int) -> dict[str, int]:
        return {"cache": T * (self.rank + self.shared)}

    def trace(self, x: Tensor, state: Any = None) -> dict[str, Any]:
        q, cached, _ = self.project(x)
        k, v = self.expanded(cached)
        return {"q": q.float(), "k": k.float(), "v": v.float(), "log_decay": None, "erase": None, "write": None}
