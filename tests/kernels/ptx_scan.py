"""Run the scan's PTX in `ptx_machine` and print its relative errors against the loop in float64, one JSON object a job.

Run as a program: `python ptx_scan.py KIND:K:V:DTYPE:T[:norm] ...`, with TRITON_INTERPRET unset.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, str(Path(__file__).parent))
from ptx_machine import Block
from sm90_resources import DTYPES, KINDS, signature

from mnemolab.kernels import loop
from mnemolab.kernels.operands import check_operands
from mnemolab.kernels.triton import scan

NAMES = ("q", "k", "v", "log_decay", "erase", "write")
MANY = 1024  # programs that the table is asked for, so that it does not cut V for want of them


class Memory:
    """Tensors at addresses of one array; what no input wrote is NaN."""

    def __init__(self, inputs):
        self.bytes, self.top, self.places = np.full(1 << 23, 0xFF, np.uint8), 4096, {}
        for x in inputs:
            start = self.place(x)
            self.bytes[start : start + x.nbytes] = np.frombuffer(x.view(torch.uint8).numpy().tobytes(), np.uint8)

    def place(self, x):
        if x.data_ptr() not in self.places:
            self.places[x.data_ptr()] = self.top
            self.top += -(-x.nbytes // 256) * 256
        return self.places[x.data_ptr()]

    def read(self, x):
        start = self.place(x)
        raw = bytearray(self.bytes[start : start + x.nbytes].tobytes())
        return torch.frombuffer(raw, dtype=x.dtype).view(x.shape).double()


def execute(kernel, args, kwargs, programs, memory):
    types, constants, attributes, options = signature(kernel, args, kwargs)
    source = ASTSource(kernel, types, constants, attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    parameters = []
    for name, value in zip(kernel.arg_names, args, strict=False):
        if isinstance(value, torch.Tensor):
            parameters.append(memory.place(value))
        elif types[name] == "fp32":
            parameters.append(int(np.float32(value).view(np.uint32)))
        elif types[name] != "constexpr":
            parameters.append(value)
    for block in range(programs):
        Block(compiled.asm["ptx"], [*parameters, 0, 0], memory.bytes, block, 32 * options["num_warps"]).run()


def errors(kind, K, V, dtype, T, normalize=False, strength=0.3, warps=None):
    g = torch.Generator().manual_seed(0)

    def gate(level, channels):
        return torch.rand(1, T, 1, *([channels] if level == 2 else []), generator=g) if level else None

    q, k, v, do = (torch.randn(1, T, 1, n, generator=g) for n in (K, K, V, V))
    k = k / K**0.5
    if normalize:
        q, k = q.abs() + 0.1, k.abs()
    q, k, v, do = (x.to(DTYPES[dtype]) for x in (q, k, v, do))
    decay, erase, write = KINDS[kind]
    log_decay = gate(decay, K)
    gates = (None if log_decay is None else -strength * log_decay, gate(erase, K), gate(write, V))
    operands = (q, k, v, *gates)
    chosen = scan.choose
    launches: list[Any] = []
    fewer = {} if warps is None else {"recurrence_warps": warps, "gradient_warps": warps}
    scan.choose = lambda dtype, programs, *rest: replace(chosen(dtype, MANY, *rest), **fewer)
    scan.launch = lambda made, kernel, programs, args, constants, warps, stages: launches.append(
        (kernel, args, {**constants(), "num_warps": warps, "num_stages": stages}, programs)
    )
    geo = scan.geometry(q, v, *gates, normalize, 0.5)
    o, _, _, work = scan.run_forward(geo, q, k, v, *gates, None, None, save=True)
    found = scan.run_backward(geo, q, k, v, *gates, work, o if normalize else None, do, None, None, (None, None))
    memory = Memory([x for x in (*operands, do) if x is not None])
    for kernel, args, kwargs, programs in launches:
        execute(kernel, args, kwargs, programs, memory)
    wide: list[Any] = [None if x is None else x.double().requires_grad_() for x in operands]
    checked = check_operands(
        wide[0], wide[1], wide[2], log_decay=wide[3], erase=wide[4], write=wide[5], normalize=normalize, initial_state=None, scale=0.5,
        validate=None,
    )  # fmt: skip
    wanted, _ = loop.scan(checked)
    there = [n for n, x in enumerate(wide) if x is not None]
    gradients = torch.autograd.grad([wanted], [wide[n] for n in there], [do.double()])
    pairs = {"o": (o, wanted.detach())} | {
        f"d {NAMES[n]}": (found[n], x) for n, x in zip(there, gradients, strict=True)
    }
    return {name: float((memory.read(a) - b).norm() / b.norm()) for name, (a, b) in pairs.items()}


if __name__ == "__main__":
    for job in sys.argv[1:]:
        kind, K, V, dtype, T, *rest = job.split(":")
        more = {name: float(value) for name, _, value in (x.partition("=") for x in rest) if value}
        warps = int(more["warps"]) if "warps" in more else None
        found = errors(kind, int(K), int(V), dtype, int(T), "norm" in rest, more.get("strength", 0.3), warps)
        print(json.dumps({"job": job, **found}), flush=True)
