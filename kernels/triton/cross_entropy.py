"""Cross-entropy at scored positions, forward and backward, without the logits: they live one tile at a time.

Scored rows are brought to the front by a stable sort, so nothing waits for their number: programs past it leave at once.
Backward forms every tile of logits twice, once for the rows' gradient and once for the weight's; each output has one writer.
Plain form: `neighbours/cross_entropy.py`.
"""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mnemolab.kernels.derivatives import once_differentiable
from mnemolab.kernels.triton.launch import run
from mnemolab.kernels.triton.table import interpreted, padded
from mnemolab.kernels.triton.tiles import mm

__all__ = ["scored_cross_entropy"]


@triton.jit
def _logits(h_ptr, w_ptr, b_ptr, row, inside, c, N, D: tl.constexpr, BD: tl.constexpr, P: tl.constexpr):
    """Tile (R, BN) of logits of the rows `row` and the vocabulary entries `c`; -inf beyond N."""
    z = tl.zeros((row.shape[0], c.shape[0]), tl.float32)
    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        h = tl.load(h_ptr + row[:, None] * D + d[None, :], mask=inside[:, None] & (d < D)[None, :], other=0.0)
        w = tl.load(w_ptr + c[:, None] * D + d[None, :], mask=(c < N)[:, None] & (d < D)[None, :], other=0.0)
        z += mm(h, tl.trans(w), P)
    if b_ptr is not None:
        z += tl.load(b_ptr + c, mask=c < N, other=0.0).to(tl.float32)[None, :]
    return tl.where((c < N)[None, :], z, float("-inf"))


