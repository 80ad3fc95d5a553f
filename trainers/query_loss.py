"""The training loss with shapes that do not depend on the data, so that a CUDA graph can hold it.

B batch, T time, Q query slots per example, D width, N vocabulary, R = B*Q rows.

`Backbone.loss` picks scored positions by a mask, whose count the host must know. The query table has one slot a scored
position, so gathering its slots says the same with fixed shapes; unused slots have the target -100.
"""

from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemolab.kernels.derivatives import once_differentiable
from mnemolab.kernels.triton.table import interpreted
from mnemolab.models.backbone import Backbone

__all__ = ["query_loss"]

IGNORED = -100
LOGITS_AT_ONCE = 1 << 25  # a piece's logits stay in fast memory between the passes over them, and memory stays small


def query_loss(model: Backbone, inputs: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
    """Mean cross-entropy over the used slots: inputs (B,T), positions (B,Q), wanted (B,Q) with -100 in unused slots.

    Equals `model.loss`. No operation waits for the host.
    """
    hidden = model.features(inputs)[0]
    rows = hidden.gather(1, positions.clamp(min=0)[..., None].expand(-1, -1, hidden.shape[-1])).flatten(0, 1)
    kind = rows.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else rows.dtype
    return _RowLoss.apply(rows, model.head_weight, wanted.flatten(), dtype)  # type: ignore[return-value]


def _fused(rows: Tensor) -> bool:
    """Whether the Triton kernel takes these rows."""
    if rows.dtype == torch.float64 or find_spec("triton") is None:
        return False
    return rows.is_cuda or interpreted()


class _RowLoss(torch.autograd.Function):
    """Mean of -log softmax(rows weight^T)[wanted] over rows whose target is not -100.

    Gradients are made in the forward pass, piece by piece: a softmax is read once and never kept.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, wanted: Tensor, dtype: torch.dtype) -> Tensor:
        with torch.autocast(rows.device.type, enabled=False):
            x, w = rows.to(dtype), weight.to(dtype)
            used = wanted != IGNORED
            share = used.float() / used.sum().clamp(min=1)  # (R,)
            target = wanted.clamp(min=0)[:, None]
            loss = torch.zeros((), dtype=torch.promote_types(rows.dtype, torch.float32), device=rows.device)
            grad_rows, grad_weight = torch.empty_like(x), torch.zeros_like(weight, dtype=loss.dtype)
            size = max(1, LOGITS_AT_ONCE // weight.shape[0])
            for first in range(0, x.shape[0], size):
                piece = slice(first, first + size)
                logits = F.linear(x[piece], w)
                if _fused(rows):
                    from mnemolab.kernels.triton.softmax_error import softmax_error_

                    loss += softmax_error_(logits, wanted[piece], share[piece]).sum()
                    error = logits
                else:
                    scores = F.log_softmax(logits, -1, dtype=loss.dtype)
                    loss -= (scores.gather(1, target[piece])[:, 0] * share[piece]).sum()
                    error = scores.exp_().scatter_add_(1, target[piece], -torch.ones_like(scores[:, :1]))
                    error = error.mul_(share[piece, None]).to(dtype)  # d loss / d logits
                grad_rows[piece] = error @ w
                grad_weight += (error.T @ x[piece]).to(loss.dtype)
        ctx.save_for_backward(grad_rows.to(rows.dtype), grad_weight.to(weight.dtype))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_rows, grad_weight = ctx.saved_tensors
        return grad_rows * grads[0].to(grad_rows.dtype), grad_weight * grads[0].to(grad_weight.dtype), None, None
