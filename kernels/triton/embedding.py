"""Embedding lookup, and the gradient of its table without atomics: the same bits each time.

Forward gathers rows. Backward sorts the positions by token once, so that the rows of one token are a run, and sums runs
by levels. A program sums the runs inside its chunk of the order. A run that lies in one chunk is finished and goes to the
table; of one that crosses a chunk's edge the chunk keeps its part, under the run's token, and these parts, at most two a chunk and
still in order, are the next level's rows. A token that fills half of the positions is no special case.
Plain form: `neighbours/embedding.py`.
"""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mnemolab.kernels.derivatives import once_differentiable
from mnemolab.kernels.triton.launch import run
from mnemolab.kernels.triton.norms import rows_of
from mnemolab.kernels.triton.table import padded

__all__ = ["embedding"]

NO_TOKEN = -1  # the key of what is not summed


@dataclass(frozen=True)
class Level:
    """A program takes `tiles` tiles of `rows` rows and `columns` channels. Its parts are two rows of the next level."""

    rows: int
    tiles: int
    columns: int
    warps: int


# In one warp a row of 128 float32 lies across the threads, and the scan along the rows stays in each one's registers. A
# tile's rows are fetched at once, and a chunk of 64 leaves the next level 32 times fewer.
FIRST = Level(rows=16, tiles=4, columns=128, warps=1)
# few programs, of which each should be done soon
LATER = Level(rows=128, tiles=1, columns=32, warps=4)


@triton.jit(do_not_specialize=["M", "N"])
def embedding_gather_kernel(
    token_ptr, w_ptr, y_ptr, key_ptr, M, N, D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr, NONE: tl.constexpr
):
    """R rows of y, and their tokens in the narrow dtype of the keys; an unknown token reads nothing and gives NaN."""
    d = tl.arange(0, BD)
    i = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    token = tl.load(token_ptr + i, mask=i < M, other=0).to(tl.int64)
    known = (token >= 0) & (token < N)
    tl.device_assert(known, "token outside the vocabulary")
    w = tl.load(
        w_ptr + token[:, None] * D + d[None, :], mask=known[:, None] & (d < D)[None, :], other=float("nan")
    )  # fmt: skip
    tl.store(y_ptr + i[:, None] * D + d[None, :], w, mask=(i < M)[:, None] & (d < D)[None, :])
    if key_ptr is not None:
        tl.store(key_ptr + i, tl.where(known, token, NONE), mask=i < M)


@triton.jit
def _join(key1, sum1, key2, sum2):
    """Sum of the last run of a stretch, from those of its two parts; a select, so that NaN stays with its token."""
    return key2, sum2 + tl.where(key1 == key2, sum1, 0.0)


@triton.jit(do_not_specialize=["M"])
def embedding_runs_kernel(
    key_ptr, order_ptr, x_ptr, dw_ptr, part_key_ptr, part_ptr, M,
    D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr, TILES: tl.constexpr, NONE: tl.constexpr,
):  # fmt: skip
    """Sums the runs of equal keys in one chunk, TILES tiles of R rows. Row i of a level is x[order[i]], or x[i] without order.

    Slot 2c of the parts is of the run that comes into chunk c from before it, slot 2c + 1 of one that begins in c and goes on.
    """
    chunk = tl.program_id(0)
    first, last = chunk * R * TILES, (chunk + 1) * R * TILES - 1
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    across = (d < D)[None, :]
    # the keys at the chunk's edges, inside and out: which run comes in, which goes on
    before = tl.load(key_ptr + first - 1, mask=first > 0, other=NONE).to(tl.int32)
    start = tl.load(key_ptr + first).to(tl.int32)
    end = tl.load(key_ptr + last, mask=last < M, other=NONE).to(tl.int32)
    after = tl.load(key_ptr + last + 1, mask=last + 1 < M, other=NONE).to(tl.int32)
    head = tl.where(start == before, start, NONE)
    tail = tl.where(end == after, end, NONE)
    slot = 2 * chunk.to(tl.int64) * D + d
    if part_ptr is not None:
        one = tl.program_id(1) == 0
        tl.store(part_key_ptr + 2 * chunk, head, mask=one)
        tl.store(part_key_ptr + 2 * chunk + 1, tail, mask=one)
        # a run from edge to edge is told in the first slot; the second keeps its key, so that the run's parts stay neighbours
        width = tl.where((head == tail) & (head != NONE), D, 0)
        tl.store(part_ptr + slot + D, tl.zeros((BD,), tl.float32), mask=d < width)
    carried = tl.zeros((BD,), tl.float32)
    carried_key = tl.full((), NONE, tl.int32)
    for tile in range(TILES):
        r = tl.arange(0, R)
        i = first + tile * R + r
        key = tl.load(key_ptr + i, mask=i < M, other=NONE).to(tl.int32)
        following = tl.load(key_ptr + i + 1, mask=i + 1 < M, other=NONE).to(tl.int32)
        row = i.to(tl.int64)
        if order_ptr is not None:
            row = tl.load(order_ptr + i, mask=i < M, other=0).to(tl.int64)
        x = tl.load(x_ptr + row[:, None] * D + d[None, :], mask=(key != NONE)[:, None] & across, other=0.0)
        x = x.to(tl.float32)
        if TILES > 1:
            goes_on = (r == 0) & (key == carried_key)
            x += tl.where(goes_on[:, None], carried[None, :], 0.0)
        keys = tl.zeros((R, BD), tl.int32) + key[:, None]
        _, total = tl.associative_scan((keys, x), 0, _join)
        if TILES > 1:
            carried = tl.sum(tl.where((r == R - 1)[:, None], total, 0.0), axis=0)
            final = first + (tile + 1) * R - 1
            carried_key = tl.load(key_ptr + final, mask=final < M, other=NONE).to(tl.int32)
        # the row that ends a run holds its sum
        ends = (key != following) & (key != NONE)
        into = dw_ptr + key.to(tl.int64)[:, None] * D + d[None, :]
        tl.store(into, total, mask=(ends & (key != head))[:, None] & across)
        if part_ptr is not None:
            comes = (key == head) & (ends | (i == last)) & (key != NONE)
            goes = (key == tail) & (i == last) & (key != head) & (key != NONE)
            at = part_ptr + slot[None, :] + tl.where(goes, D, 0)[:, None]
            tl.store(at, total, mask=(comes | goes)[:, None] & across)


