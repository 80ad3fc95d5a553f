"""Equalities that hold exactly, up to float64 rounding: caches, chunks, attention residuals, and where order comes from."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from mnemolab.analysis.claims.checks.check import Check, first_seed, preset
from mnemolab.kernels import memory_scan
from mnemolab.models import STAGES, Backbone, make_model
from mnemolab.models.config import WrappedConfig

__all__ = ["RULES", "attnres_zero_plain", "chunk_exact", "kv_cache_equal", "order_from_recurrence", "small_model"]

SIZES: dict[str, Any] = {"vocab_size": 17, "width": 16, "heads": 2, "head_dim": 8}
# of the largest number compared: float64 sums in another order
TOLERANCE = 1e-10
# a difference that rounding cannot make: ten million times the float64 tolerance
SEPARATES = 1e-3

# stage -> kinds of log_decay, erase, write, and whether the output is divided by the sum of weights
RULES = {
    "linear_attention": ("none", "none", "none", True),
    "linear_attention, no denominator": ("none", "none", "none", False),
    "mamba2": ("scalar", "none", "scalar", False),
    "gla": ("channel", "none", "none", False),
    "deltanet": ("none", "scalar", "scalar", False),
    "gated_deltanet": ("scalar", "scalar", "scalar", False),
    "kda": ("channel", "scalar", "scalar", False),
    "gated_deltanet2": ("channel", "channel", "channel", False),
}

_ANY = ("cpu", "cuda")
LENGTH = {kind: {"quick": 24, "full": 200} for kind in _ANY}
CHUNKS = {kind: {"quick": (1, 2, 16, 64), "full": (1, 2, 4, 8, 16, 32, 64, 128, 256)} for kind in _ANY}
# lengths that no chunk but 1 divides
CHUNKED_LENGTH = {kind: {"quick": 71, "full": 301} for kind in _ANY}
BLOCKS = {kind: {"quick": (1, 3, 100), "full": (1, 2, 3, 6, 100)} for kind in _ANY}
PERMUTATIONS = {kind: {"quick": 8, "full": 100} for kind in _ANY}


def small_model(name: str, seed: int, device: str, **options: Any) -> Backbone:
    """A small stage in float64, every parameter off its start so that zeros and ones hide nothing. The global generator is
    left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_model(name, **{**SIZES, **options}).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(device, torch.float64)


def some_tokens(batch: int, length: int, seed: int, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randint(SIZES["vocab_size"], (batch, length), generator=generator).to(device)


def relative(found: Tensor, wanted: Tensor) -> float:
    """Largest difference over the largest wanted number."""
    return float((found - wanted).abs().max() / wanted.abs().max())


# ---- caches


@torch.no_grad()
def kv_cache_equal(tier: str, device: str) -> list[Check]:
    """One check a stage: prefill then tokens one by one, against one pass over everything.

    The worst of the stage's recipes, of tokens alone (no prefill) and of prefill then tokens.
    """
    length, checks = preset(LENGTH, tier, device), []
    for name in STAGES:
        stage = STAGES[name]
        recipes = [n for n, recipe in stage.recipes.items() if not isinstance(recipe.mixers[0], WrappedConfig)]
        if not recipes:
            continue
        worst = max(_cache_difference(name, recipe, length, first_seed(tier), device) for recipe in recipes)
        detail = f"{' and '.join(recipes)}, {length} tokens, prefill of 0 and {length // 3}, float64"
        checks.append(Check(name, worst, None, TOLERANCE, "of the largest logit", detail))
    return checks


def _cache_difference(name: str, recipe: str, length: int, seed: int, device: str) -> float:
    model = small_model(name, seed, device, recipe=recipe)
    inputs = some_tokens(2, length, seed, device)
    whole, worst = model(inputs), 0.0
    for given in (0, length // 3):
        parts, state = [], None
        if given:
            start, state = model.prefill(inputs[:, :given])
            parts = list(start.unbind(1))
        for t in range(given, length):
            logits, state = model.step(inputs[:, t], state)
            parts.append(logits)
        worst = max(worst, relative(torch.stack(parts, 1), whole))
    return worst


# ---- chunks


def chunk_exact(tier: str, device: str, *, backend: str = "chunked") -> list[Check]:
    """One check a rule: the chunked form against the loop, worst over chunk sizes, for outputs, final state and all gradients."""
    sizes, length = preset(CHUNKS, tier, device), preset(CHUNKED_LENGTH, tier, device)
    checks = []
    for rule in RULES:
        operands = _operands(rule, length, first_seed(tier), device)
        wanted = _everything(rule, operands, "loop", None)
        worst = 0.0
        for C in sizes:
            found = _everything(rule, operands, backend, C)
            worst = max(worst, *(relative(a, b) for a, b in zip(found, wanted, strict=True)))
        detail = (
            f"outputs, final state, {len(operands)} gradients; T={length}, C in {', '.join(map(str, sizes))}; float64"
        )
        checks.append(Check(rule, worst, None, TOLERANCE, "of the largest number", detail))
    return checks


def _operands(rule: str, T: int, seed: int, device: str, B: int = 2, H: int = 2, K: int = 8, V: int = 6) -> dict:
    """Leaves in float64: unit keys, gates from almost none to a half-life of a third of a token, and a first state."""
    decay, erase, write, positive = RULES[rule]
    g = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=g, dtype=torch.float64)

    q, k = normalize(normal(B, T, H, K), dim=-1), normalize(normal(B, T, H, K), dim=-1)
    made = {"q": q.abs() if positive else q, "k": k.abs() if positive else k, "v": normal(B, T, H, V)}
    made["state"] = normal(B, H, K, V)
    if positive:
        made["denominator"] = normal(B, H, K).abs()
    for name, kind, channels in (("log_decay", decay, K), ("erase", erase, K), ("write", write, V)):
        if kind != "none":
            u = torch.rand(B, T, H, *([channels] if kind == "channel" else []), generator=g, dtype=torch.float64)
            made[name] = -2 * u**4 if name == "log_decay" else u
    return {name: x.to(device).requires_grad_() for name, x in made.items()}


def _everything(rule: str, x: dict[str, Tensor], backend: str, C: int | None) -> list[Tensor]:
    """Output, final state, and the gradients of a fixed weighting of both."""
    normalizes = RULES[rule][3]
    first = (x["state"], x["denominator"]) if normalizes else x["state"]
    o, state = memory_scan(
        x["q"], x["k"], x["v"], log_decay=x.get("log_decay"), erase=x.get("erase"), write=x.get("write"),
        normalize=normalizes, initial_state=first, output_final_state=True, chunk_size=C, backend=backend,
    )  # fmt: skip
    results = [o, *(state if normalizes else (state,))]
    loss = sum((y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).view_as(y)).sum() for y in results)
    assert isinstance(loss, Tensor)
    return [y.detach() for y in results] + list(torch.autograd.grad(loss, list(x.values())))


