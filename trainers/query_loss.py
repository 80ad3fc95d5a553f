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
# 256 MiB in bf16. Pieces that would stay in fast memory were slower on an H200, the smaller the more: 427 us for 16,384 rows
# of 8,192 in one piece, 493 in four, 899 in 32 (2026-11-30).
LOGITS_AT_ONCE = 1 << 27
MANY = 2048


def query_loss(model: Backbone, inputs: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
    """Mean cross-entropy over the used slots: inputs (B,T), positions (B,Q), wanted (B,Q) with -100 in unused slots.

    Equals `model.loss`. No operation waits for the host.
    """
    B, T = inputs.shape
    where = torch.arange(0, B * T, T, device=inputs.device)[:, None] + positions
    rows = model.features_at(inputs, where.where(positions >= 0, -1).flatten())
    kind = rows.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else rows.dtype
    return _RowLoss.apply(rows, model.head_weight, wanted.flatten(), dtype)  # type: ignore[return-value]


def _current(x: Tensor) -> bool:
    """Whether x is where Triton launches."""
    return x.is_cuda and x.get_device() == torch.cuda.current_device()


def _fused(rows: Tensor) -> bool:
    """Whether the Triton kernel takes these rows."""
    if rows.dtype == torch.float64 or find_spec("triton") is None:
        return False
    return _current(rows) or interpreted()


def _whole(x: Tensor, weight: Tensor) -> bool:
    """Whether one kernel makes logits, softmax and the rows' gradient: many bf16 rows, a large vocabulary."""
    return _current(x) and x.dtype == torch.bfloat16 and x.shape[1] <= 128 and min(x.shape[0], weight.shape[0]) >= MANY


def _softmax_error(logits: Tensor, target: Tensor, share: Tensor, wide: torch.dtype) -> tuple[Tensor, Tensor]:
    """d loss / d logits in the dtype of logits (R,N), and the rows' parts of the loss (R,); target (R,1)."""
    scores = F.log_softmax(logits, -1, dtype=wide)
    losses = -scores.gather(1, target)[:, 0] * share
    error = scores.exp_().scatter_add_(1, target, -torch.ones_like(scores[:, :1]))
    return error.mul_(share[:, None]).to(logits.dtype), losses


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, summed in total's dtype, which may be wider than that of a and b."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    elif a.is_cuda:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += (a @ b).to(total.dtype)


class _RowLoss(torch.autograd.Function):
    """Mean of -log softmax(rows weight^T)[wanted] over rows whose target is not -100.

    Gradients are made in the forward pass, piece by piece: a softmax is read once and never kept.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, wanted: Tensor, dtype: torch.dtype) -> Tensor:
        with torch.autocast(rows.device.type, enabled=False):
            x, w = rows.to(dtype).contiguous(), weight.to(dtype).contiguous()
            used = wanted != IGNORED
            share = used.float() / used.sum().clamp(min=1)  # (R,)
            target = wanted.clamp(min=0)[:, None]
            wide = torch.promote_types(rows.dtype, torch.float32)
            losses = torch.empty(x.shape[0], dtype=wide, device=rows.device)
            grad_rows, grad_weight = torch.empty_like(x), torch.zeros_like(weight, dtype=wide)
            size = max(1, LOGITS_AT_ONCE // weight.shape[0])
            for first in range(0, x.shape[0], size):
                piece = slice(first, first + size)
                if _whole(x, w):
                    from mnemolab.kernels.triton.row_loss import row_loss

                    grad_rows[piece], error, scale = row_loss(x[piece], w, wanted[piece], share[piece], losses[piece])
                    _add_product(grad_weight, error.T, (x[piece] * scale[:, None]).to(dtype))
                    continue
                error = F.linear(x[piece], w)
                if _fused(rows):
                    from mnemolab.kernels.triton.softmax_error import softmax_error_

                    softmax_error_(error, wanted[piece], share[piece], losses[piece])
                else:
                    error, losses[piece] = _softmax_error(error, target[piece], share[piece], wide)
                torch.mm(error, w, out=grad_rows[piece])
                _add_product(grad_weight, error.T, x[piece])
            loss = losses.sum()
        ctx.save_for_backward(grad_rows.to(rows.dtype), grad_weight.to(weight.dtype))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_rows, grad_weight = ctx.saved_tensors
        return grad_rows * grads[0].to(grad_rows.dtype), grad_weight * grads[0].to(grad_weight.dtype), None, None