def key_dtype(N: int) -> torch.dtype:
    """The narrowest type that holds N tokens and NO_TOKEN: a radix sort passes over its keys once a byte."""
    return next(dtype for dtype in (torch.int8, torch.int16, torch.int32) if N - 1 <= torch.iinfo(dtype).max)


def gather(tokens: Tensor, weight: Tensor, keys: Tensor | None) -> Tensor:
    tokens, weight = tokens.contiguous(), weight.contiguous()
    (N, D), M = weight.shape, tokens.numel()
    y = torch.empty(*tokens.shape, D, dtype=weight.dtype, device=weight.device)
    BD, R = rows_of(D)
    run(
        embedding_gather_kernel, (triton.cdiv(M, R),),
        tokens, weight, y, keys, M, N, D=D, BD=BD, R=R, NONE=NO_TOKEN, num_warps=4,
    )  # fmt: skip
    return y


def sum_rows(keys: Tensor, dy: Tensor, N: int, dtype: torch.dtype, order: Tensor | None = None) -> Tensor:
    """dW (N,D): row n is the sum of the rows of dy (M,D) whose key is n, in float32; 0 where there are none. With `order` (M,)
    the keys are sorted, and these rows are theirs."""
    D = dy.shape[1]
    dw = torch.zeros(N, D, dtype=dtype, device=dy.device)
    if order is None:
        keys, order = torch.sort(keys, stable=True)
    rows, level = dy, FIRST
    while True:
        M, BD = keys.numel(), min(padded(D), level.columns)
        chunks = triton.cdiv(M, level.rows * level.tiles)
        parts = part_keys = None
        if chunks > 1:
            parts = torch.empty(2 * chunks, D, dtype=torch.float32, device=dy.device)
            part_keys = torch.empty(2 * chunks, dtype=torch.int32, device=dy.device)
        run(
            embedding_runs_kernel, (chunks, triton.cdiv(D, BD)),
            keys, order, rows, dw, part_keys, parts, M,
            D=D, BD=BD, R=level.rows, TILES=level.tiles, NONE=NO_TOKEN, num_warps=level.warps,
        )  # fmt: skip
        if parts is None or part_keys is None:
            return dw
        keys, order, rows, level = part_keys, None, parts, LATER


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor, keys: Tensor | None, order: Tensor | None) -> Tensor:
        ctx.size, ctx.dtype = weight.shape[0], weight.dtype
        unsorted = None
        if keys is None:
            keys = unsorted = torch.empty(tokens.numel(), dtype=key_dtype(ctx.size), device=tokens.device)
        y = gather(tokens, weight, unsorted)
        ctx.save_for_backward(keys, order)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        keys, order = ctx.saved_tensors
        rows = dy.reshape(-1, dy.shape[-1]).contiguous()
        return None, sum_rows(keys, rows, ctx.size, ctx.dtype, order), None, None


def embedding(tokens: Tensor, weight: Tensor, keys: Tensor | None = None, order: Tensor | None = None) -> Tensor:
    """As the plain form; neither is empty. `keys` and `order` (M,): both or none."""
    if torch.is_grad_enabled() and weight.requires_grad:
        return _Embedding.apply(tokens, weight, keys, order)  # type: ignore[return-value]
    return gather(tokens, weight, None)
