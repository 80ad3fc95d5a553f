"""Launches with their compiled kernel kept at hand.

Triton's own call looks at every argument to find the compiled kernel: some 40 us with 60 arguments, more than most of our
kernels take on mini-model shapes. Here the caller says once what the arguments are specialised on, and a dictionary answers.
"""

import re
from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor

from mnemolab.kernels.triton.table import interpreted

__all__ = ["launch", "miscompiled", "specialisation"]


def specialisation(*operands: Tensor | None) -> tuple:
    """All that Triton specialises a kernel on for operands of a known shape: dtype, strides and 16-byte alignment."""
    return tuple(
        None if x is None else (x.dtype, x.stride(), x.data_ptr() % 16) for x in operands
    )  # fmt: skip


# Triton 3.6 (its LLVM) packs two 32-bit shifts into one 64-bit word and forgets to cut the lower one: the thread number
# times 2^28 as a 64-bit product, or-ed below a column number, of which the upper word is then taken. From thread 16 on the
# column is off by one. Seen on an H200 as a wrong diagonal of A, and found in the PTX by executing it.
_PACKED = re.compile(r"mul\.wide\.u32\s+%rd\d+, %r\d+, (\d+);")
_UPPER = re.compile(r"mov\.b64\s+\{_, %r\d+\}")


def miscompiled(ptx: str) -> bool:
    """Does the code bear the mark of the fault above?"""
    return any(int(factor) >= 1 << 24 for factor in _PACKED.findall(ptx)) and _UPPER.search(ptx) is not None


def compile_sound(kernel: Any, programs: int, args: tuple, named: dict[str, Any], warps: int, stages: int) -> Any:
    """The compiled kernel with `warps` warps, or with the nearest other number whose code is sound."""
    for count in (warps, 2 * warps, 4 * warps, max(1, warps // 2)):
        compiled = kernel.warmup(*args, grid=(programs,), **named, num_warps=count, num_stages=stages)
        if not miscompiled(compiled.asm["ptx"]):
            return compiled
    raise RuntimeError(f"this Triton miscompiles {kernel.__name__} at every number of warps; use backend='chunked'")


def launch(
    known: dict[Hashable, Any], key: Hashable, kernel: Any, programs: int, args: tuple,
    constants: Callable[[], dict[str, Any]], warps: int, stages: int,
) -> None:  # fmt: skip
    """Run `kernel` on a grid of `programs`. `known` and `key` together must fix `constants`, the options and whatever
    Triton specialises on; `constants` are the kernel's last parameters, in its order."""
    key = (key, kernel)
    found = known.get(key)
    if found is None:
        named = constants()
        if interpreted():
            kernel[(programs,)](*args, **named)
            return
        compiled = compile_sound(kernel, programs, args, named, warps, stages)
        found = known[key] = compiled, tuple(named[name] for name in kernel.arg_names[len(args) :])
    compiled, values = found
    compiled[(programs, 1, 1)](*args, *values)
