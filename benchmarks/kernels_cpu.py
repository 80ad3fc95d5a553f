"""The recurrence on the CPU: the plain loop, the chunked form and the quadratic form, across T, C and D.

Times are fwd+bwd with gradients of every operand, float32, contiguous (B,T,H,D), least of the interleaved rounds.
"""

import argparse
import platform
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, scaled_dot_product_attention

from mnemolab.benchmarks.timing import Times, interleaved
from mnemolab.kernels import memory_scan

__all__ = ["flops", "measure", "quadratic", "show"]

# stage -> kinds of log_decay, erase, write
STAGES = {
    "linear_attention": ("none", "none", "none"),
    "mamba2": ("scalar", "none", "scalar"),
    "gla": ("channel", "none", "none"),
    "deltanet": ("none", "scalar", "scalar"),
    "gated_deltanet": ("scalar", "scalar", "scalar"),
    "kda": ("channel", "scalar", "scalar"),
    "gated_deltanet2": ("channel", "channel", "channel"),
}
TARGET_SHAPE = (32, 256, 2, 32)
# name, numerator, denominator, bound, and whether the ratio is to lie above or below it
TARGETS = (
    ("kda: loop with autograd / chunked", "loop kda", "chunked kda", 10.0, "above"),
    ("kda: chunked / causal attention", "chunked kda", "attention", 4.0, "below"),
    ("gated_deltanet: chunked / causal attention", "chunked gated_deltanet", "attention", 2.5, "below"),
)
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": perf_counter, "cpu": process_time}
CHUNKS = (1, 2, 4, 8, 16, 32, 64)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Everything, as plain values. Keys: device, threads, versions, targets, stages, grid, chunks."""
    threads = torch.get_num_threads()
    torch.set_num_threads(args.threads)
    try:
        shape = (2, 32, 2, 8) if args.quick else TARGET_SHAPE
        clock = CLOCKS[args.clock]
        stages = _stages(shape, args.repeats, clock)
        grid = _grid(args.quick, max(2, args.repeats // 3), clock)
    finally:
        torch.set_num_threads(threads)
    return {
        "benchmark": "kernels",
        "device": "cpu",
        "cpu": platform.processor() or platform.machine(),
        "threads": args.threads,
        "clock": args.clock,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "shape": shape,
        # the bounds are stated for one shape
        "targets": [] if args.quick else _targets(stages),
        "stages": {name: {"least_ms": t.least * 1e3, "median_ms": t.median * 1e3} for name, t in stages.items()},
        "grid": grid,
        "chunks": _chunks(grid),
        "fewest_flops": _fewest_flops(),
    }


# ---- what is timed


def operands(stage: str, shape: tuple[int, int, int, int], seed: int = 0) -> dict[str, Any]:
    """Leaves for memory_scan: unit queries and keys, mild gates (-0.05 to 0), strengths in (0, 1)."""
    B, T, H, D = shape
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(B, T, H, D, generator=g) for _ in range(3))
    made: dict[str, Any] = {"q": normalize(q, dim=-1), "k": normalize(k, dim=-1), "v": v}
    for name, kind, factor in zip(("log_decay", "erase", "write"), STAGES[stage], (-0.05, 1.0, 1.0), strict=True):
        if kind != "none":
            made[name] = factor * torch.rand(B, T, H, *([D] if kind == "channel" else []), generator=g)
    return {name: x.requires_grad_() for name, x in made.items()}


def quadratic(q: Tensor, k: Tensor, v: Tensor, log_decay=None, erase=None, write=None) -> Tensor:
    """The whole sequence as one T x T matrix, as a paper prints it: q e^G (k e^-G)^T. For mild gates only."""
    q, k, R = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    gates = [
        None if x is None else (x if x.dim() == 4 else x.unsqueeze(-1)).transpose(1, 2)
        for x in (log_decay, erase, write)
    ]
    decay, erase, write = gates
    e = None if erase is None else erase * k
    if decay is not None:
        head = decay.cumsum(2).exp()
        q, k = q * head, k / head
        e = None if e is None else e * head
    if write is not None:
        R = write * R
    if e is not None:
        R = torch.linalg.solve_triangular((e @ k.mT).tril(-1), R, upper=False, unitriangular=True)
    return (q.shape[-1] ** -0.5 * ((q @ k.mT).tril() @ R)).transpose(1, 2)


def _case(stage: str, shape: tuple[int, int, int, int], form: str, C: int | None = None) -> Callable[[], object]:
    given = operands(stage, shape)
    g = torch.randn(shape, generator=torch.Generator().manual_seed(1))

    def run():
        if form == "quadratic":
            o = quadratic(**given)
        else:
            o, _ = memory_scan(**given, backend=form, chunk_size=C)
        torch.autograd.grad(o, list(given.values()), g)

    return run


def _attention(shape: tuple[int, int, int, int]) -> Callable[[], object]:
    """Causal softmax attention on the same q, k, v."""
    given = [operands("linear_attention", shape)[name] for name in "qkv"]
    g = torch.randn(shape, generator=torch.Generator().manual_seed(1)).transpose(1, 2)

    def run():
        o = scaled_dot_product_attention(*(x.transpose(1, 2) for x in given), is_causal=True)
        torch.autograd.grad(o, given, g)

    return run


# ---- the parts of the result


def _stages(shape: tuple[int, int, int, int], repeats: int, clock: Clock) -> dict[str, Times]:
    cases = {"attention": _attention(shape), "loop kda": _case("kda", shape, "loop")}
    cases |= {f"chunked {stage}": _case(stage, shape, "chunked") for stage in STAGES}
    return interleaved(cases, repeats, clock=clock)


def _targets(stages: dict[str, Times]) -> list[dict[str, Any]]:
    rows = []
    for name, over, under, bound, side in TARGETS:
        ratio = stages[over].least / stages[under].least
        rows.append({
            "name": name, "ratio": ratio, "median_ratio": stages[over].median / stages[under].median,
            "bound": bound, "side": side, "met": ratio >= bound if side == "above" else ratio <= bound,
        })  # fmt: skip
    return rows


def _grid(quick: bool, repeats: int, clock: Clock) -> list[dict[str, Any]]:
    """Rows of stage, T, D, form, C, FLOPs of the forward pass per token and head, least ms of fwd+bwd."""
    rows = []
    lengths, widths, batch = ((32,), (8,), 2) if quick else ((64, 256, 1024), (16, 32, 64), 8)
    for stage in ("deltanet", "gated_deltanet", "kda"):
        for T in lengths:
            for D in widths:
                shape = (batch, T, 2, D)
                forms: dict[str, tuple[str, int | None]] = {"loop": ("loop", None), "quadratic": ("quadratic", None)}
                forms |= {f"chunked {C}": ("chunked", C) for C in CHUNKS if C <= T}
                times = interleaved(
                    {name: _case(stage, shape, *form) for name, form in forms.items()}, repeats, clock=clock
                )
                for name, (form, C) in forms.items():
                    size = {"loop": 1, "quadratic": T}.get(form, C)
                    rows.append({
                        "stage": stage, "shape": shape, "T": T, "D": D, "form": form, "C": C,
                        "flops": flops(stage, T, D, D, size or 1), "least_ms": times[name].least * 1e3,
                    })  # fmt: skip
    return rows


def flops(stage: str, T: int, K: int, V: int, C: int) -> float:
    """Useful floating-point operations of the forward pass, per token and head, with chunks of C (C = T: no state).

    Pairs q,k: K(C+1); A R: V(C+1); for a delta rule pairs e,k: K(C-1), substitution for U and W: (C-1)(K+V), and
    W S: 2KV; write to and read from the state: 4KV; the state's decay: KV a chunk; factors of q, k (and e): 1 each.
    """
    decay, erase, _ = STAGES[stage]
    alone = C >= T
    count = (K + V) * (C + 1) + (0 if alone else 4 * K * V)
    if erase != "none":
        count += K * (C - 1) + (C - 1) * (V if alone else K + V) + (0 if alone else 2 * K * V)
    if decay != "none":
        count += (0 if alone else K * V / C) + (3 if erase != "none" else 2) * K
    return count


def _chunks(grid: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every stage, T and D: the C with the fewest FLOPs, the fastest C, and the fastest form of all."""
    rows = []
    for key in dict.fromkeys((row["stage"], row["T"], row["D"]) for row in grid):
        here = [row for row in grid if (row["stage"], row["T"], row["D"]) == key]
        chunked = [row for row in here if row["form"] == "chunked"]
        times = {row["form"]: row["least_ms"] for row in here if row["form"] != "chunked"}
        fewest, fastest = min(chunked, key=lambda row: row["flops"]), min(chunked, key=lambda row: row["least_ms"])
        rows.append({
            "stage": key[0], "T": key[1], "D": key[2], "fewest_flops_C": fewest["C"], "fastest_C": fastest["C"],
            "chunked_ms": fastest["least_ms"], "loop_ms": times["loop"], "quadratic_ms": times["quadratic"],
        })  # fmt: skip
    return rows


