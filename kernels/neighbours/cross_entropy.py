"""Cross-entropy at scored positions only: the logits of the other positions are never formed."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint

from mnemolab.errors import BadRequest
from mnemolab.kernels.neighbours.dispatch import check_floating, fused

__all__ = ["IGNORED", "scored_cross_entropy"]

IGNORED = -100
# logits alive at once; more rows are taken in pieces whose logits are computed again in the backward pass
_LOGITS_AT_ONCE = 1 << 24


def scored_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None = None) -> Tensor:
    """Mean of -log softmax(weight hidden + bias)[target] over the positions whose target is not -100; a scalar.

    hidden (B,T,D); weight (vocabulary,D); targets (B,T) integers; bias (vocabulary). Logits have hidden's dtype, under autocast
    its dtype, as a head's would; the softmax and the sum run in float32 at least. With no scored
    position the loss is 0 and so are its gradients. Raises BadRequest for shapes that do not fit and, on the CPU, for targets
    outside the vocabulary; TypeError for dtypes.
    """
    check_floating(hidden=hidden, weight=weight, bias=bias)
    if targets.dtype.is_floating_point or targets.dtype.is_complex or targets.dtype == torch.bool:
        raise TypeError(f"targets has dtype {targets.dtype}; it must be an integer type")
    if hidden.dim() != 3 or tuple(targets.shape) != tuple(hidden.shape[:2]):
        raise BadRequest(
            f"targets has shape {tuple(targets.shape)} and hidden {tuple(hidden.shape)}; they must be (B,T) and (B,T,D)"
        )
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[2]:
        raise BadRequest(f"weight has shape {tuple(weight.shape)}; it must be (vocabulary,D) with D={hidden.shape[2]}")
    if weight.shape[0] < 1:
        raise BadRequest(f"weight has shape {tuple(weight.shape)}; the vocabulary must hold at least 1 token")
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise BadRequest(f"bias has shape {tuple(bias.shape)}; it must be (vocabulary,)=({weight.shape[0]},)")
    # inside a capture nobody may wait for the number of scored positions
    capturing = hidden.is_cuda and torch.cuda.is_current_stream_capturing()
    if capturing and weight.dtype == hidden.dtype and fused(hidden, weight, bias):
        from mnemolab.kernels.triton import cross_entropy as form

        return form.scored_cross_entropy(hidden, weight, targets, bias, IGNORED)
    scored = targets != IGNORED
    rows, wanted = hidden[scored], targets[scored].long()
    if wanted.device.type == "cpu" and wanted.numel():  # elsewhere the check would wait for the device
        least, most = (int(x) for x in wanted.aminmax())
        if least < 0 or most >= weight.shape[0]:
            outside = least if least < 0 else most
            raise BadRequest(
                f"targets holds {outside}; it must be 0 to {weight.shape[0] - 1}, or {IGNORED} where not scored"
            )
    count = rows.shape[0]
    at_once = max(1, _LOGITS_AT_ONCE // weight.shape[0])
    if count <= at_once:
        return _summed(rows, weight, bias, wanted) / max(count, 1)
    total = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
    for start in range(0, count, at_once):
        piece = slice(start, start + at_once)
        total = total + checkpoint(_summed, rows[piece], weight, bias, wanted[piece], use_reentrant=False)
    return total / count


def _summed(rows: Tensor, weight: Tensor, bias: Tensor | None, wanted: Tensor) -> Tensor:
    logits = linear(rows, weight.to(rows.dtype), None if bias is None else bias.to(rows.dtype))
    return cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), wanted, reduction="sum")
