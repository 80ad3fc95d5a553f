"""Compile kernels for sm_90 without a GPU and print what ptxas gave them, one JSON object a line.

Run as a program: `python sm90_resources.py KIND:D:DTYPE ... neighbours step`, with TRITON_INTERPRET unset. Launches on CPU
tensors are caught before they reach a driver; their arguments say what to compile.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from mnemolab.kernels import memory_step
from mnemolab.kernels.neighbours.embedding import token_order
from mnemolab.kernels.triton import (
    adamw,
    add_norm,
    attention_residual,
    backend,
    cross_entropy,
    decay_gate,
    embedding,
    linear_pair,
    norms,
    philox,
    row_loss,
    rows,
    scalar_gates,
    scan,
    short_conv,
    situ,
    softmax_error,
)
from mnemolab.kernels.triton.launch import miscompiled

KINDS = {
    "linear": (0, 0, 0), "scalar_decay": (1, 0, 0), "mamba2": (1, 0, 1), "gla": (2, 0, 0), "deltanet": (0, 1, 1),
    "gated_deltanet": (1, 1, 1), "kda": (2, 1, 1), "gated_deltanet2": (2, 2, 2),
}  # fmt: skip
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
NAMES = {
    torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.int64: "*i64", torch.uint8: "*u8",
    torch.int32: "*i32", torch.int16: "*i16", torch.int8: "*i8", torch.float64: "*fp64",
}  # fmt: skip
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def catch(launches: list):
    """Make every launch a note of (kernel, arguments, keywords)."""

    def run(self, *args, grid, warmup, **kwargs):
        launches.append((self, args, kwargs))

    def kept(made, kernel, programs, args, constants, warps, stages):
        launches.append((kernel, args, {**constants(), "num_warps": warps, "num_stages": stages}))

    JITFunction.run = run
    scan.launch = kept


def signature(kernel: JITFunction, args: tuple, kwargs: dict) -> tuple[dict, dict, dict, dict]:
    """Types, constants, attributes and options, as Triton's own launch would have found them."""
    kwargs = dict(kwargs)
    options = {name: kwargs.pop(name) for name in ("num_warps", "num_stages") if name in kwargs}
    types, constants, attributes = {}, {}, {}
    plain = {p.name for p in kernel.params if p.do_not_specialize}
    for place, (name, value) in enumerate(zip(kernel.arg_names, args, strict=False)):
        if isinstance(value, torch.Tensor):
            types[name], attributes[(place,)] = NAMES[value.dtype], [["tt.divisibility", 16]]
        elif isinstance(value, tuple):
            types[name] = tuple(NAMES[x.dtype] for x in value)
            attributes |= {(place, j): [["tt.divisibility", 16]] for j in range(len(value))}
        elif value is None or (value == 1 and isinstance(value, int) and name not in plain):
            types[name], constants[name] = "constexpr", value
        elif isinstance(value, float):
            types[name] = "fp32"
        else:
            types[name] = "i32"
            if value % 16 == 0 and name not in plain:
                attributes[(place,)] = [["tt.divisibility", 16]]
    for name, value in kwargs.items():
        types[name], constants[name] = "constexpr", value
    return types, constants, attributes, options


