"""The recurrence on a CUDA device: ours against fla, SDPA and the compiled plain form; eager and as CUDA graphs.

Correctness first: outputs and gradients of two batch elements against the chunked form in float64. Then forward and
forward+backward, sides taking turns (ABAB), medians. Bytes are those of the operands, results and their gradients, each
moved once: the roofline is bytes / COPY.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import exp, log
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, scaled_dot_product_attention

from mnemolab.benchmarks import kernels_fla
from mnemolab.benchmarks.first_calls import first_calls
from mnemolab.benchmarks.timing import recorded
from mnemolab.errors import BadRequest, unknown
from mnemolab.kernels import explain_backend, memory_scan

__all__ = ["LARGE", "MINI", "OPS", "Row", "measure", "show"]

COPY = 4.25e12  # bytes a second of a device-to-device copy on an H200, measured
MINI = (
    (64, 64, 4, 16), (64, 256, 4, 32), (256, 256, 2, 32), (64, 512, 4, 64), (64, 1024, 4, 64), (512, 256, 4, 32),
    (512, 64, 8, 16),
)  # fmt: skip
LARGE = ((16, 4096, 4, 64), (8, 2048, 16, 128), (8, 4096, 2, 64))
# name -> kinds of log_decay, erase and write, and whether the output is normalised
OPS = {
    "deltanet": ("none", "scalar", "scalar", False),
    "gated_deltanet": ("scalar", "scalar", "scalar", False),
    "kda": ("channel", "scalar", "scalar", False),
    "gla": ("channel", "none", "none", False),
    "scalar_decay": ("scalar", "none", "none", False),
    "linear_normalised": ("none", "none", "none", True),
    "gated_deltanet2": ("channel", "channel", "channel", False),
}


@dataclass
class Row:
    """One side at one shape; milliseconds, MiB, and the worst relative error of outputs and gradients."""

    op: str
    shape: tuple[int, ...]
    side: str
    forward: float | None = None
    both: float | None = None
    graph_forward: float | None = None
    graph_both: float | None = None
    peak: float | None = None
    error: float | None = None
    gradient_error: float | None = None
    roofline: float | None = None
    note: str = ""


def operands(op: str, shape: tuple[int, ...], device: str = "cuda") -> dict[str, Tensor]:
    """bfloat16 operands with float32 gates: unit keys, decays of half-life 2 tokens and more, strengths in (0, 1)."""
    B, T, H, D = shape
    decay, erase, write, positive = OPS[op]
    g = torch.Generator(device).manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=g, device=device)

    def uniform(kind: str) -> Tensor:
        size = (B, T, H) if kind == "scalar" else (B, T, H, D)
        return torch.rand(size, generator=g, device=device)

    q, k = (normalize(normal(B, T, H, D), dim=-1) for _ in range(2))
    if positive:
        q, k = q.abs(), k.abs()
    made = {"q": q.bfloat16(), "k": k.bfloat16(), "v": normal(B, T, H, D).bfloat16()}
    if decay != "none":
        made["log_decay"] = -0.3 * uniform(decay)
    if erase != "none":
        made["erase"] = uniform(erase)
    if write == "channel":
        made["erase"], made["write"] = made["erase"].bfloat16(), uniform("channel").bfloat16()
    return made


def ours(op: str, x: dict[str, Tensor], backend: str = "auto") -> Tensor:
    """The delta stages tie what they erase to what they write."""
    write = x.get("write", x.get("erase"))
    return memory_scan(
        x["q"], x["k"], x["v"], log_decay=x.get("log_decay"), erase=x.get("erase"), write=write,
        normalize=OPS[op][3], backend=backend,
    )[0]  # fmt: skip


def bytes_moved(op: str, shape: tuple[int, ...], backward: bool) -> int:
    B, T, H, D = shape
    decay, erase, write, _ = OPS[op]
    gates = {"none": 0, "scalar": 4, "channel": 4 * D}[decay]
    gates += {"none": 0, "scalar": 4, "channel": 2 * D}[erase] + (2 * D if write == "channel" else 0)
    forward = 8 * D + gates
    # q, k, v, do and the gates once more, and a gradient for each operand
    return B * T * H * (forward + (14 * D + 2 * gates if backward else 0))


def relative(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


class Case:
    """One side at one shape as closures: `forward()` and `both()`."""

    def __init__(self, run: Callable[[dict[str, Tensor]], Tensor], x: dict[str, Tensor]):
        self.run, self.x = run, x
        # a generator of its own: a failed capture leaves the default one unusable
        g = torch.Generator(x["v"].device).manual_seed(1)
        self.cotangent = torch.randn(x["v"].shape, device=x["v"].device, generator=g).to(x["v"].dtype)

    def forward(self) -> Tensor:
        with torch.no_grad():
            return self.run(self.x)

    def both(self) -> tuple[Tensor, ...]:
        # fresh leaves: those of another stream could not be captured
        x = {name: value.detach().requires_grad_() for name, value in self.x.items()}
        o = self.run(x)
        return o.detach(), *torch.autograd.grad(o, list(x.values()), self.cotangent)


def reference(op: str, case: Case, elements: int = 2) -> list[Tensor]:
    """Outputs and gradients of the first batch elements in float64."""
    x = {name: value[:elements].detach().double().requires_grad_() for name, value in case.x.items()}
    o = ours(op, x, "chunked")
    return [o.detach(), *torch.autograd.grad(o, list(x.values()), case.cotangent[:elements].double())]


def time_of(function: Callable[[], Any], rep: int) -> float:
    from triton.testing import do_bench

    return float(do_bench(function, warmup=max(5, rep // 4), rep=rep, return_mode="median"))  # pyright: ignore[reportArgumentType]


def measure_shape(op: str, shape: tuple[int, ...], sides: dict[str, Callable], rep: int, rounds: int) -> Iterator[Row]:
    x = operands(op, shape)
    rows: dict[str, Row] = {}
    cases: dict[str, Case] = {}
    wanted = None
    for side, run in sides.items():
        rows[side] = row = Row(op, shape, side)
        case = Case(run, x)
        try:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            found = case.both()
            torch.cuda.synchronize()
            row.peak = (torch.cuda.max_memory_allocated() - before) / 2**20
            wanted = wanted or reference(op, case)
            errors = [relative(a[: b.shape[0]], b) for a, b in zip(found, wanted, strict=True)]
            row.error, row.gradient_error = errors[0], max(errors[1:])
            if not max(errors) < 3e-2:
                row.note = "wrong against float64: not timed"
                continue
            cases[side] = case
        except Exception as error:  # noqa: BLE001 (whatever the other side raises is its result)
            row.note = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    times: dict[tuple[str, str], list[float]] = {}
    functions: dict[tuple[str, str], Callable[[], Any]] = {}
    for side, case in cases.items():
        functions[side, "forward"], functions[side, "both"] = case.forward, case.both
        for name, what in (("graph_forward", case.forward), ("graph_both", case.both)):
            try:
                functions[side, name] = recorded(what)
            except Exception as error:  # noqa: BLE001
                rows[side].note += f" {name}: {type(error).__name__}"
    for _ in range(rounds):
        for name in ("forward", "both", "graph_forward", "graph_both"):
            for side in cases:
                if (side, name) in functions:
                    times.setdefault((side, name), []).append(time_of(functions[side, name], rep))
    for (side, name), values in times.items():
        setattr(rows[side], name, median(values))
    for row in rows.values():
        if row.graph_both:
            row.roofline = bytes_moved(op, shape, True) / COPY / (row.graph_both * 1e-3)
        yield row


def attention(shape: tuple[int, ...], rep: int) -> Row:
    """PyTorch's causal attention at the same shape, for scale."""
    B, T, H, D = shape
    g = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(B, H, T, D, device="cuda", generator=g).bfloat16() for _ in range(3))
    case = Case(
        lambda x: scaled_dot_product_attention(x["q"], x["k"], x["v"], is_causal=True), {"q": q, "k": k, "v": v}
    )
    row = Row("attention", shape, "sdpa", time_of(case.forward, rep), time_of(case.both, rep))
    row.graph_both = time_of(recorded(case.both), rep)
    return row


