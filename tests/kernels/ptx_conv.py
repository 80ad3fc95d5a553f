"""Run the PTX of the fused convolution and of the gated norm in `ptx_machine` and print their errors against the plain forms.

Run as a program: `python ptx_conv.py B:T:SIZE:REST:W:UNIT:DTYPE[:carried] ...`, with TRITON_INTERPRET unset. One JSON object a
job: relative errors of every result and gradient against float64. What no kernel writes is NaN.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

sys.path.insert(0, str(Path(__file__).parent))
from ptx_machine import Block
from sm90_resources import DTYPES, signature

from mnemolab.kernels import rms_norm_gated, short_conv_qkv
from mnemolab.kernels.triton import norms, short_conv

RESULTS = ("q", "k", "v", "normed", "following", "d mixed", "d weight", "d bias", "d cache")


class Machine:
    """Memory that holds the storages of all operands, views at their place in them; launches run on it."""

    def __init__(self):
        self.bytes, self.top, self.places = np.full(1 << 22, 0xFF, np.uint8), 4096, {}

    def word(self, value: Any) -> int:
        """A parameter: an address, the bits of a float, or a number."""
        if not isinstance(value, Tensor):
            return int(np.float32(value).view(np.uint32)) if isinstance(value, float) else value
        storage = value.untyped_storage()
        if storage.data_ptr() not in self.places:
            whole = torch.tensor([], dtype=torch.uint8).set_(storage).numpy()  # type: ignore[arg-type]
            self.places[storage.data_ptr()] = self.top, whole  # kept, so that its address names it
            self.bytes[self.top : self.top + whole.size] = whole
            self.top += -(-whole.size // 256) * 256 + 256
        return self.places[storage.data_ptr()][0] + value.storage_offset() * value.element_size()

    def run(self, kernel: JITFunction, *args: Any, grid: tuple[int], warmup: bool, **kwargs: Any) -> None:
        types, constants, attributes, options = signature(kernel, args, kwargs)
        source = ASTSource(kernel, types, constants, attributes)
        ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
        names = zip(kernel.arg_names, args, strict=False)
        parameters = [self.word(value) for name, value in names if types[name] != "constexpr"]
        for program in range(grid[0]):
            block = Block(ptx, [*parameters, 0, 0], self.bytes, program, 32 * options["num_warps"])
            block.programs = grid[0]
            block.run()
        for start, whole in self.places.values():
            whole[:] = self.bytes[start : start + whole.size]


def poisoned(make: Any) -> Any:
    def made(*args: Any, **kwargs: Any) -> Tensor:
        return make(*args, **kwargs).fill_(float("nan"))

    return made


def results(fused: bool, tensors: list[Tensor | None], size: int, unit: int) -> list[Tensor]:
    """The convolution, and a norm of v whose gate is the rest of the projection."""
    leaves = [None if x is None else (x if fused else x.double()).detach().clone().requires_grad_() for x in tensors]
    mixed, weight, bias, cache = leaves
    sizes, silu = (size,) * 3, (True, True, True)
    assert mixed is not None and weight is not None
    if fused:
        q, k, v, gate, following = short_conv.short_conv_qkv(mixed, weight, bias, cache, sizes, silu, unit, 1e-6)
        normed = norms.rms_norm_gated(*heads(v, gate, unit), None, 1e-5, "sigmoid", False)
    else:
        q, k, v, gate, following = short_conv_qkv(mixed, weight, bias, cache=cache, sizes=sizes, silu=silu, unit=unit)
        normed = rms_norm_gated(*heads(v, gate, unit), activation="sigmoid")
    found = [q, k, normed, *([] if cache is None else [following])]
    g = torch.Generator().manual_seed(5)
    cotangents = [torch.randn(y.shape, generator=g).to(tensors[0].dtype).to(y.dtype) for y in found]  # type: ignore[union-attr]
    gradients = torch.autograd.grad(found, [x for x in leaves if x is not None], cotangents)
    return [q, k, v, normed, following, *gradients]


def heads(v: Tensor, gate: Tensor, unit: int) -> tuple[Tensor, Tensor]:
    return v.unflatten(-1, (-1, unit)), gate[..., : v.shape[-1]].unflatten(-1, (-1, unit))


def errors(numbers: list[int], dtype: torch.dtype, carried: bool) -> dict[str, float]:
    B, T, size, rest, W, unit = numbers

    g = torch.Generator().manual_seed(0)

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=g).to(dtype)

    C = 3 * size
    mixed, weight = draw(B, T, C + rest, dtype=dtype), draw(C, W)
    tensors = [mixed, weight, draw(C) if carried else None, draw(B, W - 1, C, dtype=dtype) if carried else None]
    wanted = results(False, tensors, size, unit)
    machine = Machine()
    JITFunction.run = lambda kernel, *args, **kwargs: machine.run(kernel, *args, **kwargs)
    torch.empty, torch.empty_like = poisoned(torch.empty), poisoned(torch.empty_like)
    Tensor.new_empty = poisoned(Tensor.new_empty)  # type: ignore[method-assign]
    found = results(True, tensors, size, unit)
    return {
        name: float((a.detach().double() - b.detach()).norm() / b.detach().norm().clamp_min(1e-30))
        for name, a, b in zip(RESULTS, found, wanted, strict=False)
    }


if __name__ == "__main__":
    empties = torch.empty, torch.empty_like, Tensor.new_empty
    for job in sys.argv[1:]:
        *numbers, dtype, carried = job.split(":") if job.endswith(":carried") else [*job.split(":"), ""]
        print(json.dumps({"job": job, **errors([int(n) for n in numbers], DTYPES[dtype], bool(carried))}), flush=True)
        torch.empty, torch.empty_like, Tensor.new_empty = empties
