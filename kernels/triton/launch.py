"""Launches with their compiled kernel kept at hand.

Triton's own call looks at every argument to find the compiled kernel: some 40 us with 60 arguments, more than most of our
kernels take on mini-model shapes. Here the caller says once what the arguments are specialised on, and a dictionary answers.
"""

from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor

__all__ = ["launch", "specialisation"]


def specialisation(*operands: Tensor | None) -> tuple:
    """All that Triton specialises a kernel on for operands of a known shape: dtype, strides and 16-byte alignment."""
    return tuple(
        None if x is None else (x.dtype, x.stride(), x.data_ptr() % 16) for x in operands
    )  # fmt: skip


def launch(
    known: dict[Hashable, Any], key: Hashable, kernel: Any, programs: int, args: tuple, constants: Callable[[], dict[str, Any]],
    warps: int, stages: int,
) -> None:  # fmt: skip
    """Run `kernel` on a grid of `programs`. `known` and `key` together must fix `constants`, the options and whatever
    Triton specialises on; `constants` are the kernel's last parameters, in its order."""
    key = (key, kernel)
    found = known.get(key)
    if found is None:
        named = constants()
        compiled = kernel[(programs,)](*args, **named, num_warps=warps, num_stages=stages)
        # the interpreter compiles nothing
        if compiled is not None and hasattr(compiled, "packed_metadata"):
            known[key] = compiled, tuple(named[name] for name in kernel.arg_names[len(args) :])
        return
    compiled, values = found
    compiled[(programs, 1, 1)](*args, *values)