# ---- attention residuals


@torch.no_grad()
def attnres_zero_plain(tier: str, device: str, *, query: float = 0.0) -> list[Check]:
    """With zero pseudo-queries, block attention residuals of any block size against plain residuals with the same weights.

    The norms' epsilon is 0: a uniform mean is the residual stream over a constant, which a norm removes up to its epsilon.
    `query` is what all pseudo-queries are set to.
    """
    seed = first_seed(tier)
    cases: list[tuple[str, dict[str, Any], int]] = [
        ("kda", {"depth": 4}, block) for block in preset(BLOCKS, tier, device)
    ]
    cases.append(("kimi_k3", {"recipe": "published", "depth": 5}, 4))
    inputs, checks = some_tokens(2, 20, seed, device), []
    for name, options, block in cases:
        options = {**options, "norm_eps": 0.0}
        model = small_model(name, seed, device, residual="attention", residual_block=block, **options)
        plain = small_model(name, seed, device, residual="add", **options)
        weights = {key: value for key, value in model.state_dict().items() if not key.startswith("residual.")}
        plain.load_state_dict(weights)
        rule: Any = model.residual
        rule.query.fill_(query)
        difference = relative(model(inputs), plain(inputs))
        detail = f"depth {model.config.depth}, {2 * model.config.depth} sub-layers in blocks of {block}, float64"
        checks.append(Check(f"{name}, block {block}", difference, None, TOLERANCE, "of the largest logit", detail))
    return checks


# ---- order


@torch.no_grad()
def order_from_recurrence(tier: str, device: str, *, positions: str = "none", conv: int = 0) -> list[Check]:
    """What the last query's logits change by when the past is permuted: nothing under latent attention alone, and much
    when a KDA layer lies below it. No layer has a convolution or positions, so that the recurrence alone could tell."""
    seed, count = first_seed(tier), preset(PERMUTATIONS, tier, device)
    inputs = some_tokens(4, 33, seed, device)
    generator = torch.Generator().manual_seed(seed + 2)
    orders = [torch.cat((torch.randperm(32, generator=generator), torch.tensor([32]))).to(device) for _ in range(count)]
    options: dict[str, Any] = {"recipe": "published", "mlp": "swiglu", "conv": conv, "positions": positions}
    changes = {}
    for label, ratio, depth in (("latent attention alone", "0:1", 1), ("a KDA layer below it", "1:1", 2)):
        model = small_model("kimi_linear", seed, device, ratio=ratio, depth=depth, **options)
        last = model(inputs)[:, -1]
        changes[label] = [relative(model(inputs[:, order])[:, -1], last) for order in orders]
    detail = f"{count} permutations of 32 past tokens, 4 sequences, float64"
    alone, below = changes.values()
    unit = "of the largest logit"
    return [
        Check("latent attention alone: largest change", max(alone), None, TOLERANCE, unit, detail),
        Check("a KDA layer below it: smallest change", min(below), SEPARATES, None, unit, detail),
    ]
