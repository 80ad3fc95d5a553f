"""What a chunk of C tokens costs: operations counted and time measured. One operation is a multiplication or an addition.

The articles' count for linear attention over L tokens and d channels is 2Ld^2 + 2LCd multiply-adds a head: two products with
the state, and the pairs within a chunk. Twice that are operations: 4d^2 + 4Cd a token.
"""

from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize
from torch.utils.flop_counter import FlopCounterMode

from mnemolab.analysis.claims.checks.check import Check, first_seed, preset
from mnemolab.analysis.claims.checks.exact import RULES
from mnemolab.analysis.claims.checks.timing import estimate, ratio, rounds
from mnemolab.benchmarks.kernels_cpu import CHUNKS, flops
from mnemolab.kernels import memory_scan

__all__ = ["chunk_cost", "fewest", "products"]

STAGES = ("linear_attention", "deltanet", "gated_deltanet", "kda")
WIDTHS = (16, 64, 128)
LONG = 1 << 16
# named before anything is timed: the best of seven would win by noise alone
CHALLENGER = 16
# (B,T,H,D), repeats; timed: forward and backward, float32
SHAPES = {
    "cpu": {"quick": ((2, 256, 2, 32), 7), "full": ((8, 1024, 2, 64), 9)},
    "cuda": {"quick": ((64, 256, 4, 32), 7), "full": ((64, 1024, 4, 64), 15)},
}


def chunk_cost(tier: str, device: str) -> list[Check]:
    """The form of the count, the C with the fewest operations, and whether C = 1 is the fastest."""
    return [*_form(), *(_fewest(stage) for stage in STAGES), *_times(tier, device)]


def products(C: int, d: int, T: int = 256) -> float:
    """Operations a token and head in the matrix products that the chunked form of linear attention runs, as it runs them."""
    aten = torch.ops.aten
    # torch counts baddbmm but not its in-place form
    counted: dict[Any, Any] = {aten.baddbmm_: lambda _, a, b, *args, **kwargs: 2 * a[0] * a[1] * a[2] * b[2]}
    q, k, v = (torch.zeros(1, T, 1, d) for _ in range(3))
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=counted) as counter:
        memory_scan(q, k, v, backend="chunked", chunk_size=C)
    return counter.get_total_flops() / T


def _form() -> list[Check]:
    checks = []
    for d in WIDTHS:
        worst = max(abs(products(C, d) / (4 * d * d + 4 * C * d) - 1) for C in CHUNKS)
        detail = f"matrix products counted as they run, d={d}, C from {CHUNKS[0]} to {CHUNKS[-1]}"
        checks.append(Check(f"linear attention counts 4d^2 + 4Cd, d={d}", worst, None, 1e-9, "relative", detail))
    return checks


def fewest(stage: str, d: int) -> int:
    """The chunk size with the fewest useful operations in the forward pass of a long sequence."""
    return min(CHUNKS, key=lambda C: flops(stage, LONG, d, d, C))


def _fewest(stage: str) -> Check:
    """Where something decays, a chunk decays its state once: d^2/C a token, which the articles' count leaves out."""
    found = {d: fewest(stage, d) for d in WIDTHS}
    detail = ", ".join(f"d={d}: C={C}" for d, C in found.items())
    if RULES[stage][0] != "none":
        detail += "; the decay of the state, d^2/C a token, is counted"
    return Check(f"{stage}: largest C with the fewest operations", max(found.values()), 1, 1, "tokens", detail)


def _times(tier: str, device: str) -> list[Check]:
    (shape, repeats), checks = preset(SHAPES, tier, device), []
    for stage in ("linear_attention", "deltanet", "kda"):
        times = rounds({str(C): _case(stage, shape, C, first_seed(tier), device) for C in CHUNKS}, repeats, device)
        value, interval = estimate([times["1"], times[str(CHALLENGER)]], ratio)
        best = min(times, key=lambda C: float(np.median(times[C])))
        detail = f"fastest C={best}; fwd+bwd of the chunked form, float32, (B,T,H,D)={shape}, {repeats} rounds"
        name = f"{stage}: time at C = 1 over that at C = {CHALLENGER}"
        checks.append(Check(name, value, 1, None, "ratio", detail, interval))
    return checks


def _case(stage: str, shape: tuple[int, int, int, int], C: int, seed: int, device: str):
    B, T, H, D = shape
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(B, T, H, D, generator=g) for _ in range(3))
    given: dict[str, Any] = {"q": normalize(q, dim=-1), "k": normalize(k, dim=-1), "v": v}
    for name, kind in zip(("log_decay", "erase", "write"), RULES[stage], strict=False):
        if kind != "none":
            u = torch.rand(B, T, H, *([D] if kind == "channel" else []), generator=g)
            given[name] = -0.05 * u if name == "log_decay" else u
    given = {name: x.to(device).requires_grad_() for name, x in given.items()}
    cotangent = torch.ones(shape, device=device)

    def run():
        o, _ = memory_scan(**given, backend="chunked", chunk_size=C)
        torch.autograd.grad(o, list(given.values()), cotangent)

    return run
