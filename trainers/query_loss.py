"""The training loss with shapes that do not depend on the data, so that a CUDA graph can hold it.

B batch, T time, Q query slots per example, D width, N vocabulary, R = B*Q rows.

`Backbone.loss` picks scored positions by a mask, whose count the host must know. The query table has one slot a scored
position, so gathering its slots says the same with fixed shapes; unused slots have the target -100.
"""

from importlib.util import find_spec
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemolab.kernels.neighbours.cross_entropy import IGNORED
from mnemolab.kernels.neighbours.embedding import TokenOrder
from mnemolab.kernels.neighbours.rows import Rows, places
from mnemolab.kernels.triton.table import interpreted
from mnemolab.models.backbone import Backbone

__all__ = ["Asked", "QueryLoss", "ask", "query_loss"]

# 256 MiB in bf16. Pieces that would stay in fast memory were slower on an H200, the smaller the more: 427 us for 16,384 rows
# of 8,192 in one piece, 493 in four, 899 in 32 (2026-11-30).
LOGITS_AT_ONCE = 1 << 27
MANY = 2048


class Asked(NamedTuple):
    """What is asked of a batch, a function of its data alone: `rows` of its B*T positions; `wanted` (R,) int64, the tokens that
    the logits there should say; `share` (R,) float32, a row's weight in the mean, 0 for an unused slot."""

    rows: Rows
    wanted: Tensor
    share: Tensor


def ask(positions: Tensor, wanted: Tensor, T: int) -> Asked:
    """Of positions (...,B,Q), -1 in unused slots, and wanted (...,B,Q), -100 there, in examples of T tokens; every tensor keeps
    what stands before B."""
    B = positions.shape[-2]
    where = torch.arange(0, B * T, T, device=positions.device)[:, None] + positions
    index = where.where(positions >= 0, -1).flatten(-2)
    used = (wanted != IGNORED).flatten(-2)
    share = used.float() / used.sum(-1, keepdim=True).clamp(min=1)
    return Asked(Rows(index, places(index, B * T)), wanted.flatten(-2), share)


class QueryLoss(NamedTuple):
    """`losses` (R,), whose sum is the mean cross-entropy over the used slots, and its gradients, made with it: of the hidden
    rows (R,D) and of the head's weight (N,D), in their dtypes."""

    losses: Tensor
    rows: Tensor
    weight: Tensor
    grad_rows: Tensor
    grad_weight: Tensor

    def backward(self) -> None:
        """Give every parameter its gradient, once."""
        if self.rows.requires_grad:
            self.rows.backward(self.grad_rows)
        if self.weight.requires_grad:
            if self.weight.grad is None:
                self.weight.grad = self.grad_weight
            else:  # a tied table has that of the lookup by now
                self.weight.grad += self.grad_weight


def query_loss(
    model: Backbone, inputs: Tensor, asked: Asked, order: TokenOrder | None = None, *, head: Tensor | None = None
) -> QueryLoss:
    """The loss of inputs (B,T), equal to `model.loss`. No operation waits for the host.

    `order` is that of the tokens, and `head` a copy of the head's weight in autocast's dtype, where there are such.
    """
    rows, weight = model.features_at(inputs, asked.rows, order), model.head_weight
    kind = rows.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else rows.dtype
    with torch.no_grad(), torch.autocast(kind, enabled=False):
        w = weight if head is None or head.dtype != dtype else head
        losses, *gradients = _row_loss(rows, weight, w.to(dtype).contiguous(), asked)
    return QueryLoss(losses, rows, weight, *gradients)


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


def _softmax_error(logits: Tensor, wanted: Tensor, share: Tensor, wide: torch.dtype) -> tuple[Tensor, Tensor]:
    """d loss / d logits in the dtype of logits (R,N), and the rows' parts of the loss (R,)."""
    target = wanted.clamp(min=0)[:, None]
    scores = F.log_softmax(logits, -1, dtype=wide)
    losses = -scores.gather(1, target)[:, 0] * share
    error = scores.exp_().scatter_add_(1, target, -torch.ones_like(scores[:, :1]))
    return error.mul_(share[:, None]).to(logits.dtype), losses


def _put_product(total: Tensor, a: Tensor, b: Tensor, first: bool) -> None:
    """total = a b if `first`, else total += a b, summed in total's dtype, which may be wider than that of a and b."""
    if a.dtype == total.dtype:
        torch.mm(a, b, out=total) if first else total.addmm_(a, b)
    elif a.is_cuda:
        how = {"out_dtype": total.dtype, "out": total}
        torch.mm(a, b, **how) if first else torch.addmm(total, a, b, **how)
    else:
        product = (a @ b).to(total.dtype)
        total.copy_(product) if first else total.add_(product)


def _row_loss(rows: Tensor, weight: Tensor, w: Tensor, asked: Asked) -> tuple[Tensor, Tensor, Tensor]:
    """Parts of the loss (R,), and its gradients in the dtypes of rows (R,D) and weight (N,D); w is weight as it is multiplied.

    Gradients are made with the loss, piece by piece: a softmax is read once and never kept.
    """
    wanted, share = asked.wanted, asked.share
    x = rows.to(w.dtype).contiguous()
    wide = torch.promote_types(rows.dtype, torch.float32)
    losses = torch.empty(x.shape[0], dtype=wide, device=x.device)
    grad_rows, grad_weight = torch.empty_like(x), torch.empty_like(weight, dtype=wide)
    size = max(1, LOGITS_AT_ONCE // weight.shape[0])
    for first in range(0, max(1, x.shape[0]), size):
        piece = slice(first, first + size)
        if _whole(x, w):
            from mnemolab.kernels.triton.row_loss import row_loss

            error, scaled = row_loss(x[piece], w, wanted[piece], share[piece], losses[piece], grad_rows[piece])
            _put_product(grad_weight, error.T, scaled, first == 0)
            continue
        error = F.linear(x[piece], w)
        if _fused(rows):
            from mnemolab.kernels.triton.softmax_error import softmax_error_

            softmax_error_(error, wanted[piece], share[piece], losses[piece])
        else:
            error, losses[piece] = _softmax_error(error, wanted[piece], share[piece], wide)
        torch.mm(error, w, out=grad_rows[piece])
        _put_product(grad_weight, error.T, x[piece], first == 0)
    return losses, grad_rows.to(rows.dtype), grad_weight.to(weight.dtype)