def resources(kernel: JITFunction, args: tuple, kwargs: dict) -> dict:
    types, constants, attributes, options = signature(kernel, args, kwargs)
    source = ASTSource(kernel, types, constants, attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [str(TOOLS / "cuobjdump"), "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found is not None, said
    return {
        "kernel": f"{kernel.fn.__module__.rsplit('.', 1)[-1]}.{kernel.fn.__name__}",
        "registers": int(found[1]), "stack": int(found[2]), "shared": compiled.metadata.shared,
        "wgmma": compiled.asm["ptx"].count("wgmma.mma"), "miscompiled": miscompiled(compiled.asm["ptx"]), **options,
    }  # fmt: skip


def run_scan(kind: str, D: int, dtype: torch.dtype) -> None:
    decay, erase, write = KINDS[kind]
    B, T, H = (64, 128, 4) if D <= 64 else (8, 128, 16)

    def gate(level: int) -> torch.Tensor | None:
        return torch.zeros(B, T, H, *([D] if level == 2 else [])) if level else None

    q = torch.zeros(B, T, H, D, dtype=dtype)
    norm = kind == "linear"
    geo = scan.geometry(q, q, gate(decay), gate(erase), gate(write), norm, 0.5)
    gates = gate(decay), gate(erase), gate(write)
    o, _, _, work = scan.run_forward(geo, q, q, q, *gates, None, None, save=True)
    scan.run_backward(geo, q, q, q, *gates, work, o if norm else None, q, None, None, (None, None))


def run_neighbours() -> None:
    def leaf(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.bfloat16).requires_grad_()

    x, g, row = leaf(2, 64, 128), leaf(2, 64, 128), leaf(128)
    for y in (
        short_conv.short_conv(x, leaf(128, 4), row, None, True)[0],
        norms.rms_norm_gated(x, g, row, 1e-5, "silu", False),
        norms.l2_norm(x, 1e-6),
        situ.situ_glu(x, g, 4.0, 25.0),
        situ.glu(x, None, None),
        sum(decay_gate.decay_gate(x, row.float(), None if k == 2 else leaf(2).float(), k, 2).sum() for k in range(3)),
        sum(y.sum() for y in linear_pair.linear_pair(x, leaf(64, 128), leaf(2, 128))),
        rows.take_rows(x.view(128, 128), torch.zeros(64, dtype=torch.int64), torch.zeros(128, dtype=torch.int32)),
        add_norm.add_rms_norm(x.float(), g, row, 1e-5, torch.bfloat16)[1],
        attention_residual.attention_residual([x, g], row, row, 1e-5),
        cross_entropy.scored_cross_entropy(x, leaf(512, 128), torch.zeros(2, 64, dtype=torch.int64), None, -100),
    ):
        y.sum().backward()
    philox.philox_words(torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64), 1 << 31, (7, 9), 11)
    run_gates()
    run_convolutions()


def run_gates() -> None:
    """The strength of a delta rule alone, beside a decay or beside columns that pass by; a step size; the kinds of decay."""

    def leaf(*shape: int) -> torch.Tensor:
        return torch.zeros(shape).requires_grad_()

    for passed, kind, step, beta in (
        (0, None, False, 1.0), (0, 0, True, None), (0, 1, False, 2.0), (0, 2, False, None), (64, None, False, 1.0),
    ):  # fmt: skip
        J = passed + 2 * ((kind is not None) + (beta is not None))
        bias, A_log = None if kind is None else leaf(2), None if kind in (None, 2) else leaf(2)
        found = scalar_gates.scalar_gates(leaf(2, 64, J).bfloat16(), 2, passed, kind, bias, A_log, step, beta)
        torch.stack([y.float().sum() for y in found if y is not None]).sum().backward()


def run_convolutions() -> None:
    """Widths of mini-models: matched memories, softmax attention's values alone, heads that fill no tile, carried caches."""
    for width, unit, only_values, carried in (
        (128, 64, False, False), (128, 32, True, False), (64, 16, False, False), (96, 48, False, False),
        (256, 128, False, False), (256, 256, False, False), (128, 64, False, True),
    ):  # fmt: skip
        mixed = torch.zeros(2, 64, 4 * width, dtype=torch.bfloat16).requires_grad_()
        weight, bias = torch.zeros(3 * width, 4).requires_grad_(), torch.zeros(3 * width).requires_grad_()
        cache = torch.zeros(2, 3, 3 * width, dtype=torch.bfloat16).requires_grad_()
        more = (bias, cache) if carried else (None, None)
        silu, unit = ((False, False, True), 0) if only_values else ((True, True, True), unit)
        q, k, v, gate, following = short_conv.short_conv_qkv(mixed, weight, *more, (width,) * 3, silu, unit, 1e-6)
        gate = gate.unflatten(-1, (-1, 32))
        y = norms.rms_norm_gated(v.unflatten(-1, (-1, 32)), gate, None, 1e-5, "sigmoid", False)
        (q.sum() + k.sum() + y.sum() + (following.sum() if carried else 0)).backward()


def run_embedding() -> None:
    """Rows that a vector load divides and rows that it does not; the first level of the gradient and a later one,
    with its own order and with one that was given."""
    tokens = torch.zeros(4, 128, dtype=torch.int64)
    for width, dtype in ((128, torch.float32), (33, torch.float32), (1024, torch.float32), (128, torch.bfloat16)):
        table = torch.zeros(300, width, dtype=dtype).requires_grad_()
        embedding.embedding(tokens, table).sum().backward()
        embedding.embedding(tokens, table, *(x[0] for x in token_order(tokens.view(1, -1), 300))).sum().backward()


def run_losses() -> None:
    """A large vocabulary that tiles divide, one that they do not; softmax of given logits, whole and in pieces."""
    wanted, share = torch.zeros(256, dtype=torch.int64), torch.ones(256)
    for N, D in ((8192, 128), (8192, 64), (1000, 128), (1000, 40)):
        x, w = torch.zeros(256, D, dtype=torch.bfloat16), torch.zeros(N, D, dtype=torch.bfloat16)
        row_loss.row_loss(x, w, wanted, share, torch.empty(256), torch.empty_like(x))
    for N in (192, 8192, 50000):
        softmax_error.softmax_error_(torch.zeros(256, N, dtype=torch.bfloat16), wanted, share, torch.empty(256))


def run_update() -> None:
    chunks = adamw.Chunks([5000, 3], torch.device("cpu"))
    sums, factors, one = torch.zeros(chunks.chunks), torch.zeros(2, 3), torch.zeros(())
    count, decay, betas = torch.zeros((), dtype=torch.int64), torch.zeros(2), torch.zeros(2, dtype=torch.float64)
    board = torch.zeros(9), count, count.clone(), one.clone(), torch.zeros(4096, 2)
    adamw.squares(chunks, sums)
    adamw.settle(chunks, sums, torch.zeros(64), decay, betas, factors, one, *board, clip=1.0, slots=16)
    adamw.adamw(chunks, factors, one, board[3], beta1=0.9, beta2=0.95, eps=1e-8)


def run_step() -> None:
    backend.interpreted = lambda: True
    x = torch.zeros(4, 4, 64, dtype=torch.bfloat16)
    beta = torch.zeros(4, 4)
    memory_step(
        x, x, x, torch.zeros(4, 4, 64, 64), log_decay=torch.zeros(4, 4, 64), erase=beta, write=beta, backend="triton"
    )


if __name__ == "__main__":
    launches: list = []
    catch(launches)
    for job in sys.argv[1:]:
        launches.clear()
        if job == "neighbours":
            run_neighbours()
        elif job == "embedding":
            run_embedding()
        elif job == "losses":
            run_losses()
        elif job == "update":
            run_update()
        elif job == "step":
            run_step()
        else:
            kind, D, dtype = job.split(":")
            run_scan(kind, int(D), DTYPES[dtype])
        for launch in launches:
            print(json.dumps({"job": job, **resources(*launch)}), flush=True)
