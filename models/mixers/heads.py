"""The shell that all memories with heads share: project, convolve, remember, normalise, gate, project.

B batch, T time, D model width, H heads, K key channels per head, V value channels per head.
"""

from abc import abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnemolab.errors import BadRequest
from mnemolab.kernels.neighbours.norms import rms_norm_gated
from mnemolab.kernels.neighbours.rows import Rows, take_rows
from mnemolab.kernels.operands import MAX_CHANNELS
from mnemolab.models.config import HeadsConfig, MemoryConfig, ModelConfig
from mnemolab.models.fused import Fused
from mnemolab.models.mixers.base import Mixer
from mnemolab.models.norms import RMSNorm
from mnemolab.models.outward import Outward
from mnemolab.models.positions import rotate
from mnemolab.models.short_conv import ShortConv

__all__ = ["HeadsMixer"]


class HeadsMixer(Mixer):
    """Projections of q, k, v and the output gate in one matrix, one short convolution over q, k and v together.

    A subclass gives `remember`, what happens between (q, k, v) and the heads' output.
    """

    def __init__(self, model: ModelConfig, config: HeadsConfig):
        super().__init__()
        self.config, self.width, self.heads = config, model.width, model.heads
        # attention with shared queries would give all heads one pattern
        self.key_heads = (isinstance(config, MemoryConfig) and config.key_heads) or model.heads
        if model.heads % self.key_heads:
            raise BadRequest(f"key_heads={self.key_heads} does not divide heads={model.heads}; choose a divisor")
        self.key_dim = config.key_dim or max(1, round(model.head_dim * config.expand_key))
        self.value_dim = config.value_dim or max(1, round(model.head_dim * config.expand_value))
        if max(self.key_dim, self.value_dim) > MAX_CHANNELS:
            raise BadRequest(
                f"{self.key_dim} key and {self.value_dim} value channels per head (head_dim={model.head_dim}); the most is "
                f"{MAX_CHANNELS}, so use more heads"
            )
        self.inner = self.heads * self.value_dim
        self.rotary = model.positions == "rotary"
        if self.rotary and self.key_dim % 2:
            raise BadRequest(f"positions='rotary' turns pairs of channels; head_dim must be even, not {self.key_dim}")

        keys = self.key_heads * self.key_dim
        rank = model.head_dim if config.gate_rank < 0 else config.gate_rank
        gate = 0 if config.gate == "none" else rank or self.inner
        self.sizes = (keys, keys, self.inner)
        self.inward = Fused(self.width, [*self.sizes, gate], bias=config.bias)
        self.gate_up = nn.Linear(rank, self.inner, bias=config.gate_bias) if gate and rank else None
        self.conv = ShortConv(self.sizes, config.conv, config.conv_bias, *self.convolved()) if config.conv else None
        self.norm = None
        if config.output_norm:
            self.norm = RMSNorm(self.inner if config.gate_first else self.value_dim, config.output_eps)
        self.outward = Outward(self.inner, self.width, bias=config.bias)

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (B,T,D) -> q, k, v and gate side by side, and what `remember` is told beside them: here x."""
        return self.inward(x), x

    def project(self, x: Tensor, state: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, dict[str, Tensor]]:
        """x (B,T,D) -> what `read` tells, q, k (B,T,H,K), v (B,T,H,V), the gate before its activation or None, and the state
        of convolution and positions."""
        mixed, told = self.read(x)
        held: dict[str, Tensor] = {}
        if self.conv is None:
            q, k, v, gate = mixed.split((*self.sizes, mixed.shape[-1] - sum(self.sizes)), -1)
        else:
            q, k, v, gate, held["conv"] = self.conv(mixed, None if state is None else state["conv"])
        q, k = self.feature(
            q.unflatten(-1, (self.key_heads, self.key_dim)), k.unflatten(-1, (self.key_heads, self.key_dim))
        )
        v = v.unflatten(-1, (self.heads, self.value_dim))
        if self.rotary:
            start = x.new_zeros(x.shape[0], dtype=torch.int64) if state is None else state["position"]
            q, k = rotate(q, start), rotate(k, start)
            held["position"] = start + x.shape[1]
        if self.key_heads != self.heads:
            group = self.heads // self.key_heads
            q, k = (u.unsqueeze(3).expand(-1, -1, -1, group, -1).flatten(2, 3) for u in (q, k))
        return told, q, k, v, None if self.config.gate == "none" else gate, held

    def close(self, o: Tensor, gate: Tensor | None) -> Tensor:
        """Heads' output (B,T,H,V) -> (B,T,D): norm, gate, projection; or gate first, then one norm over all heads."""
        c = self.config
        if self.gate_up is not None:
            gate = self.gate_up(gate)
        if self.norm is None:
            o = o.flatten(2)
            if gate is not None:
                o = o * (F.silu(gate) if c.gate == "silu" else torch.sigmoid(gate))
            return self.outward(o)
        if c.gate_first:
            o = o.flatten(2)
        elif gate is not None:
            gate = gate.unflatten(-1, (self.heads, self.value_dim))
        options = {"eps": self.norm.eps, "activation": c.gate, "gate_first": c.gate_first}
        o = rms_norm_gated(o, gate, self.norm.weight, **options)
        return self.outward(o if c.gate_first else o.flatten(2))

    def forward(self, x: Tensor, state: Any = None, need_state: bool = True) -> tuple[Tensor, Any]:
        told, q, k, v, gate, held = self.project(x, state)
        o, memory = self.remember(told, q, k, v, state, need_state)
        return self.close(o, gate), held | memory if need_state else None

    def at(self, x: Tensor, rows: Rows) -> Tensor:
        told, q, k, v, gate, _ = self.project(x, None)
        o, _ = self.remember(told, q, k, v, None, False)
        return self.close(take_rows(o, rows), None if gate is None else take_rows(gate, rows))

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        x = x[:, None]
        told, q, k, v, gate, held = self.project(x, state)
        o, memory = self.remember_one(told, q, k, v, state)
        return self.close(o, gate)[:, 0], held | memory

    def conv_elements(self) -> int:
        return 0 if self.conv is None else sum(self.sizes) * (self.config.conv - 1)

    def feature(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Feature map of q and k (B,T,H,K), or what of it `convolved` leaves to do."""
        return q, k

    def convolved(self) -> tuple[tuple[bool, bool, bool], int]:
        """What follows the convolution in one operation with it: SiLU on which of q, k and v, and the channels of a head of
        unit length (0: none). v has SiLU after a convolution, as everywhere in this family; a bare projection has none."""
        return (False, False, True), 0

    @abstractmethod
    def remember(
        self, told: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Any, need_state: bool
    ) -> tuple[Tensor, dict[str, Any]]:
        """-> (o (B,T,H,V), the memory's part of the state); `told` as `read` gives it."""

    def remember_one(self, told: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Any) -> tuple[Tensor, dict[str, Any]]:
        """`remember` for one token (T = 1)."""
        return self.remember(told, q, k, v, state, True)
