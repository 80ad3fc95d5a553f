"""Softmax cross-entropy of rows of logits and its gradient, in two passes over the row and in its own place."""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["softmax_error_"]

BLOCK = 4096  # columns at once; a row of a small vocabulary is read from memory once and from registers after that


@triton.jit  # N is specialised: where 16 divides it, loads and stores are vectors
def kernel(logits_ptr, wanted_ptr, share_ptr, loss_ptr, N, BN: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    base = logits_ptr + row * N
    target = tl.load(wanted_ptr + row)
    share = tl.load(share_ptr + row)
    # before the first reduction, whose barrier keeps it ahead of the stores below
    hit = tl.load(base + tl.maximum(target, 0)).to(tl.float32)
    top = tl.full((), -float("inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    for start in range(0, N, BN):
        cols = start + tl.arange(0, BN)
        x = tl.load(base + cols, mask=cols < N, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, axis=0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher), axis=0)
        top = higher
    lse = top + tl.log(total)
    tl.store(loss_ptr + row, (lse - hit) * share)
    for start in range(0, N, BN):
        cols = start + tl.arange(0, BN)
        x = tl.load(base + cols, mask=cols < N, other=0.0).to(tl.float32)
        error = (tl.exp(x - lse) - tl.where(cols == target, 1.0, 0.0)) * share
        tl.store(base + cols, error, mask=cols < N)


def softmax_error_(logits: Tensor, wanted: Tensor, share: Tensor) -> Tensor:
    """Overwrite logits (R,N) with share (softmax(logits) - onehot(wanted)) and return the losses (R,) float32.

    wanted (R,) int64, read only where share is not 0; share (R,) float32, a row's weight in the mean. The loss of a row is
    share * -log softmax(logits)[wanted]. `logits` must be contiguous.
    """
    R, N = logits.shape
    losses = torch.empty(R, dtype=torch.float32, device=logits.device)
    if R:
        BN = min(BLOCK, triton.next_power_of_2(N))
        warps = 8 if BN >= 2048 else 4
        kernel[(R,)](logits, wanted, share, losses, N, BN=BN, num_warps=warps)  # pyright: ignore[reportCallIssue]
    return losses