def _asked(args: Namespace) -> tuple[list[str], list[tuple[int, ...]]]:
    """Ops and shapes that `--ops` and `--sizes` name; all of them by default."""
    ops = [name for name in (getattr(args, "ops", None) or ",".join(OPS)).split(",") if name]
    for name in ops:
        if name not in OPS:
            raise unknown("op", name, OPS)
    sizes = (getattr(args, "sizes", None) or ("quick" if getattr(args, "quick", False) else "mini,large")).split(",")
    known = {"mini": MINI, "large": LARGE, "quick": MINI[:2]}
    shapes = []
    for name in sizes:
        shape = tuple(int(n) for n in name.split("x") if n.isdecimal())
        if name not in known and (len(shape) != 4 or min(shape) < 1 or "x".join(map(str, shape)) != name):
            raise unknown("size", name, [*known, "BxTxHxD, as 64x512x4x64"])
        shapes += known.get(name, [shape])
    return ops, list(dict.fromkeys(shapes))


def measure(args: Namespace) -> dict[str, Any]:
    if not torch.cuda.is_available():
        raise BadRequest("--device cuda: no CUDA device is visible; use --device cpu")
    import triton

    ops, shapes = _asked(args)
    rep, rounds = (20, 1) if getattr(args, "quick", False) else (40, 2)
    other = not getattr(args, "ours", False)
    header: dict[str, Any] = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "fla": kernels_fla.describe(), "copy_bytes_per_second": COPY, "dtype": "bfloat16, float32 gates",
    }  # fmt: skip
    header["first_call_seconds"] = first_calls(tuple(ops))
    print(json.dumps(header), file=sys.stderr, flush=True)
    if other and kernels_fla.installed():
        if args.compile_workers:
            kernels_fla.compile_all(ops, shapes, args.compile_workers)
        kernels_fla.shorten_trials()
    # every shape goes to stderr as it is done, so that a run that is cut short still has its rows
    rows: list[Row] = []
    for shape in shapes:
        for op in ops:
            sides: dict[str, Callable] = {"mnemolab": lambda x, op=op: ours(op, x)}
            if other:
                sides |= kernels_fla.sides(op)
            if getattr(args, "compiled", False):
                sides["torch.compile"] = torch.compile(lambda x, op=op: ours(op, x, "chunked"))
            for row in measure_shape(op, shape, sides, rep, rounds):
                rows.append(row)
                print(json.dumps(asdict(row)), file=sys.stderr, flush=True)
        row = attention(shape, rep)
        rows.append(row)
        print(json.dumps(asdict(row)), file=sys.stderr, flush=True)
        torch.cuda.empty_cache()
    x = operands("kda", MINI[0])
    header["backend"] = str(explain_backend(x["q"], x["k"], x["v"], log_decay=x["log_decay"], erase=x["erase"]))
    return {**header, "rows": [asdict(row) for row in rows]}


