"""Causes: change one thing inside a trained model and see what that does to its answers.

Each intervention holds for the reading of the context and of the questions. The same test queries are answered with and
without it, so the change in accuracy is paired. B batch, T time, H heads, K key channels.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mnemolab.analysis.cells import curve
from mnemolab.errors import BadRequest, unknown
from mnemolab.models.mixers.latent import LatentMixer
from mnemolab.models.mixers.memory import MemoryMixer, Operands
from mnemolab.models.mixers.softmax import SoftmaxMixer
from mnemolab.models.residual import AttentionResidual
from mnemolab.tasks.outcomes import OUTCOMES, classify
from mnemolab.trainers.scoring import query_logits

if TYPE_CHECKING:
    from mnemolab.models.backbone import Backbone
    from mnemolab.tasks.base import Batch, Task

__all__ = ["INTERVENTIONS", "Intervention", "applicable", "changes", "effects"]

# exp of it is 1e-26: nothing of the state is left, and every backend takes it
_WIPE = -60.0


@dataclass(frozen=True)
class Setting:
    """What an intervention may need to know: mean log-decay by layer (H[,K]), where to wipe, how long the context is."""

    means: dict[int, Tensor] = field(default_factory=dict)
    wipe_at: int = 0
    lengths: tuple[int, ...] = ()
    seed: int = 0


Change = Callable[[int, Operands, Setting], Operands]


@dataclass(frozen=True)
class Intervention:
    """`needs(model)` says why it cannot be done ('' when it can); `change` acts on operands, or `within` on the model."""

    summary: str
    needs: Callable[["Backbone"], str]
    change: Change | None = None
    within: Callable[["Backbone"], Any] | None = None


def _memory(model: "Backbone") -> list[MemoryMixer]:
    return [block.mixer for block in model.layers if isinstance(block.mixer, MemoryMixer)]


def _needs_memory(model: "Backbone") -> str:
    return "" if _memory(model) else "no layer of this model is a memory recurrence"


def _needs_decay(model: "Backbone") -> str:
    return "" if any(m.decay is not None for m in _memory(model)) else "this model has no decay"


def _needs_channels(model: "Backbone") -> str:
    return "" if any(m.decay_up is not None for m in _memory(model)) else "this model has no decay per channel"


def _needs_heads(model: "Backbone") -> str:
    return _needs_decay(model) or ("" if any(m.heads > 1 for m in _memory(model)) else "this model has one head")


def _needs_erase(model: "Backbone") -> str:
    return "" if any(m.control_sizes["erase"] for m in _memory(model)) else "this model erases nothing"


def _needs_untied(model: "Backbone") -> str:
    untied = any(m.control_sizes["erase"] and m.control_sizes["write"] for m in _memory(model))
    return "" if untied else "this model has one gate for erasing and writing, or none"


def _is_softmax(block: Any) -> bool:
    return isinstance(block.mixer, SoftmaxMixer | LatentMixer)


def _needs_hybrid(model: "Backbone") -> str:
    both = _memory(model) and any(_is_softmax(b) for b in model.layers)
    return "" if both else "this model is no hybrid of memory and softmax layers"


def _needs_residual(model: "Backbone") -> str:
    return "" if isinstance(model.residual, AttentionResidual) else "this model has plain residuals"


def _gate(change: Callable[[Tensor, int, Setting], Tensor]) -> Change:
    """A change of the log-decay alone; layers without one are left as they are."""

    def act(layer: int, operands: Operands, setting: Setting) -> Operands:
        if operands.log_decay is None:
            return operands
        return replace(operands, log_decay=change(operands.log_decay, layer, setting))

    return act


def _over_channels(g: Tensor, layer: int, setting: Setting) -> Tensor:
    return g if g.dim() == 3 else g.mean(-1)


def _over_heads(g: Tensor, layer: int, setting: Setting) -> Tensor:
    return g.mean(2, keepdim=True).expand_as(g).contiguous()


def _frozen(g: Tensor, layer: int, setting: Setting) -> Tensor:
    return setting.means[layer].to(g).expand_as(g).contiguous()


def _shuffled(g: Tensor, layer: int, setting: Setting) -> Tensor:
    if g.dim() == 3:
        return g
    generator = torch.Generator().manual_seed(setting.seed + layer)
    order = torch.stack([torch.randperm(g.shape[-1], generator=generator) for _ in range(g.shape[2])]).to(g.device)
    return g.gather(-1, order.expand_as(g))


def _no_decay(layer: int, operands: Operands, setting: Setting) -> Operands:
    return replace(operands, log_decay=None)


def _erase_off(layer: int, operands: Operands, setting: Setting) -> Operands:
    return replace(operands, erase=None)


def _erase_full(layer: int, operands: Operands, setting: Setting) -> Operands:
    if operands.erase is None:
        return operands
    ones = torch.ones_like(operands.erase)
    return replace(operands, erase=ones, write=None if operands.write is None else torch.ones_like(operands.write))


def _tied(layer: int, operands: Operands, setting: Setting) -> Operands:
    if operands.erase is None or operands.write is None:
        return operands
    means = [g if g.dim() == 3 else g.mean(-1) for g in (operands.erase, operands.write)]
    beta = (means[0] + means[1]) / 2
    return replace(operands, erase=beta, write=beta)


def _wiped(layer: int, operands: Operands, setting: Setting) -> Operands:
    T = operands.k.shape[1]
    if T not in setting.lengths or T <= setting.wipe_at:
        return operands  # a question, not the context
    g = operands.log_decay
    g = operands.k.new_zeros(operands.k.shape[:3], dtype=torch.float32) if g is None else g.clone()
    g[:, setting.wipe_at] = _WIPE
    return replace(operands, log_decay=g)


@contextmanager
def _without_softmax(model: "Backbone") -> Iterator[None]:
    hooks = [
        block.mixer.register_forward_hook(lambda _m, _a, out: (torch.zeros_like(out[0]), out[1]))
        for block in model.layers
        if _is_softmax(block)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _uniform_residuals(model: "Backbone") -> Iterator[None]:
    rule = model.residual
    assert isinstance(rule, AttentionResidual)
    kept = rule.query.detach().clone()
    try:
        with torch.no_grad():
            rule.query.zero_()
        yield
    finally:
        with torch.no_grad():
            rule.query.copy_(kept)


INTERVENTIONS: dict[str, Intervention] = {
    "mean-over-channels": Intervention(
        "average the log-decay over key channels", _needs_channels, _gate(_over_channels)
    ),
    "mean-over-heads": Intervention("average the log-decay over heads", _needs_heads, _gate(_over_heads)),
    "shuffle-channels": Intervention("give each channel another one's decay", _needs_channels, _gate(_shuffled)),
    "freeze-decay": Intervention("hold the log-decay at its mean over tokens", _needs_decay, _gate(_frozen)),
    "no-decay": Intervention("remove the decay", _needs_decay, _no_decay),
    "no-erase": Intervention("set beta to 0 where it erases; writes stay", _needs_erase, _erase_off),
    "full-erase": Intervention("set beta to 1", _needs_erase, _erase_full),
    "tie-erase-write": Intervention("one gate for erasing and writing, their mean", _needs_untied, _tied),
    "wipe-state": Intervention("empty the state at one position of the context", _needs_memory, _wiped),
    "drop-softmax": Intervention("silence the softmax layers of a hybrid", _needs_hybrid, within=_without_softmax),
    "uniform-residuals": Intervention("force uniform attention residuals", _needs_residual, within=_uniform_residuals),
}


def applicable(model: "Backbone") -> dict[str, str]:
    """Intervention -> why it cannot be done on this model; '' where it can."""
    return {name: intervention.needs(model) for name, intervention in INTERVENTIONS.items()}


@torch.no_grad()
def effects(
    model: "Backbone",
    task: "Task",
    names: Iterable[str] | None = None,
    *,
    examples: int = 256,
    seed: int = 0,
    scoring: str = "forked",
    wipe_at: int | None = None,
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Answers to the test queries of examples 0 to `examples` - 1, with and without each intervention.

    Returns one row a query and intervention (intervention, example, query, correct, before, change, stale, stale_before)
    and the interventions left out, with the reason. `wipe_at` is a token of the context, its middle when None. Raises
    BadRequest for an unknown intervention or a position outside the context.
    """
    wanted = list(INTERVENTIONS) if names is None else list(names)
    for name in wanted:
        if name not in INTERVENTIONS:
            raise unknown("intervention", name, INTERVENTIONS)
    device = next(model.parameters()).device
    batch = task.sample(torch.arange(examples), split="test", seed=seed, device=device)
    was_training = model.training
    model.eval()
    setting = _setting(model, batch, wipe_at, scoring, seed)
    try:
        before = _answers(model, task, batch, scoring)
        frames, skipped = [], {}
        for name in wanted:
            reason = INTERVENTIONS[name].needs(model)
            if reason:
                skipped[name] = reason
                continue
            with _held(model, INTERVENTIONS[name], setting):
                after = _answers(model, task, batch, scoring)
            frames.append(_rows(name, batch, before, after))
    finally:
        model.train(was_training)
    columns = ["intervention", "example", "query", "correct", "before", "change", "stale", "stale_before"]
    return (pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)), skipped


