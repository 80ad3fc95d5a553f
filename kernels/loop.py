"""The definition of the memory recurrence: one token after another, as the equation reads.

    S~  = exp(log_decay) S         decay the state, S (K,V): rows are key channels
    rho = write*v - S~^T (erase*k) what the value differs from what the erase key finds
    S   = S~ + k rho^T             write along k
    o   = scale S^T q              read, after the write

Every linear stage of the lineage is a special case (Kimi Linear, arXiv 2510.26692, equation 1; Gated DeltaNet-2,
arXiv 2605.22791, equation 8). Autograd gives the gradients.
"""

import torch
from torch import Tensor

from mnemolab.kernels.operands import Operands, State, with_denominator

__all__ = ["scan", "step", "supports"]


def supports(operands: Operands) -> str | None:
    """None: the definition takes everything that passed the boundary."""
    return None


def scan(operands: Operands, chunk_size: int | None = None) -> tuple[Tensor, State]:
    """Outputs (B,T,H,V) in v.dtype and the final state. `chunk_size` has no meaning here."""
    # the recurrence runs in the state's dtype whatever autocast says
    with torch.autocast(operands.device.type, enabled=False):
        return with_denominator(operands, _scan) if operands.normalize else _scan(operands)


def _scan(operands: Operands) -> tuple[Tensor, Tensor]:
    state = operands.first_state()
    q, k, z, e, decay = _in_state_dtype(operands)
    outputs = []
    for t in range(q.shape[1]):
        if decay is not None:
            state = decay[:, t, :, :, None] * state
        rho = z[:, t]
        if e is not None:
            rho = rho - torch.einsum("bhkv,bhk->bhv", state, e[:, t])
        state = state + k[:, t, :, :, None] * rho[:, :, None, :]
        outputs.append(operands.scale * torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    if outputs:
        o = torch.stack(outputs, 1)
    else:  # nothing to read, but every operand keeps its (zero) gradient
        o = z + sum(value.sum().to(z.dtype) for value in operands.named().values())
    # a copy: `memory_step` changes states in place, and this one is the caller's own (no token) or saved for the backward pass
    return o.to(operands.v.dtype), state.clone()


def step(operands: Operands) -> tuple[Tensor, State]:
    """One token (T = 1) without a time loop: o (B,1,H,V) and the new state."""
    return scan(operands)


def _in_state_dtype(operands: Operands) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """q, k, z = write*v, e = erase*k, exp(log_decay); a scalar gate gets a channel axis of 1."""
    cast = {name: value.to(operands.state_dtype) for name, value in operands.named().items()}
    gate = {
        name: value if value.dim() == 4 else value.unsqueeze(-1)
        for name, value in cast.items()
        if name in ("log_decay", "erase", "write")
    }
    z = gate["write"] * cast["v"] if "write" in gate else cast["v"]
    e = gate["erase"] * cast["k"] if "erase" in gate else None
    decay = gate["log_decay"].exp() if "log_decay" in gate else None
    return cast["q"], cast["k"], z, e, decay
