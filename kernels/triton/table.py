"""The static table of launch configurations. Nothing is tuned at run time: the first call compiles, and that is all.

Measured on one H200 with Triton 3.6 (docs/kernels_gpu.md gives the figures behind the choices).
"""

import os
from dataclasses import dataclass

import torch

__all__ = ["Config", "Precision", "choose", "interpreted", "padded"]


@dataclass(frozen=True)
class Precision:
    """How products are formed: "bf16", or Triton's precision of float32 operands. `store` holds what kernels pass on, but
    `decayed` the queries and keys times their decay, and the (C, C) products A and X: they are of the operands' own size."""

    native: str
    pair: str
    sums: str
    inverse: str
    state: str
    small: str
    gate: str
    store: torch.dtype
    decayed: torch.dtype


# bfloat16 outputs: products of the inputs themselves are exact in bf16, what was computed goes in as tf32. float16 has the
# ten bits of tf32, so decayed queries and keys lose nothing by it (bf16 there cost a third of the error budget, and bf16 in
# A and X another third, or all of it on keys that erase each other).
FAST = Precision("bf16", "tf32", "bf16", "tf32", "tf32", "tf32", "tf32", torch.bfloat16, torch.float16)
# float32 and float16 outputs: three tf32 products make a float32 one
EXACT = Precision(
    "tf32x3", "tf32x3", "tf32x3", "tf32x3", "tf32x3", "tf32x3", "tf32x3", torch.float32, torch.float32
)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """One scan. C tokens a chunk; tiles of V in the recurrence (BV) and in the gradients (GV), of K in the preparation under
    a per-channel decay (TK); per kernel its warps and pipeline depth (stages). A program of the gradients takes `run`
    chunks in a pipeline, and the tiles of V in another (value_stages). `segments` of the sequence, about as many, run side
    by side in the recurrence (`segments.py`), which they enter in tiles of CV columns."""

    C: int
    BV: int
    GV: int
    TK: int
    recurrence_warps: int
    recurrence_stages: int
    prepare_warps: int
    gradient_warps: int
    gradient_run: int
    gradient_stages: int
    value_stages: int
    precision: Precision
    segments: int
    combine_warps: int
    combine_stages: int
    CV: int = 16


def interpreted() -> bool:
    """True when Triton's interpreter runs the kernels (TRITON_INTERPRET=1 before the first import)."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0", "false")


def padded(channels: int) -> int:
    """Tiles are powers of two of at least 16, the least that a tensor-core product takes."""
    return max(16, 1 << (channels - 1).bit_length())


# Programs of the recurrence: fewer than FEW are worth segments, which are cut until there are ENOUGH; below BUSY the value axis is
# cut. A segment is gone through twice, so 128 programs gain nothing by it; counted in dependent chunks, not yet timed on a GPU.
FEW, ENOUGH, BUSY = 128, 512, 256
LONG, SHORTEST = 64, 8  # chunks of a sequence that is worth segments, and of a segment


def cut(programs: int, NT: int, BK: int, FV: int, BV: int, erase: int) -> tuple[int, int]:
    """Segments of NT chunks, and the tile of V, of which BV is the widest, for `programs` = B*H.

    A chunk takes as long in the two passes over a segment as a segment in the one that combines them, or longer, so a segment
    has half as many chunks as there are segments, or more.
    """
    segments = 1
    # with erase what becomes of the identity is carried too, in about as many tiles as K has; counted half, as one of two passes
    tiles = max(FV, BK // 2 if erase else 0) // BV
    # at 256 key channels the product that combines segments does not fit in registers
    if programs * tiles < FEW and NT >= LONG and not (erase and BK > 128):
        while programs * tiles * segments < ENOUGH and NT >= 2 * segments * max(SHORTEST, segments):
            segments *= 2
    # few programs: cut the value axis until the multiprocessors have work
    while BV > 16 and programs * (FV // BV) * segments < BUSY:
        BV //= 2
    return segments, BV


def choose(dtype: torch.dtype, programs: int, T: int, K: int, V: int, decay: int, erase: int) -> Config:
    """The configuration for outputs of `dtype`, `programs` = B*H, and decay and erase of kind 0 none, 1 scalar, 2 channel.

    No entry gives four warps a product of 64 rows or more: that would be Hopper's wgmma, in which Triton 3.4 to 3.7 has
    miscompiled products of transposed results; two warps stay on mma.sync.
    """
    BK, FV = padded(K), padded(V)
    wide = max(BK, FV)
    # the interpreter computes bfloat16 wrongly: there it is only loaded and stored
    fast = dtype == torch.bfloat16 and not interpreted()
    solved = erase > 0 or decay == 2
    # nothing to solve: longer chunks save states; else 16 tokens, where the inverse and the anchors are cheapest
    C = 32 if fast and not solved and wide <= 64 else 16
    BV = min(FV, 16 if BK > (128 if fast else 64) else 64 if C == 32 else 32)
    # gated linear attention in one warp would be miscompiled, see `launch.py`
    prepare = 2 if decay == 2 and not erase else 1
    segments, BV = cut(programs, -(-T // C), BK, FV, BV, erase)
    along = (segments, 1 if BK <= 32 else 4 if BK <= 64 else 8, 3 if BK <= 64 else 2)
    recurrence = max(C // 16, 1 if BK * BV <= 2048 else 2)
    if not fast:
        heavy = 1 if wide <= 16 else 2 if wide <= 32 else 4 if wide <= 128 else 8
        GV = min(FV, 32 if wide <= 128 else 16)
        return Config(C, BV, GV, 32, max(2, recurrence), 2, min(heavy, 4), heavy, 1, 1, 1, EXACT, *along)
    if C == 32:
        run, stages = (4, 2) if wide <= 32 else (1, 1)
        return Config(C, BV, min(FV, 64), 64, recurrence, 2, 1, 2, run, stages, 1, FAST, *along)
    if wide <= 32:
        return Config(C, BV, min(FV, 32), 64, recurrence, 2, prepare, 1, 8, 2, 1, FAST, *along)
    if wide <= 64:
        return Config(C, BV, min(FV, 32), 64, recurrence, 2, prepare, 1 if decay < 2 else 2, 1, 1, 2, FAST, *along)
    if wide <= 128:
        return Config(C, BV, min(FV, 32), 64, recurrence, 2, 2, 4, 1, 1, 3, FAST, *along)
    return Config(C, BV, min(FV, 32), 64, recurrence, 2, 4, 8, 1, 1, 2, FAST, *along)
