"""The static table of launch configurations. Nothing is tuned at run time: the first call compiles, and that is all.

Measured on one H200 with Triton 3.6 (docs/kernels_gpu.md gives the figures behind the choices).
"""

import os
from dataclasses import dataclass, replace

import torch

__all__ = ["Config", "Precision", "choose", "interpreted", "padded"]


@dataclass(frozen=True)
class Precision:
    """How products are formed, by the names of `tiles.mm`. `store` holds what kernels pass on, but
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
# Without erase nothing amplifies a rounding: the state, which is kept in float32, enters a product as bf16, and A in two terms.
# So the output has up to three independent roundings where there was one: of the state, of what is added to it, its own.
# Four warps multiply it as wgmma straight from where it was loaded, which tf32 cannot: operands would be written a second time.
LIGHT = replace(FAST, state="bf16", small="bf16a2", gate="bf16")
# With erase the state enters in two terms (one costs DeltaNet 2.1 times the error of rounding the output once), where
# four warps make that faster than tf32.
WIDE = replace(FAST, state="bf16b2")
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


# Programs of the recurrence: up to FEW are worth segments, which are cut until there are ENOUGH; below BUSY the value axis is cut.
FEW, ENOUGH, BUSY = 128, 1024, 256
LONG, SHORTEST = 1024, 8  # tokens of a sequence that is worth segments, and chunks of a segment


def cut(programs: int, T: int, C: int, BK: int, FV: int, BV: int, erase: int) -> tuple[int, int]:
    """Segments of T tokens in chunks of C, and the tile of V, of which BV is the widest, for `programs` = B*H.

    A chunk takes as long in the two passes over a segment as a segment in the one that combines them, or longer, so a segment
    has half as many chunks as there are segments, or more.
    """
    NT, segments = -(-T // C), 1
    # with erase what becomes of the identity is carried too, in about as many tiles as K has; counted half, as one of two passes
    tiles = max(FV, BK // 2 if erase else 0) // BV
    # at 256 key channels the product that combines segments does not fit in registers
    # T first: torch.compile gives 0, and no guard on the number of programs
    if T >= LONG and programs * tiles <= FEW and not (erase and BK > 128):
        while programs * tiles * segments < ENOUGH and NT >= 2 * segments * max(SHORTEST, segments):
            segments *= 2
    # few programs: cut the value axis until the multiprocessors have work
    while BV > 16 and programs * (FV // BV) * segments < BUSY:
        BV //= 2
    return segments, BV


def choose(dtype: torch.dtype, programs: int, T: int, K: int, V: int, decay: int, erase: int) -> Config:
    """The configuration for outputs of `dtype`, `programs` = B*H, and decay and erase of kind 0 none, 1 scalar, 2 channel."""
    BK, FV = padded(K), padded(V)
    wide = max(BK, FV)
    # the interpreter computes bfloat16 wrongly: there it is only loaded and stored
    fast = dtype == torch.bfloat16 and not interpreted()
    if fast and erase == 0 and decay < 2 and wide <= 128:
        return _unsolved(programs, T, BK, FV, decay)
    # tokens a chunk: with 16 the inverse and the anchors are cheapest; wide states without decay are rather written half as often
    C = 32 if fast and wide == 128 and decay == 0 else 16
    BV = min(FV, 16 if BK > (128 if fast else 64) else 64 if fast and wide == 128 else 32)
    segments, BV = cut(programs, T, C, BK, FV, BV, erase)
    along = _combination(segments, BK)
    recurrence = 1 if BK * BV <= 2048 else 2 if BK * BV <= 4096 else 4
    if not fast:
        heavy = 1 if wide <= 16 else 2 if wide <= 32 else 4 if wide <= 128 else 8
        GV = min(FV, 32 if wide <= 128 else 16)
        return Config(C, BV, GV, 32, max(2, recurrence), 2, min(heavy, 4), heavy, 1, 1, 1, EXACT, *along)
    # gated linear attention in one warp would be miscompiled, see `launch.py`
    prepare = 2 if decay == 2 and not erase else 1
    if wide <= 32:
        return Config(C, BV, min(FV, 32), 64, recurrence, 2, prepare, 1, 8, 2, 1, FAST, *along)
    if wide <= 64:
        GV = 16 if erase < 2 else 32
        return Config(C, BV, min(FV, GV), 64, recurrence, 2, prepare, 1 if decay < 2 else 2, 1, 1, 3, FAST, *along)
    if wide <= 128:
        stages = 2 if decay == 0 else 3
        prepare, GV, warps = (2, 32, 4) if decay == 2 else (2, 16, 2) if decay == 1 else (1, 32, 4)
        precision = FAST if decay == 2 else WIDE
        return Config(C, BV, min(FV, GV), 64, recurrence, stages, prepare, warps, 1, 1, 3, precision, *along)
    return Config(C, BV, min(FV, 32), 64, recurrence, 2, 4, 8, 1, 1, 2, FAST, *along)


def _unsolved(programs: int, T: int, BK: int, FV: int, decay: int) -> Config:
    """Nothing to solve: longer chunks save states. Below 32 channels states are small, and many heads hide what a chunk waits for."""
    wide = max(BK, FV)
    if wide <= 32:
        C = 16 if wide == 16 and programs >= 1024 else 32
    else:
        C = 32 if wide == 128 and decay else 64
    segments, BV = cut(programs, T, C, BK, FV, min(FV, 64), 0)
    along = _combination(segments, BK)
    if wide <= 32:
        warps, stages = (1, 2) if C == 16 else (2 if decay else 1, 3)
        return Config(C, BV, FV, 64, warps, stages, 1, C // 16, 4, 2, 1, LIGHT, *along)
    if wide <= 64:
        return Config(C, BV, FV, 64, 4, 3, 1, 4, 1, 1, 1, LIGHT, *along)
    stages = 3 if decay else 2
    return Config(C, BV, min(FV, 32), 64, 4, stages, 1, 4, 1, 1, stages, LIGHT, *along)


def _combination(segments: int, BK: int) -> tuple[int, int, int]:
    return segments, 1 if BK <= 32 else 4 if BK <= 64 else 8, 3 if BK <= 64 else 2
