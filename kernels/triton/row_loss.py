"""Cross-entropy of many rows over a large vocabulary: logits, softmax and the rows' gradient in one pass over the vocabulary.

A logit z leaves only as exp(z - c), the row's shift c being the logit of the row's own target: then the sum s is at least 1
and nothing has to be known in advance. Where some logit lies FAR above c, the program goes through the vocabulary once more
with its true maximum. With a row's weight g in the mean:

    loss = g (c + log s - z_target),   d z = g (exp(z - c) / s - onehot),   d rows = d z W,   d W = d z^T rows

The target's own entry, p - 1 or minus the others' share, is kept out of the products, in which bfloat16 would lose it for a
learned row, and enters in float32.
"""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from mnemolab.kernels.triton.launch import run
from mnemolab.kernels.triton.table import padded

__all__ = ["MAX_WIDTH", "row_loss"]

MAX_WIDTH = 128  # wider rows and their gradient would not fit in registers together
# rows, words, warps: 218 us for 16,384 rows and 8,192 words of 128 channels; (128, 64, 8) takes 237, (128, 128, 8) spills and takes
# 277 (one H200, 2026-11-30)
TILES = (64, 64, 4)
FAR = tl.constexpr(60.0)  # exp(88) is the last that float32 and bfloat16 hold


@triton.jit(do_not_specialize=["R"])
def row_loss_kernel(
    x_ptr, w_ptr, wanted_ptr, share_ptr, p_ptr, dx_ptr, scaled_ptr, loss_ptr, R, N, STRIDE,
    D: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, WHOLE: tl.constexpr, RAGGED: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """p (R,N), whose rows are STRIDE apart, gets exp(z - c), at the target minus the sum of the others; scaled gets x g / s, as
    d z = p g / s. RAGGED: N is no multiple of BN."""
    d = tl.arange(0, BD)
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    inside = (r < R)[:, None] & (d < D)[None, :]
    x = tl.load(x_ptr + r[:, None] * D + d[None, :], mask=inside, other=0.0)
    share = tl.load(share_ptr + r, mask=r < R, other=0.0)
    wanted = tl.load(wanted_ptr + r, mask=r < R, other=0)
    used = share > 0.0
    wanted = tl.where(used, wanted, 0).to(tl.int32)
    at = w_ptr + wanted[:, None].to(tl.int64) * D + d[None, :]
    hit = tl.sum(x.to(tl.float32) * tl.load(at, mask=inside, other=0.0).to(tl.float32), axis=1)
    shift = hit
    others = tl.zeros((BR,), tl.float32)
    dx = tl.zeros((BR, BD), tl.float32)
    again = tl.full((), 1, tl.int32)
    while again > 0:
        top = tl.full((BR,), -float("inf"), tl.float32)
        others = tl.zeros((BR,), tl.float32)
        dx = tl.zeros((BR, BD), tl.float32)
        for start in tl.range(0, N, BN, num_stages=STAGES):
            c = start + tl.arange(0, BN)
            # beyond the last word its row is read again, and counts for nothing
            n = tl.minimum(c, N - 1) if RAGGED else c
            if WHOLE:
                w = tl.load(w_ptr + n[:, None] * D + d[None, :])
            else:
                w = tl.load(w_ptr + n[:, None] * D + d[None, :], mask=(d < D)[None, :], other=0.0)
            z = tl.dot(x, tl.trans(w), input_precision="ieee")
            if RAGGED:
                z = tl.where((c < N)[None, :], z, -float("inf"))
            top = tl.maximum(top, tl.max(z, axis=1))
            p = tl.where((c[None, :] == wanted[:, None]) | (share[:, None] == 0.0), 0.0, tl.exp(z - shift[:, None]))
            others += tl.sum(p, axis=1)
            p = p.to(w.dtype)
            tl.store(p_ptr + r[:, None] * STRIDE + c[None, :], p, mask=(r < R)[:, None])
            dx = tl.dot(p, w, dx, input_precision="ieee")
        higher = used & (top - shift > FAR)
        shift = tl.where(higher, top, shift)
        again = tl.max(higher.to(tl.int32), axis=0)
    total = others + tl.exp(hit - shift)
    scale = tl.where(used, share / total, 0.0)
    rest = tl.where(used, -others, 0.0)
    # read again: kept through the loop it would take a quarter of the registers
    target = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    dx = dx * scale[:, None] + (rest * scale)[:, None] * target
    tl.store(dx_ptr + r[:, None] * D + d[None, :], tl.where(used[:, None], dx, 0.0), mask=inside)
    x = tl.load(x_ptr + r[:, None] * D + d[None, :], mask=inside, other=0.0)  # again, as well
    tl.store(scaled_ptr + r[:, None] * D + d[None, :], x.to(tl.float32) * scale[:, None], mask=inside)
    tl.store(loss_ptr + r, tl.where(used, (shift + tl.log(total) - hit) * share, 0.0), mask=r < R)
    tl.debug_barrier()  # the zero that another thread wrote there comes first
    tl.store(p_ptr + r * STRIDE + wanted, rest, mask=(r < R) & used)


def row_loss(
    x: Tensor, weight: Tensor, wanted: Tensor, share: Tensor, losses: Tensor, dx: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """x (R,D), weight (N,D) of one dtype, wanted (R,) int64, share (R,) float32: a row's weight in the mean, 0 where it is
    not scored. Writes losses (R,) float32 and d rows, dx (R,D); returns p (R,N) and scaled (R,D) with d W = p^T scaled.

    All but p are contiguous; D is at most MAX_WIDTH and R N below 2^31.
    """
    (R, D), N = x.shape, weight.shape[0]
    BD = padded(D)
    BR, BN, warps = TILES if x.dtype == torch.bfloat16 else (32, 32, 4)
    # rows of whole tiles: where N is odd its own would be written two bytes at a time
    stride = -(-N // BN) * BN
    p, scaled = torch.empty((R, stride), dtype=x.dtype, device=x.device), torch.empty_like(x)
    run(
        row_loss_kernel, (triton.cdiv(R, BR),),
        x, weight, wanted, share, p, dx, scaled, losses, R, N, stride,
        D=D, BD=BD, BR=BR, BN=BN, WHOLE=BD == D, RAGGED=N % BN > 0, STAGES=3, num_warps=warps,
    )  # fmt: skip
    return p[:, :N], scaled
