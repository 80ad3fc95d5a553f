"""What one more token costs as the context grows: time and bytes, for a fixed state, a cache, and a 3:1 hybrid."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mnemolab.analysis.claims.checks.check import Check, device_kind, first_seed, preset
from mnemolab.analysis.claims.checks.timing import Floats, estimate, exponent, replayed, rounds
from mnemolab.models import Backbone, make_model
from mnemolab.models.state import Cache, map_state

__all__ = ["fixed_state_constant", "state_size", "with_context"]

# name -> stage and its options: one block, and only the layers' memory differs
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "fixed": ("kda", {}),
    "hybrid": ("kimi_linear", {}),
    "softmax": ("gpt2", {}),
}
DEPTH = 4


@dataclass(frozen=True)
class Decoding:
    """A preset: contexts in tokens, sequences decoded together, tokens a round, rounds, heads and channels of each."""

    contexts: tuple[int, ...]
    batch: int
    tokens: int
    repeats: int
    heads: int = 2
    head_dim: int = 32


SHAPES = {
    "cpu": {
        "quick": Decoding((512, 2048, 8192, 32_768), 2, 4, 25),
        "full": Decoding((512, 2048, 8192, 32_768, 131_072), 4, 8, 21),
    },
    "cuda": {
        "quick": Decoding((2048, 16_384, 131_072), 64, 8, 9, heads=3, head_dim=64),
        "full": Decoding((2048, 8192, 32_768, 131_072), 64, 8, 21, heads=3, head_dim=64),
    },
}
# powers of the context. A fixed state's time is flat up to noise. Softmax rises: with the constant part of a step it
# cannot reach 1 at short contexts, so a quarter is asked for over the whole range.
FLAT = (-0.05, 0.05)
RISES = 0.25
# the hybrid lies between by at least this much
APART = 0.05


@torch.no_grad()
def fixed_state_constant(tier: str, device: str) -> list[Check]:
    """Powers of the context in the time and the bytes of one decoded token, for the three models, and their order."""
    shape = preset(SHAPES, tier, device)
    # caches in bfloat16 on a GPU, as they are served there; memories are float32 everywhere
    dtype = torch.bfloat16 if device_kind(device) == "cuda" else torch.float32
    cases: dict[str, Callable[[], object]] = {}
    held: dict[tuple[str, int], int] = {}
    for name, (stage, options) in MODELS.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(first_seed(tier))
            sizes = {"vocab_size": 64, "depth": DEPTH, "heads": shape.heads, "head_dim": shape.head_dim}
            model = make_model(stage, width=shape.heads * shape.head_dim, **sizes, **options).eval().to(device, dtype)
        for context in shape.contexts:
            state = with_context(model, context, shape.batch, device, room=shape.tokens * (shape.repeats + 4))
            held[name, context] = state_size(state)
            cases[f"{name} {context}"] = _decode(model, state, shape, device)
    times = rounds(cases, shape.repeats, device)
    return [*_timed(times, shape), *_bytes(held, shape)]


def with_context(model: Backbone, context: int, batch: int, device: str, room: int = 0) -> Any:
    """The state after `context` tokens, with room in its caches for `room` more: a prefill, repeated to that length.

    A step's cost depends on how much is cached and not on what, and no prompt of 131,072 tokens has to be read.
    """
    prompt = min(256, context)
    inputs = torch.arange(batch * prompt, device=device).view(batch, prompt) % model.config.vocab_size
    return _grown(model.prefill(inputs)[1], context, room)


def _grown(state: Any, context: int, room: int) -> Any:
    if isinstance(state, dict):
        return {name: _grown(part, context, room) for name, part in state.items()}
    if isinstance(state, list):
        return [_grown(part, context, room) for part in state]
    if isinstance(state, Cache):
        given = state.view
        buffer = given.new_empty(given.shape[0], context + room, *given.shape[2:])
        for start in range(0, context, given.shape[1]):
            part = buffer[:, start : min(start + given.shape[1], context)]
            part.copy_(given[:, : part.shape[1]])
        return Cache(buffer, context)
    return state


def state_size(state: Any) -> int:
    """Bytes that a state holds, all sequences together; room that a cache keeps ahead is not counted."""
    found: list[int] = []

    def count(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor.numel() * tensor.element_size() if tensor.is_floating_point() else 0)
        return tensor

    map_state(state, count)
    return sum(found)


def _decode(model: Backbone, state: Any, shape: Decoding, device: str) -> Callable[[], object]:
    """Decode on and on: every call continues where the last one ended, a few tokens further than `context`; on CUDA, where
    the calls are replays, every call decodes the same few tokens."""
    token = torch.zeros(shape.batch, dtype=torch.int64, device=device)
    start = state

    def run() -> None:
        nonlocal start, state
        start = state  # replays go on reading it
        with torch.no_grad():
            for _ in range(shape.tokens):
                _, state = model.step(token, state)

    return replayed(run, device)


def _timed(times: dict[str, Floats], shape: Decoding) -> list[Check]:
    contexts, count = shape.contexts, len(shape.contexts)
    series = {name: [times[f"{name} {context}"] for context in contexts] for name in MODELS}
    power = exponent(contexts)

    def difference(medians: Floats) -> Floats:
        return power(medians[..., :count]) - power(medians[..., count:])

    checks = []
    for name, low, high in (("fixed", *FLAT), ("softmax", RISES, None)):
        value, interval = estimate(series[name], power)
        checks.append(Check(f"time, {name} ({MODELS[name][0]})", value, low, high, "power", "", interval))
    for above, below in (("hybrid", "fixed"), ("softmax", "hybrid")):
        value, interval = estimate(series[above] + series[below], difference)
        checks.append(Check(f"time, {above} less {below}", value, APART, None, "power", "", interval))
    per_token = 1e3 / shape.tokens
    shown = {name: ", ".join(f"{np.median(t) * per_token:.3g}" for t in series[name]) for name in MODELS}
    about = f"contexts {', '.join(map(str, contexts))}; batch {shape.batch}, {shape.repeats} rounds; ms a token: "
    about += "; ".join(f"{name} {row}" for name, row in shown.items())
    return [_with_detail(check, about) for check in checks]


def _with_detail(check: Check, detail: str) -> Check:
    return Check(check.name, check.value, check.low, check.high, check.unit, detail, check.interval)


def _bytes(held: dict[tuple[str, int], int], shape: Decoding) -> list[Check]:
    """Growth of the held state from the shortest to the longest context, per sequence and token: counted, so exact."""
    first, last = shape.contexts[0], shape.contexts[-1]
    grown = {name: (held[name, last] - held[name, first]) / shape.batch / (last - first) for name in MODELS}
    detail = "; ".join(f"{name} {held[name, last] / shape.batch / 2**20:.3g} MiB" for name in MODELS)
    detail = f"a sequence at {last} tokens holds {detail}"
    return [
        Check("bytes, fixed (kda)", grown["fixed"], 0, 0, "bytes a token", detail),
        Check("bytes, softmax (gpt2)", grown["softmax"], 1, None, "bytes a token", detail),
        Check("bytes, hybrid over softmax", grown["hybrid"] / grown["softmax"], 0.25, 0.25, "share", detail),
    ]
