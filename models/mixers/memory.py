"""The memory recurrence as a token mixer: one class, told by `MemoryConfig` how to decay, erase and write.

S_t = decay(S_{t-1}) - k (e . decay(S_{t-1})) + k z, read by q (`mnemolab.kernels.memory_scan`). The stages from linear
attention to Gated DeltaNet-2 differ in what (decay, e, z) are.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnemolab.kernels import memory_scan, memory_step
from mnemolab.kernels.neighbours.linear_pair import linear_pair
from mnemolab.kernels.neighbours.norms import l2_norm
from mnemolab.kernels.neighbours.scalar_gates import scalar_gates
from mnemolab.models.config import MemoryConfig, ModelConfig
from mnemolab.models.fused import Fused
from mnemolab.models.mixers.base import hooked
from mnemolab.models.mixers.gates import DecayGate, FixedDecay
from mnemolab.models.mixers.heads import HeadsMixer
from mnemolab.models.precision import KeepsFp32

__all__ = ["MemoryMixer", "Operands"]


@dataclass(frozen=True)
class Operands:
    """What `memory_scan` is called with: q, k (B,T,H,K), v (B,T,H,V) and the gates, None where there is none."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None = None
    erase: Tensor | None = None
    write: Tensor | None = None

    def gates(self) -> dict[str, Any]:
        return {"log_decay": self.log_decay, "erase": self.erase, "write": self.write}


def _bare(module: nn.Module) -> bool:
    """A matrix alone: no bias, nobody's wrapper around it, and nobody listens to its calls."""
    return type(module) is Fused and module.bias is None and not hooked(module)