def changes(rows: pd.DataFrame, by: Sequence[str] = ("arm",), seed: int = 0) -> pd.DataFrame:
    """Paired change in accuracy by intervention, over runs and sequences: columns `by`, intervention, change, low, high,
    before, after, stale_change, runs, queries. `rows` are those of `effects` with run_id and the columns `by` added."""
    keys = [*by, "intervention"]
    out = curve(rows, None, "change", keys, seed=seed).drop(columns="cell").rename(columns={"mean": "change"})
    for name, column in (
        ("before", "before"),
        ("after", "correct"),
        ("stale", "stale"),
        ("stale_before", "stale_before"),
    ):
        mean = curve(rows, None, column, keys, draws=1)[[*keys, "mean"]].rename(columns={"mean": name})
        out = out.merge(mean, on=keys)
    out["stale_change"] = out.pop("stale") - out.pop("stale_before")
    return out


def _setting(model: "Backbone", batch: "Batch", wipe_at: int | None, scoring: str, seed: int) -> Setting:
    forks = batch.queries["fork"][batch.queries["position"] >= 0].unique().tolist()
    length = batch.inputs.shape[1]
    contexts = tuple(forks) if scoring == "forked" else (length,)
    shortest = min((f for f in forks if f > 0), default=length)
    at = shortest // 2 if wipe_at is None else wipe_at
    if not 0 <= at < shortest:
        raise BadRequest(f"wipe_at={at}: outside the context; use 0 to {shortest - 1}")
    from mnemolab.analysis.decay.traces import trace

    few = batch.inputs[: min(len(batch), 64)]
    means = {t.layer: t.log_decay.mean((0, 1)) for t in trace(model, few) if t.log_decay is not None}
    return Setting(means, at, contexts, seed)


