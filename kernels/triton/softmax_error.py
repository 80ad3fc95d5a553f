"""Softmax cross-entropy of rows of logits and its gradient, in two passes over the row and in its own place."""

import triton
import triton.language as tl
from torch import Tensor

from mnemolab.kernels.triton.launch import run

__all__ = ["softmax_error_"]

BLOCK = 8192  # columns at once; a row of a vocabulary up to this is read once and held in registers


@triton.jit  # N is specialised: where 16 divides it, loads and stores are vectors
def softmax_error_kernel(logits_ptr, wanted_ptr, share_ptr, loss_ptr, N, BN: tl.constexpr, WHOLE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    base = logits_ptr + row * N
    target = tl.load(wanted_ptr + row)
    share = tl.load(share_ptr + row)
    # before the first reduction, whose barrier keeps it ahead of the stores below
    hit = tl.load(base + tl.maximum(target, 0)).to(tl.float32)
    if WHOLE:
        cols = tl.arange(0, BN)
        x = tl.load(base + cols, mask=cols < N, other=-float("inf")).to(tl.float32)
        top = tl.max(x, axis=0)
        p = tl.exp(x - top)
        total = tl.sum(p, axis=0)
        tl.store(loss_ptr + row, (top + tl.log(total) - hit) * share)
        # one division a row: as many as there are columns would take longer than the memory
        error = p * (share / total) - tl.where(cols == target, share, 0.0)
        tl.store(base + cols, error, mask=cols < N)
    else:
        top = tl.full((), -float("inf"), tl.float32)
        total = tl.zeros((), tl.float32)
        for start in range(0, N, BN):
            c = start + tl.arange(0, BN)
            z = tl.load(base + c, mask=c < N, other=-float("inf")).to(tl.float32)
            higher = tl.maximum(top, tl.max(z, axis=0))
            total = total * tl.exp(top - higher) + tl.sum(tl.exp(z - higher), axis=0)
            top = higher
        lse = top + tl.log(total)
        tl.store(loss_ptr + row, (lse - hit) * share)
        for start in range(0, N, BN):
            c = start + tl.arange(0, BN)
            z = tl.load(base + c, mask=c < N, other=0.0).to(tl.float32)
            e = (tl.exp(z - lse) - tl.where(c == target, 1.0, 0.0)) * share
            tl.store(base + c, e, mask=c < N)


def softmax_error_(logits: Tensor, wanted: Tensor, share: Tensor, losses: Tensor) -> None:
    """Overwrite logits (R,N) with share (softmax(logits) - onehot(wanted)) and losses (R,) with the rows' losses.

    wanted (R,) int64, read only where share is not 0; share (R,) float32, a row's weight in the mean; losses float32. The
    loss of a row is share * -log softmax(logits)[wanted]. `logits` and `losses` must be contiguous.
    """
    R, N = logits.shape
    if R:
        BN = min(BLOCK, triton.next_power_of_2(N))
        options = {"BN": BN, "WHOLE": N <= BN, "num_warps": 8 if BN >= 2048 else 4}
        run(softmax_error_kernel, (R,), logits, wanted, share, losses, N, **options)
