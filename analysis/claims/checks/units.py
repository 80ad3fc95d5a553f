"""Two parts of Kimi K3 that cost time: the SiTU activation, and attention residuals."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from mnemolab.analysis.claims.checks.check import Check, Undecidable, device_kind, first_seed, preset
from mnemolab.analysis.claims.checks.timing import estimate, ratio, replayed, rounds
from mnemolab.kernels import situ_glu
from mnemolab.models import Backbone, make_model
from mnemolab.models.accounting import skeleton

__all__ = ["attnres_latency", "plain_situ", "situ_fused"]

# ---- SiTU

# (tokens, hidden units): one routed expert of K3 is 3072 wide; and rounds, calls a round
SITU = {"cuda": {"quick": ((16_384, 3072), 11, 5), "full": ((65_536, 3072), 31, 10)}}
# "well above" SwiGLU, and "no more than" it up to launches
WELL_ABOVE, NO_MORE = 1.5, 1.15


def situ_fused(tier: str, device: str) -> list[Check]:
    """Forward and backward of SiTU-GLU in bfloat16, unfused, fused and compiled, over SwiGLU as torch runs it eagerly.

    Raises Undecidable without a CUDA device: what fusing saves is memory traffic between kernels.
    """
    if device_kind(device) != "cuda":
        raise Undecidable("the fused form is a CUDA kernel and this device has none", "a CUDA device")
    (size, repeats, calls), seed = preset(SITU, tier, device), first_seed(tier)
    forms: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "swiglu": lambda gate, up: silu(gate) * up,
        "unfused": plain_situ,
        "fused": situ_glu,
        "compiled": torch.compile(plain_situ),
    }
    g = torch.Generator().manual_seed(seed)
    gate, up = (torch.randn(size, generator=g).to(device, torch.bfloat16).requires_grad_() for _ in range(2))
    cotangent = torch.ones_like(gate)

    def case(form: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], object]:
        def run() -> None:
            for _ in range(calls):
                torch.autograd.grad(form(gate, up), (gate, up), cotangent)

        return run

    times = rounds({name: case(form) for name, form in forms.items()}, repeats, device)
    detail, checks = f"{size[0]} tokens, {size[1]} hidden units, bfloat16, fwd+bwd, {repeats} rounds", []
    for name, low, high in (("unfused", WELL_ABOVE, None), ("fused", None, NO_MORE), ("compiled", None, NO_MORE)):
        value, interval = estimate([times[name], times["swiglu"]], ratio)
        checks.append(Check(f"{name} SiTU over SwiGLU", value, low, high, "ratio", detail, interval))
    return checks


def plain_situ(gate: Tensor, up: Tensor, gate_bound: float = 4.0, up_bound: float = 25.0) -> Tensor:
    """SiTU-GLU as the equation reads, one kernel an operation, in float32 (Kimi K3, 2607.24653, equation 12)."""
    g, u = gate.float(), up.float()
    return (gate_bound * torch.tanh(g / gate_bound) * torch.sigmoid(g) * (up_bound * torch.tanh(u / up_bound))).to(
        gate.dtype
    )


# ---- attention residuals


@dataclass(frozen=True)
class Latency:
    """A preset: model, (B,T) of the prompt, sequences decoded together, tokens a round, rounds. There are
    eight blocks of attention residuals, about as many as in Kimi Linear and K3."""

    width: int
    depth: int
    prompt: tuple[int, int]
    batch: int
    tokens: int
    repeats: int


LATENCY = {
    "cpu": {"quick": Latency(1024, 4, (1, 64), 4, 2, 21), "full": Latency(2304, 4, (1, 64), 4, 2, 11)},
    # 2304 is Kimi Linear's width, at which the papers state it
    "cuda": {"quick": Latency(2304, 8, (8, 1024), 64, 4, 15), "full": Latency(2304, 16, (16, 1024), 64, 8, 31)},
}
# "a few percent"
FEW_PERCENT = 1.05


def attnres_latency(tier: str, device: str) -> list[Check]:
    """Time of a prompt and of a decoded token with block attention residuals, over plain residuals; all else equal."""
    shape, seed = preset(LATENCY, tier, device), first_seed(tier)
    dtype = torch.bfloat16 if device_kind(device) == "cuda" else torch.float32
    models = _models(shape, seed, device, dtype)
    B, T = shape.prompt
    cases = {f"prompt {name}": _prompt(model, B, T, device) for name, model in models.items()}
    cases |= {f"token {name}": _token(model, shape, device) for name, model in models.items()}
    times = rounds(cases, shape.repeats, device)
    about = f"kda, width {shape.width}, depth {shape.depth}, {str(dtype)[6:]}, {shape.repeats} rounds"
    details = {"prompt": f"{B} x {T} tokens; {about}", "token": f"batch {shape.batch}; {about}"}
    checks = []
    for what, detail in details.items():
        value, interval = estimate([times[f"{what} attention"], times[f"{what} add"]], ratio)
        name = f"{what}: attention residuals over plain"
        checks.append(Check(name, value, None, FEW_PERCENT, "ratio", detail, interval))
    return checks


def _models(shape: Latency, seed: int, device: str, dtype: torch.dtype) -> dict[str, Backbone]:
    """The same weights under both residual rules, held once."""
    heads = shape.width // 128
    sizes: dict[str, Any] = {
        "vocab_size": 64,
        "width": shape.width,
        "depth": shape.depth,
        "heads": heads,
        "head_dim": 128,
    }
    # eight blocks at any depth from 4 on
    block = max(1, shape.depth // 4)
    # made where it runs, and not drawn on a processor and moved
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(seed)
        model = make_model("kda", **sizes, residual="attention", residual_block=block).eval().to(dtype)
    plain = skeleton(replace(model.config, residual="add")).eval()
    weights = {name: value for name, value in model.state_dict().items() if not name.startswith("residual.")}
    plain.load_state_dict(weights, assign=True)
    return {"attention": model, "add": plain}


def _prompt(model: Backbone, B: int, T: int, device: str) -> Callable[[], object]:
    inputs = torch.arange(B * T, device=device).view(B, T) % model.config.vocab_size

    def run() -> None:
        with torch.no_grad():
            model.prefill(inputs)

    return replayed(run, device)


def _token(model: Backbone, shape: Latency, device: str) -> Callable[[], object]:
    tokens = torch.arange(shape.batch, device=device) % model.config.vocab_size
    with torch.no_grad():
        _, state = model.step(tokens)

    def run() -> None:
        with torch.no_grad():
            for _ in range(shape.tokens):
                model.step(tokens, state)

    return replayed(run, device)