def ratios(rows: list[dict[str, Any]], op: str, shape: tuple[int, ...] | list[int], name: str) -> float | None:
    """How many times slower the best fla variant is, None where either side has no time."""
    here = [row for row in rows if row["op"] == op and list(row["shape"]) == list(shape) and row[name]]
    mine = [row[name] for row in here if row["side"] == "mnemolab"]
    theirs = [row[name] for row in here if row["side"].startswith("fla")]
    return min(theirs) / mine[0] if mine and theirs else None


def geometric(values: list[float]) -> float:
    return exp(sum(map(log, values)) / len(values)) if values else float("nan")


def show(result: dict[str, Any]) -> None:
    rows = result["rows"]
    print(f"{result['device']}, torch {result['torch']}, Triton {result['triton']}, {result['fla']}")
    print("first call, s: " + ", ".join(f"{op} {s:.1f}" for op, s in result["first_call_seconds"].items()))
    print(f"{'shape':>16} {'op':>18}  fwd    f+b  graph f  graph f+b ms  roof   err    | fla f+b graph | ratio graph")
    summary: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["side"] not in ("mnemolab", "sdpa"):
            continue
        shape = tuple(row["shape"])

        def ms(name: str, row: dict = row) -> str:
            return f"{row[name]:7.3f}" if row[name] else "      -"

        line = f"{'x'.join(map(str, shape)):>16} {row['op']:>18} "
        line += " ".join(ms(name) for name in ("forward", "both", "graph_forward", "graph_both"))
        if row["side"] == "mnemolab":
            line += f" {row['roofline'] or 0:5.0%} {row['error'] or 0:.1e} {row['gradient_error'] or 0:.1e}"
            theirs = [
                r for r in rows if r["op"] == row["op"] and tuple(r["shape"]) == shape and r["side"].startswith("fla")
            ]
            for name in ("both", "graph_both"):
                best = min((r[name] for r in theirs if r[name]), default=None)
                line += f" | {best:7.3f}" if best else " |       -"
            for name in ("both", "graph_both"):
                ratio = ratios(rows, row["op"], shape, name)
                line += f" | {ratio:5.2f}x" if ratio else " |     -"
                if ratio:
                    kind = "large" if shape in LARGE else "mini" if shape in MINI else "other"
                    summary.setdefault((kind, name), []).append(ratio)
            line += "  " + row["note"]
        print(line)
    for row in rows:
        if row["side"] == "torch.compile" and row["both"]:
            print(
                f"  {row['op']} {tuple(row['shape'])}: torch.compile of the plain form takes {row['both']:.3f} ms fwd+bwd"
            )
        if row["side"] != "mnemolab" and row["note"]:
            print(f"  {row['side']} {row['op']} {tuple(row['shape'])}: {row['note']}")
    for (kind, name), values in summary.items():
        print(
            f"{kind} shapes, {'eager' if name == 'both' else 'graph'} fwd+bwd: "
            f"geometric mean {geometric(values):.2f}x, worst {min(values):.2f}x, {len(values)} pairs"
        )
