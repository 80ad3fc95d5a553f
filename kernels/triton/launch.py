"""Launches with their compiled kernel kept at hand.

Triton's own call looks at every argument to find the compiled kernel, asks the driver about every pointer and calls hooks
that are not there: some 60 us with 60 arguments, more than most of our kernels take on mini-model shapes. Here the caller
says once what the arguments are specialised on, a dictionary answers, and pointers are plain addresses.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mnemolab.kernels.triton.ahead import Plan, background, begin
from mnemolab.kernels.triton.table import interpreted

__all__ = ["Ready", "addresses", "launch", "miscompiled", "run", "specialisation"]


def run(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """`kernel[grid](*args, **options)`, which waits for the kernel's compilation if that is under way; in a rehearsal it is
    begun, and nothing runs."""
    jobs = background()
    if jobs.busy:
        if jobs.rehearses():
            begin([(kernel, args, options, partial(_compile, kernel, grid, options))], torch.cuda.current_device())
            return
        jobs.wait(kernel)
    kernel.run(*args, grid=grid, warmup=False, **options)


def _compile(kernel: Any, grid: tuple[int, ...], options: dict[str, Any], args: tuple) -> Any:
    return kernel.warmup(*args, grid=grid, **options)


def specialisation(*operands: Tensor | None) -> tuple:
    """All that Triton specialises a kernel on for operands of a known shape: dtype, strides and 16-byte alignment."""
    return tuple([None if x is None else (x.dtype, x.stride(), x.data_ptr() % 16) for x in operands])


def addresses(*operands: Tensor | None) -> list[int | None]:
    """What a compiled kernel needs of its operands."""
    return [None if x is None else x.data_ptr() for x in operands]


class Ready:
    """A compiled kernel with the constants that its launches end with; tensors may be given as their addresses."""

    __slots__ = ("_compiled", "_constants", "_device", "_function", "_hooks", "_packed", "_run", "_stream")

    def __init__(self, compiled: Any, constants: tuple):
        from triton import knobs
        from triton.runtime.driver import driver

        self._compiled, self._constants = compiled, constants
        self._run, self._function, self._packed = compiled.run, compiled.function, compiled.packed_metadata
        self._device, self._stream = driver.active.get_current_device(), driver.active.get_current_stream
        self._hooks = knobs.runtime

    def __call__(self, programs: int, args: tuple) -> None:
        enter = self._hooks.launch_enter_hook
        if enter is not None and enter.calls:  # a profiler of Triton's own listens
            self._compiled[(programs, 1, 1)](*args, *self._constants)
            return
        stream = self._stream(self._device)
        self._run(programs, 1, 1, stream, self._function, self._packed, None, None, None, *args, *self._constants)


# Triton 3.6 (its LLVM) packs two 32-bit shifts into one 64-bit word and forgets to cut the lower one: the thread number
# times 2^28 as a 64-bit product, or-ed below a column number, of which the upper word is then taken. From thread 16 on the
# column is off by one. Seen on an H200 as a wrong diagonal of A, and found in the PTX by executing it.
_PACKED = re.compile(r"mul\.wide\.u32\s+%rd\d+, %r\d+, (\d+);")
_UPPER = re.compile(r"mov\.b64\s+\{_, %r\d+\}")


def miscompiled(ptx: str) -> bool:
    """Does the code bear the mark of the fault above?"""
    return any(int(factor) >= 1 << 24 for factor in _PACKED.findall(ptx)) and _UPPER.search(ptx) is not None


def compile_sound(kernel: Any, programs: int, named: dict[str, Any], warps: int, stages: int, args: tuple) -> Any:
    """The compiled kernel with `warps` warps, or with the nearest other number whose code is sound."""
    for count in (warps, 2 * warps, 4 * warps, max(1, warps // 2)):
        compiled = kernel.warmup(*args, grid=(programs,), **named, num_warps=count, num_stages=stages)
        if not miscompiled(compiled.asm["ptx"]):
            return compiled
    raise RuntimeError(f"this Triton miscompiles {kernel.__name__} at every number of warps; use backend='chunked'")


def launch(
    made: dict[Any, Ready], kernel: Any, programs: int, args: tuple, constants: Callable[[], dict[str, Any]], warps: int,
    stages: int,
) -> None:  # fmt: skip
    """Run `kernel` on a grid of `programs`. `made` belongs to one set of constants, options and all that Triton specialises
    on; `constants` are the kernel's last parameters, in its order. A kernel not yet in `made` wants tensors in `args`. A
    `Plan` as `made` notes the launch instead, and in a rehearsal it is compiled and not run."""
    found, jobs = made.get(kernel), background()
    rehearsed = jobs.busy and jobs.rehearses()
    if found is None:
        named = constants()
        compiles = partial(compile_sound, kernel, programs, named, warps, stages)
        noted = (kernel, args, {**named, "num_warps": warps, "num_stages": stages}, compiles)
        if isinstance(made, Plan):
            made.launches.append(noted)
            return
        if interpreted():
            kernel[(programs,)](*args, **named)
            return
        if rehearsed:
            begin([noted], torch.cuda.current_device())
            return
        jobs.wait(kernel)
        found = made[kernel] = Ready(compiles(args), tuple(named[name] for name in kernel.arg_names[len(args) :]))
    if not rehearsed:
        found(programs, args)
