"""Gated units: SwiGLU (Shazeer, arXiv 2002.05202) and SiTU-GLU, whose two branches are softly bounded (Kimi K3, 2607.24653, eq. 12)."""

from math import inf

import torch
from torch import Tensor
from torch.nn.functional import silu

from mnemolab.errors import BadRequest
from mnemolab.kernels.neighbours.dispatch import check_floating, fused

__all__ = ["glu", "situ_glu"]


def situ_glu(gate: Tensor, up: Tensor, *, gate_bound: float | None = 4.0, up_bound: float | None = 25.0) -> Tensor:
    """[b1 tanh(gate/b1) sigmoid(gate)] * [b2 tanh(up/b2)], so |y| <= b1 b2; a bound of None leaves its branch linear.

    gate, up: the same shape. Returns gate.dtype; computed in float32 at least.
    """
    check_floating(gate=gate, up=up)
    if gate.shape != up.shape:
        raise BadRequest(f"up has shape {tuple(up.shape)}; it must be that of gate, {tuple(gate.shape)}")
    _check_bounds(gate_bound=gate_bound, up_bound=up_bound)
    if fused(gate, up):
        from mnemolab.kernels.triton import situ

        return situ.situ_glu(gate, up, gate_bound, up_bound)
    wide = torch.promote_types(gate.dtype, torch.float32)
    g, u = gate.to(wide), up.to(wide)
    return (_bounded(g, gate_bound) * torch.sigmoid(g) * _bounded(u, up_bound)).to(gate.dtype)


def glu(x: Tensor, *, gate_bound: float | None = None, up_bound: float | None = None) -> Tensor:
    """x (...,2F), one projection for both branches -> (...,F): the first half gates the second.

    SwiGLU without bounds, SiTU-GLU with them. Returns x.dtype.
    """
    check_floating(x=x)
    if x.dim() < 1 or x.shape[-1] % 2:
        raise BadRequest(f"x has shape {tuple(x.shape)}; its last axis must hold a gate and as many units, so be even")
    _check_bounds(gate_bound=gate_bound, up_bound=up_bound)
    if fused(x):
        from mnemolab.kernels.triton import situ

        return situ.glu(x, gate_bound, up_bound)
    gate, up = x.chunk(2, -1)
    if gate_bound is None and up_bound is None:
        return silu(gate) * up
    return situ_glu(gate, up, gate_bound=gate_bound, up_bound=up_bound)


def _check_bounds(**bounds: float | None) -> None:
    for name, bound in bounds.items():
        if bound is not None and not 0 < bound < inf:
            raise BadRequest(f"{name}={bound!r}; it must be positive and finite, or None for no bound")


def _bounded(x: Tensor, bound: float | None) -> Tensor:
    return x if bound is None else bound * torch.tanh(x / bound)
