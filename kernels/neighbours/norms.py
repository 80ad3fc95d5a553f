"""L2 norm of keys and queries, RMS norm of the residual stream, and RMS norm with an output gate behind the memory's read."""

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from mnemolab.errors import BadRequest, unknown
from mnemolab.kernels.neighbours.dispatch import check_floating, fused

__all__ = ["add_rms_norm", "l2_norm", "rms_norm_gated"]

_GATES = {"silu": silu, "sigmoid": torch.sigmoid, "none": lambda gate: gate}


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(sum(x^2) + eps) over the last axis, in x.dtype; the sum runs in float32 at least."""
    check_floating(x=x)
    if fused(x):
        from mnemolab.kernels.triton import norms

        return norms.l2_norm(x, eps)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)


def rms_norm_gated(
    x: Tensor,
    gate: Tensor | None = None,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-5,
    activation: str = "silu",
    gate_first: bool = False,
) -> Tensor:
    """weight * rms(x) * act(gate) over the last axis; with `gate_first`, weight * rms(x * act(gate)) as in Mamba-2.

    x (...,D); gate None or (...,D) before its activation ("silu" | "sigmoid" | "none"); weight None or (D).
    Returns x.dtype; everything inside runs in float32 at least.
    """
    if activation not in _GATES:
        raise unknown("activation", activation, _GATES)
    check_floating(x=x, gate=gate, weight=weight)
    if gate is not None and gate.shape != x.shape:
        raise BadRequest(f"gate has shape {tuple(gate.shape)}; it must be that of x, {tuple(x.shape)}")
    if weight is not None and tuple(weight.shape) != (x.shape[-1],):
        raise BadRequest(f"weight has shape {tuple(weight.shape)}; it must be ({x.shape[-1]},)")
    if fused(x, gate, weight):
        from mnemolab.kernels.triton import norms

        return norms.rms_norm_gated(x, gate, weight, eps, activation, gate_first)
    wide = torch.promote_types(x.dtype, torch.float32)
    y = x.to(wide)
    opening = None if gate is None else _GATES[activation](gate.to(wide))
    if opening is not None and gate_first:
        y = y * opening
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight.to(wide)
    if opening is not None and not gate_first:
        y = y * opening
    return y.to(x.dtype)


def add_rms_norm(
    h: Tensor, y: Tensor | None, weight: Tensor, *, eps: float = 1e-5, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """One step of a residual stream and what the next sub-layer reads: (h + y, weight * rms(h + y)).

    h (...,D); y None (nothing to add) or of h's shape; weight (D). The sum has the promoted dtype of h and y, the norm
    `dtype` (None: that of the sum). The mean square runs in float32 at least. Raises BadRequest for shapes.
    """
    check_floating(h=h, y=y, weight=weight)
    if y is not None and y.shape != h.shape:
        raise BadRequest(f"y has shape {tuple(y.shape)}; it must be that of h, {tuple(h.shape)}")
    if tuple(weight.shape) != (h.shape[-1],):
        raise BadRequest(f"weight has shape {tuple(weight.shape)}; it must be ({h.shape[-1]},)")
    total = h.dtype if y is None else torch.promote_types(h.dtype, y.dtype)
    dtype = dtype or total
    if total == h.dtype and fused(h, y, weight) and dtype != torch.float64:
        from mnemolab.kernels.triton import add_norm

        return add_norm.add_rms_norm(h, y, weight, eps, dtype)
    h = h if y is None else h + y
    return h, rms_norm(h, weight.shape, weight.to(h.dtype), eps).to(dtype)
