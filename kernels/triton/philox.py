"""Philox4x32-10 words in one launch: the same integers as `tasks/random.py` makes in some seventy tensor operations."""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from mnemolab.kernels.triton.launch import run

__all__ = ["philox_words"]

BLOCK = 256


@triton.jit(do_not_specialize=["B", "name", "k0", "k1"])
def philox_kernel(low_ptr, high_ptr, out_ptr, B, name, k0, k1, COUNT: tl.constexpr, N: tl.constexpr):
    """Program i makes blocks of four words; block j of example b is philox(j, name, low[b], high[b])."""
    BLOCKS: tl.constexpr = (COUNT + 3) // 4
    at = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    b = at // BLOCKS
    j = at % BLOCKS
    there = b < B
    c0 = j.to(tl.uint32)
    c1 = tl.zeros((N,), tl.uint32) + name.to(tl.uint32)
    c2 = tl.load(low_ptr + b, mask=there, other=0).to(tl.uint32)
    c3 = tl.load(high_ptr + b, mask=there, other=0).to(tl.uint32)
    key = k0.to(tl.uint32).to(tl.uint64) | (k1.to(tl.uint32).to(tl.uint64) << 32)
    c0, c1, c2, c3 = tl.philox(key, c0, c1, c2, c3, n_rounds=10)
    out = out_ptr + b * COUNT + j * 4
    tl.store(out, c0.to(tl.int64), mask=there)
    tl.store(out + 1, c1.to(tl.int64), mask=there & (j * 4 + 1 < COUNT))
    tl.store(out + 2, c2.to(tl.int64), mask=there & (j * 4 + 2 < COUNT))
    tl.store(out + 3, c3.to(tl.int64), mask=there & (j * 4 + 3 < COUNT))


def philox_words(low: Tensor, high: Tensor, name: int, key: tuple[int, int], count: int) -> Tensor:
    """(B, count) int64 of 32-bit words: low, high (B,) int64 hold 32-bit words, as do `name` and both parts of `key`."""
    B = low.shape[0]
    out = torch.empty((B, count), dtype=torch.int64, device=low.device)
    if out.numel():
        programs = triton.cdiv(B * -(-count // 4), BLOCK)
        run(
            philox_kernel, (programs,),
            low.contiguous(), high.contiguous(), out, B, _signed(name), _signed(key[0]), _signed(key[1]),
            COUNT=count, N=BLOCK, num_warps=4,
        )  # fmt: skip
    return out


def _signed(word: int) -> int:
    """The 32-bit word as an int32, so that every one of them compiles to the same kernel."""
    return word - (1 << 32) if word >> 31 else word
