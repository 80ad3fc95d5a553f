"""Softmax attention with a cache of keys and values (GPT-2; Vaswani et al., 1706.03762)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from mnemolab.models.mixers.heads import HeadsMixer
from mnemolab.models.state import Cache

__all__ = ["SoftmaxMixer", "causal_attention"]

# ways that serve a cache of any length with what is compiled already
_ANY_LENGTH = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
    """q (B,n,H,K) are the last n of the T tokens of k (B,T,H,K) and v (B,T,H,V) -> (B,n,H,V)."""
    n, T = q.shape[1], k.shape[1]
    q, k, v = (u.transpose(1, 2) for u in (q, k, v))
    mask = None
    if 1 < n < T:
        row = torch.arange(T - n, T, device=q.device)[:, None]
        mask = torch.arange(T, device=q.device) <= row
    options: dict[str, Any] = {"attn_mask": mask, "is_causal": n == T, "scale": scale}
    if n == T or not q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)
    # On an H200 a model took 60 ms a token at lengths not seen before, and another 5 at lengths that the first had seen: cuDNN, torch's
    # first choice there, plans for every length anew. That it is cuDNN is inferred, and what this saves is not measured yet.
    with sdpa_kernel(_ANY_LENGTH):
        return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)


class SoftmaxMixer(HeadsMixer):
    """o_t = sum_{j<=t} softmax_j(q_t . k_j / sqrt K) v_j. Its state grows by H (K + V) elements a token."""

    def remember(
        self, told: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Any, need_state: bool
    ) -> tuple[Tensor, dict[str, Any]]:
        if state is None and not need_state:
            return causal_attention(q, k, v), {}
        keys = Cache.of(k) if state is None else state["k"].append(k)
        values = Cache.of(v) if state is None else state["v"].append(v)
        return causal_attention(q, keys.view, values.view), {"k": keys, "v": values}

    def state_parts(self, T: int) -> dict[str, int]:
        return {"cache": T * self.heads * (self.key_dim + self.value_dim), "conv": self.conv_elements()}

    def trace(self, x: Tensor, state: Any = None) -> dict[str, Any]:
        _, q, k, v, _, _ = self.project(x, state)
        return {"q": q.float(), "k": k.float(), "v": v.float(), "log_decay": None, "erase": None, "write": None}
