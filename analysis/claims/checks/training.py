"""With which power of the length T training time grows, and what a recurrent network makes of the time axis.

Training time is forward and backward of what mixes tokens; everything else in a model is linear in T for all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, scaled_dot_product_attention

from mnemolab.analysis.claims.checks.check import Check, device_kind, first_seed, preset
from mnemolab.analysis.claims.checks.timing import Floats, estimate, exponent, ratio, rounds
from mnemolab.kernels import memory_scan

__all__ = ["linear_training", "quadratic_attention"]


@dataclass(frozen=True)
class Training:
    """A preset: for each form (B, H) and the lengths T at which its power is fitted; channels of a head; rounds, of which the
    recurrence, the cheapest, gets three times as many; and for the time axis (B T, H) and the lengths (none where nothing
    runs in parallel)."""

    recurrence: tuple[tuple[int, int], tuple[int, ...]]
    quadratic: tuple[tuple[int, int], tuple[int, ...]]
    flash: tuple[tuple[int, int], tuple[int, ...]]
    head_dim: int
    repeats: int
    axis: tuple[tuple[int, int], tuple[int, ...]] = ((0, 0), ())


# The recurrence over a wide range: on a CPU a chunk's dispatch is felt at its lower end and the edge of a cache at its upper.
# On CUDA, flash attention at 16,384 tokens and more: from 8192 to 32,768 its power was 1.58 on an H200 (1.96, 4.42 and 17.5 ms,
# 2026-11-30): below its quadratic range, so that the first of these was given up after it had been seen.
# T x T weights are above 32 MiB at every length, so that all of them come from the system and none from memory in use.
SHAPES = {
    "cpu": {
        "quick": Training(
            ((1, 1), (1024, 2048, 4096, 8192, 16_384)), ((1, 9), (1024, 1536, 2048)), ((1, 1), (4096, 8192, 16_384)), 32, 10
        ),
        "full": Training(
            ((1, 1), (1024, 2048, 4096, 8192, 16_384)), ((1, 9), (1024, 2048, 4096)), ((1, 1), (4096, 8192, 16_384)), 64, 11
        ),
    },
    "cuda": {
        "quick": Training(
            ((4, 4), (4096, 8192, 16_384)), ((4, 4), (4096, 8192, 16_384)), ((4, 4), (16_384, 32_768, 65_536)), 64, 9,
            ((131_072, 4), (128, 1024, 8192)),
        ),
        "full": Training(
            ((4, 4), (4096, 8192, 16_384, 32_768)), ((4, 4), (4096, 8192, 16_384)), ((4, 4), (16_384, 32_768, 65_536)), 64,
            15, ((262_144, 4), (128, 1024, 8192)),
        ),
    },
}  # fmt: skip
# powers of T
LINEAR, QUADRATIC = (0.8, 1.2), (1.7, 2.3)
# at as many tokens, a step of a recurrent network is as long a chain as T; the memory recurrence is cut into chunks
SERIAL = 0.2


def linear_training(tier: str, device: str) -> list[Check]:
    """Powers for KDA's recurrence, attention as a T x T matrix, and flash attention; what flash saves; the time axis.

    The last is a matter of parallel hardware and is checked on CUDA only: one core does a recurrent network's work in the
    same time however it is cut.
    """
    shape, seed = preset(SHAPES, tier, device), first_seed(tier)
    return [*_powers(shape, seed, device), *(_axis(shape, seed, device) if shape.axis[1] else [])]


def quadratic_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal softmax attention with its T x T weights written out; q, k, v (B,T,H,D) -> (B,T,H,D)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return (scores.masked_fill(future, -torch.inf).softmax(-1) @ v).transpose(1, 2)


def _flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def _kda(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    return memory_scan(q, k, v, log_decay=log_decay, erase=beta, write=beta)[0]


FORMS: dict[str, Callable[..., Tensor]] = {"recurrence": _kda, "quadratic": quadratic_attention, "flash": _flash}


def _case(form: str, size: tuple[int, int, int, int], seed: int, device: str) -> Callable[[], object]:
    """Forward and backward of a form at (B,T,H,D)."""
    g, dtype = torch.Generator().manual_seed(seed), _dtype(device)
    q, k, v = (torch.randn(size, generator=g) for _ in range(3))
    given = [normalize(q, dim=-1).to(dtype), normalize(k, dim=-1).to(dtype), v.to(dtype)]
    if form == "recurrence":
        given += [-0.05 * torch.rand(size, generator=g), torch.rand(size[:3], generator=g)]
    given = [x.to(device).requires_grad_() for x in given]
    cotangent = torch.ones(size, device=device, dtype=dtype)

    def run() -> None:
        torch.autograd.grad(FORMS[form](*given), given, cotangent)

    return run


def _dtype(device: str) -> torch.dtype:
    return torch.bfloat16 if device_kind(device) == "cuda" else torch.float32


def _powers(shape: Training, seed: int, device: str) -> list[Check]:
    D, cases = shape.head_dim, {}
    series = {"recurrence": shape.recurrence, "quadratic": shape.quadratic, "flash": shape.flash}
    for form, ((B, H), lengths) in series.items():
        cases[form] = {f"{form} {T}": _case(form, (B, T, H, D), seed, device) for T in lengths}
    (B, H), lengths = shape.quadratic
    last = lengths[-1]
    cases["flash"]["flash, same"] = _case("flash", (B, last, H, D), seed, device)
    times = rounds(cases["recurrence"], 3 * shape.repeats, device)
    times |= rounds(cases["quadratic"] | cases["flash"], shape.repeats, device)
    precision, checks = f"fwd+bwd, {str(_dtype(device))[6:]}, {shape.repeats} rounds or more", []
    bounds = {"recurrence": LINEAR, "quadratic": QUADRATIC, "flash": QUADRATIC}
    for form, ((b, h), at) in series.items():
        found = [times[f"{form} {T}"] for T in at]
        value, interval = estimate(found, exponent(at))
        shown = ", ".join(f"T={T} {np.median(t) * 1e3:.3g} ms" for T, t in zip(at, found, strict=True))
        detail = f"(B,H,D)=({b},{h},{D}): {shown}; {precision}"
        checks.append(Check(f"{form}: power of T", value, *bounds[form], "power", detail, interval))
    value, interval = estimate([times[f"quadratic {last}"], times["flash, same"]], ratio)
    detail = f"(B,H,D)=({B},{H},{D}); {precision}"
    checks.append(Check(f"quadratic over flash at T={last}", value, 1, None, "ratio", detail, interval))
    return checks


def _axis(shape: Training, seed: int, device: str) -> list[Check]:
    """T grows and the batch shrinks: as many tokens, in ever longer chains."""
    (tokens, H), lengths = shape.axis
    width, cases = H * shape.head_dim, {}
    for T in lengths:
        B = tokens // T
        cases[f"lstm {T}"] = _lstm(B, T, width, seed, device)
        cases[f"recurrence {T}"] = _case("recurrence", (B, T, H, shape.head_dim), seed, device)
    times = rounds(cases, shape.repeats, device)
    power, count = exponent(lengths), len(lengths)
    series = {name: [times[f"{name} {T}"] for T in lengths] for name in ("lstm", "recurrence")}

    def difference(medians: Floats) -> Floats:
        return power(medians[..., :count]) - power(medians[..., count:])

    value, interval = estimate(series["lstm"] + series["recurrence"], difference)
    powers = ", ".join(f"{name} {estimate(found, power)[0]:.2f}" for name, found in series.items())
    detail = f"{tokens} tokens in all, T {', '.join(map(str, lengths))}, {width} channels; powers: {powers}"
    return [Check("as many tokens: power of T, LSTM less recurrence", value, SERIAL, None, "power", detail, interval)]


def _lstm(B: int, T: int, width: int, seed: int, device: str) -> Callable[[], object]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # cuDNN takes float16 and no bfloat16; without it a network would pay for every step's launches
        dtype = torch.float16 if device_kind(device) == "cuda" else _dtype(device)
        cell = nn.LSTM(width, width, batch_first=True).to(device, dtype)
        x = torch.randn(B, T, width).to(device, dtype).requires_grad_()

    def run() -> None:
        torch.autograd.grad(cell(x)[0].sum(), [x, *cell.parameters()])

    return run
