"""The static table of launch configurations. Nothing is tuned at run time: the first call compiles, and that is all.

Measured on one H200 with Triton 3.6 (docs/kernels_gpu.md gives the figures behind the choices).
"""

import os
from dataclasses import dataclass

import torch

__all__ = ["Config", "Precision", "choose", "interpreted", "padded"]


@dataclass(frozen=True)
class Precision:
    """How products are formed: "bf16", or Triton's precision of float32 operands. `store` holds what kernels pass on."""

    native: str
    pair: str
    sums: str
    inverse: str
    state: str
    small: str
    gate: str
    store: torch.dtype


# bfloat16 outputs: products of the inputs themselves are exact in bf16, what was computed goes in as tf32
FAST = Precision("bf16", "tf32", "bf16", "tf32x3", "tf32", "tf32", "tf32", torch.bfloat16)
# float32 and float16 outputs: three tf32 products make a float32 one
EXACT = Precision("tf32x3", "tf32x3", "tf32x3", "tf32x3", "tf32x3", "tf32x3", "tf32x3", torch.float32)


@dataclass(frozen=True)
class Config:
    """One scan: chunk C, value tiles of the recurrence (BV) and of the gradients (GV), warps and stages per kernel."""

    C: int
    BV: int
    GV: int
    prepare_warps: int
    recurrence_warps: int
    gradient_warps: int
    recurrence_stages: int
    chunk_stages: int
    value_stages: int
    run: int
    registers: int | None
    precision: Precision


def interpreted() -> bool:
    """True when Triton's interpreter runs the kernels (TRITON_INTERPRET=1 before the first import)."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0", "false")


def padded(channels: int) -> int:
    """Tiles are powers of two of at least 16, the least that a tensor-core product takes."""
    return max(16, 1 << (channels - 1).bit_length())


def choose(dtype: torch.dtype, programs: int, K: int, V: int, decay: int, erase: int, chunk_size: int | None) -> Config:
    """The configuration for outputs of `dtype`, `programs` = B*H, and decay and erase of kind 0 none, 1 scalar, 2 channel."""
    precision = FAST if dtype == torch.bfloat16 else EXACT
    BK, FV = padded(K), padded(V)
    wide = max(BK, FV)
    C = min(max(chunk_size or 16, 16), 64)
    # few programs: cut the value axis until the 132 multiprocessors have work
    BV = min(FV, 64 if BK <= 64 else 32)
    while BV > 16 and programs * (FV // BV) < 264:
        BV //= 2
    GV = min(FV, 64 if wide <= 64 else 32)
    heavy = 1 if wide <= 32 else 2 if wide <= 64 else 4 if wide <= 128 else 8
    tile = BK * BV
    recurrence = 1 if tile <= 1024 else 2 if tile <= 2048 else 4 if tile <= 8192 else 8
    return Config(C, BV, GV, heavy, recurrence, heavy, 2, 1, 1, 1, None, precision)
