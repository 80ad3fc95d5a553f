"""The gates of a memory that have one number a head: its decay, its step size, the strength of its delta rule."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.kernels.neighbours.decay_gate import GATES, decay_gate
from mnemolab.kernels.neighbours.dispatch import check_floating, fused

__all__ = ["ScalarGates", "scalar_gates"]


class ScalarGates(NamedTuple):
    """passed (B,T,passed) in told's dtype; log_decay, step and beta (B,T,H) in float32 at least. None: not asked for."""

    passed: Tensor | None
    log_decay: Tensor | None
    step: Tensor | None
    beta: Tensor | None


def scalar_gates(
    told: Tensor,
    heads: int,
    *,
    passed: int = 0,
    kind: str | None = None,
    bias: Tensor | None = None,
    A_log: Tensor | None = None,
    step: bool = False,
    beta_max: float | None = None,
) -> ScalarGates:
    """What told (B,T,J) says of each head. Its columns are, in this order: the first `passed`, which come back as they are; H
    for the decay of that `kind`, with bias (H) and A_log (H), as in `decay_gate`; H for the delta rule's strength.

    log_decay = decay_gate(u, bias, A_log, kind); step = softplus(u + bias), Mamba-2's step size (2405.21060), which drives the
    decay; beta = beta_max sigmoid(u) (DeltaNet, 2406.06484). As many columns as these are J. Raises BadRequest if they are
    not, for kinds and for shapes that do not fit, TypeError for dtypes.
    """
    check_floating(told=told, bias=bias, A_log=A_log)
    wanted = [size for size in (passed, heads if kind else 0, heads if beta_max is not None else 0) if size]
    if told.dim() != 3 or told.shape[2] != sum(wanted):
        raise BadRequest(
            f"told has shape {tuple(told.shape)}; with {passed} columns passed it must be (B,T,{sum(wanted)})"
        )
    if (kind is None) != (bias is None) or (step and kind is None):
        raise BadRequest(f"kind={kind!r} with step={step}: a decay has a kind and a bias, and a step size has a decay")
    if not wanted or wanted == [passed]:
        raise BadRequest("no gate is asked for; give kind and bias, or beta_max")
    if bias is None or bias.dtype == torch.float32:
        rates = None if A_log is None else tuple(A_log.shape)
        if fused(told, bias, A_log) and _fits(heads, kind, bias, rates):
            from mnemolab.kernels.triton import scalar_gates as form

            number = None if kind is None else GATES.index(kind)
            return ScalarGates(*form.scalar_gates(told, heads, passed, number, bias, A_log, step, beta_max))
    parts = list(told.split(wanted, -1))
    kept = parts.pop(0) if passed else None
    log_decay = size = beta = None
    if kind is not None and bias is not None:
        u = parts.pop(0)
        log_decay = decay_gate(u, bias, A_log, kind, heads).squeeze(-1)
        size = F.softplus(u.to(bias.dtype) + bias) if step else None
    if beta_max is not None:
        u = parts.pop(0)
        beta = torch.sigmoid(u.to(torch.promote_types(u.dtype, torch.float32))) * beta_max
    return ScalarGates(kept, log_decay, size, beta)


def _fits(heads: int, kind: str | None, bias: Tensor | None, rates: tuple[int, ...] | None) -> bool:
    """Whether the decay's kind and shapes are in order; what is not, `decay_gate` refuses in its own words."""
    if kind is None or bias is None:
        return True
    return kind in GATES and tuple(bias.shape) == (heads,) and rates == (None if kind == "logsigmoid" else (heads,))
