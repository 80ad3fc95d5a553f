"""Run the embedding's PTX in `ptx_machine` and print its errors against torch in float64, one JSON object a job.

Run as a program: `python ptx_embedding.py TOKENS:N:D:DTYPE:KIND ...`, with TRITON_INTERPRET unset.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

sys.path.insert(0, str(Path(__file__).parent))
from ptx_machine import Block
from ptx_scan import Memory
from sm90_resources import DTYPES, signature

from mnemolab.kernels.triton import embedding

KEPT: list[torch.Tensor] = []  # addresses name tensors, so none may die


class GridBlock(Block):
    """A block of a grid with a second axis."""

    row = 0

    def value(self, text):
        return super().value(str(self.row) if text == "%ctaid.y" else text)


def run_on(memory: Memory):
    def run(self, *args, grid, warmup, **kwargs):
        for x in args:
            if isinstance(x, torch.Tensor) and x.data_ptr() not in memory.places:
                KEPT.append(x)
                start = memory.place(x)
                if x.nbytes:  # zeros, and what an uninitialised tensor happens to hold
                    memory.bytes[start : start + x.nbytes] = x.view(-1).view(torch.uint8).numpy()
        types, constants, attributes, options = signature(self, args, kwargs)
        source = ASTSource(self, types, constants, attributes)
        ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
        parameters = [
            memory.place(value) if isinstance(value, torch.Tensor) else value
            for name, value in zip(self.arg_names, args, strict=False)
            if types[name] != "constexpr"
        ]
        for chunk in range(grid[0]):
            for row in range(grid[1] if len(grid) > 1 else 1):
                block = GridBlock(ptx, [*parameters, 0, 0], memory.bytes, chunk, 32 * options["num_warps"])
                block.row = row
                block.run()
        for x in args:  # the host sorts the keys that a kernel wrote
            if isinstance(x, torch.Tensor):
                start = memory.place(x)
                x.view(-1).view(torch.uint8).numpy()[:] = memory.bytes[start : start + x.nbytes]

    return run


def errors(M: int, N: int, D: int, dtype: torch.dtype, kind: str) -> dict[str, float]:
    g = torch.Generator().manual_seed(0)
    tokens = torch.randint(N, (M,), generator=g)
    if kind == "filler":
        tokens[torch.rand(M, generator=g) < 0.7] = N // 2
    weight, dy = (torch.randn(n, D, generator=g).to(dtype) for n in (N, M))
    JITFunction.run = run_on(Memory([]))
    empty = torch.empty

    def poisoned(*shape: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
        return empty(*shape, dtype=dtype, device=device).fill_(float("nan") if dtype.is_floating_point else 3)

    torch.empty = poisoned  # type: ignore[assignment]
    keys = poisoned(M, dtype=embedding.key_dtype(N), device="cpu")
    y = embedding.gather(tokens, weight, keys)
    dw = embedding.sum_rows(keys, dy, N, dtype)
    wanted = torch.zeros(N, D, dtype=torch.float64).index_add_(0, tokens, dy.double())
    return {
        "y": float((y - weight[tokens]).abs().max()),
        "dw": float((dw - wanted).norm() / wanted.norm()),
        "unseen": float(dw[wanted.abs().sum(1) == 0].abs().sum()),
    }


if __name__ == "__main__":
    for job in sys.argv[1:]:
        M, N, D, dtype, kind = job.split(":")
        print(json.dumps({"job": job, **errors(int(M), int(N), int(D), DTYPES[dtype], kind)}), flush=True)