@triton.jit(do_not_specialize=["N"])
def cross_entropy_forward_kernel(
    h_ptr, w_ptr, b_ptr, target_ptr, order_ptr, count_ptr, lse_ptr, loss_ptr, N,
    D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * R + tl.arange(0, R)
    count = tl.load(count_ptr)
    inside = i < count
    loss = tl.zeros((R,), tl.float32)
    if tl.program_id(0) * R < count:
        row = tl.load(order_ptr + i, mask=inside, other=0)
        wanted = tl.load(target_ptr + row, mask=inside, other=0)
        top = tl.full((R,), float("-inf"), tl.float32)
        total = tl.zeros((R,), tl.float32)
        hit = tl.zeros((R,), tl.float32)
        for start in range(0, N, BN):
            c = start + tl.arange(0, BN)
            z = _logits(h_ptr, w_ptr, b_ptr, row, inside, c, N, D, BD, P)
            higher = tl.maximum(top, tl.max(z, axis=1))
            total = total * tl.exp(top - higher) + tl.sum(tl.exp(z - higher[:, None]), axis=1)
            top = higher
            hit += tl.sum(tl.where(c[None, :] == wanted[:, None], z, 0.0), axis=1)
        lse = top + tl.log(total)
        tl.store(lse_ptr + i, lse, mask=inside)
        loss = tl.where(inside, lse - hit, 0.0)
    tl.store(loss_ptr + tl.program_id(0), tl.sum(loss, axis=0))


@triton.jit
def _error(
    h_ptr, w_ptr, b_ptr, target_ptr, order_ptr, lse_ptr, i, count, c, N, D: tl.constexpr, BD: tl.constexpr,
    P: tl.constexpr,
):  # fmt: skip
    """softmax - onehot of the rows i in order, (R, BN); 0 beyond the count and N."""
    inside = i < count
    row = tl.load(order_ptr + i, mask=inside, other=0)
    wanted = tl.load(target_ptr + row, mask=inside, other=0)
    lse = tl.load(lse_ptr + i, mask=inside, other=0.0)
    z = _logits(h_ptr, w_ptr, b_ptr, row, inside, c, N, D, BD, P)
    error = tl.exp(z - lse[:, None]) - tl.where(c[None, :] == wanted[:, None], 1.0, 0.0)
    return tl.where(inside[:, None] & (c < N)[None, :], error, 0.0), row


@triton.jit(do_not_specialize=["N"])
def rows_kernel(
    h_ptr, w_ptr, b_ptr, target_ptr, order_ptr, count_ptr, lse_ptr, share_ptr, dh_ptr, N,
    D: tl.constexpr, BD: tl.constexpr, OD: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """dh of R rows in order and OD channels; rows past the count are not scored and get 0."""
    i = tl.program_id(0) * R + tl.arange(0, R)
    o = tl.program_id(1) * OD + tl.arange(0, OD)
    count = tl.load(count_ptr)
    dh = tl.zeros((R, OD), tl.float32)
    row = tl.load(order_ptr + i)
    if tl.program_id(0) * R < count:
        for start in range(0, N, BN):
            c = start + tl.arange(0, BN)
            error, _ = _error(h_ptr, w_ptr, b_ptr, target_ptr, order_ptr, lse_ptr, i, count, c, N, D, BD, P)
            w = tl.load(w_ptr + c[:, None] * D + o[None, :], mask=(c < N)[:, None] & (o < D)[None, :], other=0.0)
            dh += mm(error, w, P)
        dh *= tl.load(share_ptr)
    tl.store(dh_ptr + row[:, None] * D + o[None, :], dh, mask=(o < D)[None, :])


@triton.jit(do_not_specialize=["N"])
def weight_kernel(
    h_ptr, w_ptr, b_ptr, target_ptr, order_ptr, count_ptr, lse_ptr, share_ptr, dw_ptr, db_ptr, N,
    D: tl.constexpr, BD: tl.constexpr, OD: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """dW of BN vocabulary entries and OD channels, over all scored rows; the first tile of channels writes dbias."""
    c = tl.program_id(0) * BN + tl.arange(0, BN)
    o = tl.program_id(1) * OD + tl.arange(0, OD)
    count = tl.load(count_ptr)
    dw = tl.zeros((BN, OD), tl.float32)
    db = tl.zeros((BN,), tl.float32)
    for start in range(0, count, R):
        i = start + tl.arange(0, R)
        error, row = _error(h_ptr, w_ptr, b_ptr, target_ptr, order_ptr, lse_ptr, i, count, c, N, D, BD, P)
        h = tl.load(h_ptr + row[:, None] * D + o[None, :], mask=(i < count)[:, None] & (o < D)[None, :], other=0.0)
        dw += mm(tl.trans(error), h, P)
        db += tl.sum(error, axis=0)
    share = tl.load(share_ptr)
    tl.store(dw_ptr + c[:, None] * D + o[None, :], dw * share, mask=(c < N)[:, None] & (o < D)[None, :])
    if db_ptr is not None:
        tl.store(db_ptr + c, db * share, mask=c < tl.where(tl.program_id(1) == 0, N, 0))


def _tiles(D: int, dtype: torch.dtype) -> dict[str, Any]:
    fast = dtype == torch.bfloat16 and not interpreted()
    return {"D": D, "BD": min(padded(D), 64), "R": 32, "BN": 64, "P": "bf16" if fast else "tf32x3"}


class _ScoredCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, ignored: int) -> Tensor:
        *shape, D = hidden.shape
        hidden, weight = hidden.contiguous().view(-1, D), weight.contiguous()
        targets, bias = targets.contiguous().view(-1), None if bias is None else bias.contiguous()
        tiles = _tiles(D, hidden.dtype)
        M, N, R = hidden.shape[0], weight.shape[0], tiles["R"]
        blocks = triton.cdiv(M, R)
        scored = targets != ignored
        # whole blocks: rows past the last are row 0, and never inside the count
        order = torch.argsort(scored.logical_not().to(torch.uint8), stable=True)
        count = scored.sum()
        lse = torch.empty(M, dtype=torch.float32, device=hidden.device)
        losses = torch.empty(blocks, dtype=torch.float32, device=hidden.device)
        run(
            cross_entropy_forward_kernel, (blocks,),
            hidden, weight, bias, targets, order, count, lse, losses, N, **tiles, num_warps=4,
        )  # fmt: skip
        share = 1.0 / count.clamp(min=1).float()
        ctx.save_for_backward(hidden, weight, bias, targets, order, count, lse, share)
        ctx.shape = shape
        return losses.sum() * share

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, order, count, lse, share = ctx.saved_tensors
        tiles = _tiles(hidden.shape[1], hidden.dtype)
        M, D = hidden.shape
        N, R = weight.shape[0], tiles["R"]
        OD = min(padded(D), 128)
        share = share * gradient.float()
        blocks = triton.cdiv(M, R)
        padding = blocks * R - M
        dh = torch.empty(M + (1 if padding else 0), D, dtype=hidden.dtype, device=hidden.device)
        # rows that fill the last block go to a row of their own, which is cut off
        full = torch.cat([order, order.new_full((padding,), M)]) if padding else order
        common = (hidden, weight, bias, targets, full, count, lse, share)
        run(rows_kernel, (blocks, triton.cdiv(D, OD)), *common, dh, N, OD=OD, **tiles, num_warps=4)
        dweight = torch.empty_like(weight)
        dbias = None if bias is None else torch.empty_like(bias)
        # a product of 64 rows by four warps would be wgmma, see `table.choose`
        tiles["BN"] = 32
        run(
            weight_kernel, (triton.cdiv(N, tiles["BN"]), triton.cdiv(D, OD)),
            *common, dweight, dbias, N, OD=OD, **tiles, num_warps=4,
        )  # fmt: skip
        return dh[:M].view(*ctx.shape, D), dweight, None, dbias, None


def scored_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, ignored: int) -> Tensor:
    """As the plain form; hidden (B,T,D) is not empty. A scalar in float32."""
    return _ScoredCrossEntropy.apply(hidden, weight, targets, bias, ignored)  # type: ignore[return-value]