class MemoryMixer(KeepsFp32, HeadsMixer):
    """The recurrence in the common shell. Set `intervention` to change what the memory is told: Operands -> Operands."""

    config: MemoryConfig
    intervenes = True

    def __init__(self, model: ModelConfig, config: MemoryConfig):
        super().__init__(model, config)
        H, K, V = self.heads, self.key_dim, self.value_dim
        channels = K if config.decay == "channel" else None
        rank = config.decay_rank or model.head_dim
        self.control_sizes = {
            "decay": {"scalar": H, "channel": rank}.get(config.decay, 0),
            "erase": {"delta": H, "channel_write": H, "decoupled": H * K, "channel_erase": H * K}.get(config.write, 0),
            "write": {"channel_erase": H, "decoupled": H * V, "channel_write": H * V}.get(config.write, 0),
        }
        parts = self.control_sizes.values()
        self.control = Fused(self.width, parts) if any(parts) else None
        self.decay_up = nn.Linear(rank, H * K, bias=False) if config.decay == "channel" else None
        self.decay: DecayGate | FixedDecay | None = None
        if config.decay == "fixed":
            self.decay = FixedDecay(H, config.half_life)
        elif config.decay != "none":
            self.decay = DecayGate(config.decay_gate, H, channels, config.half_life, config.decay_floor)
        self.skip = nn.Parameter(torch.ones(H)) if config.skip else None
        self.scale = config.scale or None
        self.backend = model.backend

    def feature(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        kind = self.config.feature_map
        if kind == "elu1":
            q, k = F.elu(q) + 1, F.elu(k) + 1
            # an erasure along keys of length above 1 would overshoot without bound
            return (q, k) if self.config.write in ("additive", "step") else (l2_norm(q), l2_norm(k))
        if self.conv is not None or kind == "identity":
            return q, k
        q, k = F.silu(q), F.silu(k)
        return (l2_norm(q), l2_norm(k)) if kind == "silu_l2" else (q, k)

    def convolved(self) -> tuple[tuple[bool, bool, bool], int]:
        kind = self.config.feature_map
        activated = kind in ("silu", "silu_l2")
        return (activated, activated, True), self.key_dim if kind == "silu_l2" else 0

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The projections, and the gates' before their activations, (B,T,sum of `control_sizes`), or x where there are none."""
        if self.control is None:
            return self.inward(x), x
        if all(_bare(module) for module in (self.inward, self.control)):
            return linear_pair(x, self.inward.weight, self.control.weight)
        return self.inward(x), self.control(x)

    def operands(self, told: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Operands:
        """The gates at every token, computed in fp32 at least, from what `read` tells."""
        log_decay, erase, write = self._by_channel(told) if self.control_sizes["write"] else self._by_head(told)
        found = Operands(q, k, v, log_decay, erase, write)
        return found if self.intervention is None else self.intervention(found)

    def _by_head(self, told: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Decay, erase and write where what erases and writes is one number a head."""
        gate, sizes = self.decay, self.control_sizes
        steps = self.config.write == "step"
        options: dict[str, Any] = {"beta_max": self.config.beta_max} if sizes["erase"] else {}
        by_head = isinstance(gate, DecayGate) and gate.channels is None and not hooked(gate)
        if isinstance(gate, DecayGate) and by_head:
            A_log = None if gate.kind == "logsigmoid" else gate.A_log
            options |= {"kind": gate.kind, "bias": gate.dt_bias, "A_log": A_log, "step": steps}
        part: Tensor | None = told
        log_decay = step = beta = None
        if options:
            passed = 0 if by_head else sizes["decay"]
            part, log_decay, step, beta = scalar_gates(told, self.heads, passed=passed, **options)
        if log_decay is None:
            log_decay = self._decays(told, part)
            if steps and isinstance(gate, DecayGate) and part is not None:
                step = gate.step_size(part)
        return log_decay, beta, step if beta is None else beta

    def _by_channel(self, told: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Decay, erase and write where one of the latter two is a gate per channel."""
        split = told.split(tuple(self.control_sizes.values()), -1)
        parts = dict(zip(self.control_sizes, split, strict=True))
        erase = self._open(parts["erase"], self.key_dim) * self.config.beta_max
        return self._decays(told, parts["decay"]), erase, self._open(parts["write"], self.value_dim)

    def _decays(self, told: Tensor, part: Tensor | None) -> Tensor | None:
        """Log-decay from its part of what is told."""
        decay = self.decay
        if decay is None:
            return None
        if isinstance(decay, FixedDecay) or part is None:
            return decay(told)
        return decay(part if self.decay_up is None else self.decay_up(part))

    def _open(self, u: Tensor, channels: int) -> Tensor:
        """Sigmoid of (B,T,H) or (B,T,H*channels), the latter as (B,T,H,channels)."""
        opened = torch.sigmoid(u.to(torch.promote_types(u.dtype, torch.float32)))
        return opened if u.shape[-1] == self.heads else opened.unflatten(-1, (self.heads, channels))

    def remember(
        self, told: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Any, need_state: bool
    ) -> tuple[Tensor, dict[str, Any]]:
        x = self.operands(told, q, k, v)
        o, memory = memory_scan(
            x.q,
            x.k,
            x.v,
            log_decay=x.log_decay,
            erase=x.erase,
            write=x.write,
            normalize=self.config.normalizes,
            initial_state=self._memory_of(state),
            scale=self.scale,
            output_final_state=need_state,
            backend=self.backend,
        )
        return self._skip(o, x.v), self._state_of(memory) if need_state else {}

    def remember_one(self, told: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Any) -> tuple[Tensor, dict[str, Any]]:
        x = self.operands(told, q, k, v)
        log_decay, erase, write = (None if gate is None else gate[:, 0] for gate in x.gates().values())
        o, memory = memory_step(
            x.q[:, 0],
            x.k[:, 0],
            x.v[:, 0],
            self._memory_of(state),
            log_decay=log_decay,
            erase=erase,
            write=write,
            normalize=self.config.normalizes,
            scale=self.scale,
        )
        return self._skip(o[:, None], x.v), self._state_of(memory)

    def _skip(self, o: Tensor, v: Tensor) -> Tensor:
        return o if self.skip is None else o + self.skip.to(v.dtype)[:, None] * v

    def _memory_of(self, state: Any) -> Any:
        if state is None:
            return None
        return (state["S"], state["z"]) if self.config.normalizes else state["S"]

    def _state_of(self, memory: Any) -> dict[str, Tensor]:
        return {"S": memory[0], "z": memory[1]} if self.config.normalizes else {"S": memory}

    def state_parts(self, T: int) -> dict[str, int]:
        memory = self.heads * self.key_dim * (self.value_dim + self.config.normalizes)
        return {"memory": memory, "conv": self.conv_elements()}

    def trace(self, x: Tensor, state: Any = None) -> dict[str, Any]:
        told, q, k, v, _, _ = self.project(x, state)
        made = self.operands(told, q, k, v)
        found = {"q": made.q, "k": made.k, "v": made.v, **made.gates()}
        return {name: None if value is None else value.float() for name, value in found.items()}

    def no_decay(self) -> set[str]:
        return {"control.weight", "decay_up.weight", "skip"}