@contextmanager
def _held(model: "Backbone", intervention: Intervention, setting: Setting) -> Iterator[None]:
    act = intervention.change
    inside = nullcontext() if act is None else model.intervene(lambda layer, told: act(layer, told, setting))
    outside = nullcontext() if intervention.within is None else intervention.within(model)
    with outside, inside:
        yield


def _answers(model: "Backbone", task: "Task", batch: "Batch", scoring: str) -> tuple[np.ndarray, np.ndarray]:
    """(correct, stale), each (B,Q)."""
    parts = []
    step = max(1, (1 << 16) // batch.inputs.shape[1])
    for first in range(0, len(batch), step):
        rows = slice(first, first + step)
        part = type(batch)(batch.inputs[rows], batch.targets[rows], {n: c[rows] for n, c in batch.queries.items()})
        predicted = query_logits(model, part, scoring).argmax(-1)
        predicted = torch.where(part.queries["position"] >= 0, predicted, -1)
        parts.append(classify(part, predicted, task.vocabulary).cpu())
    outcome = torch.cat(parts).numpy()
    return outcome == OUTCOMES.index("correct"), outcome == OUTCOMES.index("stale")


def _rows(
    name: str, batch: "Batch", before: tuple[np.ndarray, np.ndarray], after: tuple[np.ndarray, np.ndarray]
) -> pd.DataFrame:
    used = (batch.queries["position"] >= 0).cpu().numpy()
    example, query = np.nonzero(used)
    right, was = after[0][used], before[0][used]
    return pd.DataFrame(
        {
            "intervention": name,
            "example": example,
            "query": query,
            "correct": right,
            "before": was,
            "change": right.astype(np.int8) - was.astype(np.int8),
            "stale": after[1][used],
            "stale_before": before[1][used],
        }
    )