def _fewest_flops(T: int = 1024) -> list[dict[str, Any]]:
    """For every stage and K = V = D: the chunk size with the fewest FLOPs in the forward pass of a long sequence."""
    return [
        {"stage": stage, "D": D, "C": min(CHUNKS, key=lambda C: flops(stage, T, D, D, C))}
        for stage in STAGES
        for D in (4, 8, 16, 32, 64, 128, 256)
    ]


# ---- tables


def show(result: dict[str, Any]) -> None:
    B, T, H, D = result["shape"]
    print(
        f"CPU, {result['threads']} threads, torch {result['torch']}, float32, fwd+bwd; "
        f"least {result['clock']} time of interleaved rounds\n"
    )
    print(f"(B,T,H,D) = ({B},{T},{H},{D})")
    base = result["stages"]["attention"]["least_ms"]
    for name, row in result["stages"].items():
        print(
            f"  {name:28s} {row['least_ms']:9.2f} ms   median {row['median_ms']:9.2f}   {row['least_ms'] / base:6.2f} x attention"
        )
    print("\nratios" if result["targets"] else f"\nno ratios: their bounds hold at {TARGET_SHAPE}, without --quick")
    for row in result["targets"]:
        bound = f"{'>=' if row['side'] == 'above' else '<='} {row['bound']:g}"
        print(f"  {row['name']:46s} {row['ratio']:6.2f}  ({bound}: {'met' if row['met'] else 'NOT met'})")
    print("\nmilliseconds, B x H = 16, by form and chunk size C")
    for stage in dict.fromkeys(row["stage"] for row in result["grid"]):
        here = [row for row in result["grid"] if row["stage"] == stage]
        sizes = sorted({row["C"] for row in here if row["C"]})
        print(f"  {stage:15s} T    D {'loop':>9s} {'quadratic':>9s}" + "".join(f"{f'C={C}':>9s}" for C in sizes))
        for T, D in dict.fromkeys((row["T"], row["D"]) for row in here):
            cells = {(row["form"], row["C"]): row["least_ms"] for row in here if (row["T"], row["D"]) == (T, D)}
            columns = [cells[("loop", None)], cells[("quadratic", None)], *(cells.get(("chunked", C)) for C in sizes)]
            print(f"  {T:20d} {D:4d}" + "".join(f" {'-' if x is None else f'{x:.2f}':>8s}" for x in columns))
    print("\nchunk size C with the fewest FLOPs in the forward pass, by head width D")
    widths = sorted({row["D"] for row in result["fewest_flops"]})
    print(f"  {'':18s}" + "".join(f"{f'D={D}':>7s}" for D in widths))
    for stage in dict.fromkeys(row["stage"] for row in result["fewest_flops"]):
        print(f"  {stage:18s}" + "".join(f"{row['C']:7d}" for row in result["fewest_flops"] if row["stage"] == stage))
    print("\nchunk size: fewest FLOPs against fastest")
    for row in result["chunks"]:
        note = " (C = 1 has the fewest FLOPs)" if row["fewest_flops_C"] == 1 else ""
        print(
            f"  {row['stage']:15s} T={row['T']:<5d} D={row['D']:<3d} fewest FLOPs at C={row['fewest_flops_C']}{note}, "
            f"fastest C={row['fastest_C']}: {row['loop_ms'] / row['chunked_ms']:.1f} x loop, "
            f"{row['quadratic_ms'] / row['chunked_ms']:.1f} x quadratic"
        )
