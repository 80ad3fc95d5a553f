"""What a model answers, query by query: validation numbers and the records of the test stream.

B batch, T time, Q queries per example, P longest prompt of a query, D width, N vocabulary.

`sequential` scores every query where it stands, after the queries before it. `forked` scores each query from one saved
state: the model reads the shared context once, then only that query's own prompt, so that no query writes, rehearses or
delays another. In forked records `position`, `start` and `lag_tokens` are those of the text that the model then saw.
"""

from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.models.backbone import Backbone
from mnemolab.tasks.base import QUERY_COLUMNS, Batch, Split, Task
from mnemolab.tasks.outcomes import OUTCOMES, classify, presented
from mnemolab.trainers.data import sample_range

__all__ = ["evaluate", "query_logits", "score"]

CHUNK_TOKENS = 1 << 16  # examples are scored in chunks of about this many tokens
CHUNK_LOGITS = 1 << 25  # and of about this many logits
NOT_A_TOKEN = -1


def _chunk(task: Task) -> int:
    length: int = task.length  # type: ignore[attr-defined]
    slots = task.sample(torch.arange(1), split="validation").queries["position"].shape[1]
    return max(1, min(CHUNK_TOKENS // length, CHUNK_LOGITS // max(1, slots * task.vocabulary.size)))


def _cast(device: torch.device, precision: str) -> torch.autocast:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def _head(model: Backbone, hidden: Tensor) -> Tensor:
    """(..., D) -> (..., N) in fp32, whatever autocast says around it."""
    with torch.autocast(hidden.device.type, enabled=False):
        return F.linear(hidden.float(), model.head_weight.float())


@torch.no_grad()
def evaluate(model: Backbone, batch: Batch, task: Task, precision: str = "fp32") -> dict[str, float]:
    """Mean loss and accuracy over the scored positions of `batch`, each query read where it stands."""
    loss = correct = count = 0.0
    size = _chunk(task)
    was_training = model.training
    model.eval()
    for first in range(0, len(batch), size):
        inputs, targets = batch.inputs[first : first + size], batch.targets[first : first + size]
        scored = targets != -100
        with _cast(inputs.device, precision):
            hidden = model.features(inputs)[0]
        logits = _head(model, hidden[scored])
        wanted = targets[scored]
        loss += F.cross_entropy(logits, wanted, reduction="sum").item()
        correct += (logits.argmax(-1) == wanted).sum().item()
        count += wanted.numel()
    model.train(was_training)
    return {"loss": loss / count, "accuracy": correct / count}


def query_logits(model: Backbone, batch: Batch, scoring: str) -> Tensor:
    """(B,Q,N) fp32: the logits that answer each query; zeros in unused slots.

    Raises BadRequest when `scoring` is `forked` and reading and asking interleave (`fork` is -1).
    """
    position, start, fork = (batch.queries[name] for name in ("position", "start", "fork"))
    used = position >= 0
    if scoring == "sequential":
        hidden = model.features(batch.inputs)[0]
        chosen = hidden.gather(1, position.clamp(min=0)[..., None].expand(-1, -1, hidden.shape[-1]))
        return _head(model, chosen) * used[..., None]
    if bool((fork[used] < 0).any()):
        raise BadRequest("scoring=forked: reading and asking interleave in this task; use scoring=sequential")
    # one context length a group; most tasks have a single one
    context = torch.where(used, fork, -1).amax(1)
    logits: Tensor | None = None
    for length in context.unique().tolist():
        rows = (context == length).nonzero()[:, 0]
        if length < 0:  # an example without queries
            continue
        part = _forked(model, batch.inputs[rows], start[rows], position[rows], used[rows], length)
        if logits is None:
            logits = part.new_zeros(*position.shape, part.shape[-1])
        logits[rows] = part
    assert logits is not None, "a batch without a single query"
    return logits


def _forked(model: Backbone, inputs: Tensor, start: Tensor, position: Tensor, used: Tensor, context: int) -> Tensor:
    """(B,Q,N). Prompts are padded on the right: a causal model's answer does not see what comes after it."""
    batch, queries = position.shape
    first, last = (torch.where(used, x, context) for x in (start, position))
    reach = int((last - first).amax()) + 1
    at = (first[..., None] + torch.arange(reach, device=inputs.device)).clamp(max=inputs.shape[1] - 1)
    prompts = inputs[:, None].expand(-1, queries, -1).gather(2, at).flatten(0, 1)
    state = None
    if context:
        _, state = model.features(inputs[:, :context], return_state=True)
        state = model.repeat_state(state, queries)
    hidden, _ = model.features(prompts, state)
    answer = (last - first).flatten()
    chosen = hidden[torch.arange(batch * queries, device=inputs.device), answer]
    return _head(model, chosen).unflatten(0, (batch, queries)) * used[..., None]


@torch.no_grad()
def score(
    model: Backbone,
    task: Task,
    examples: int,
    seed: int,
    *,
    scoring: str = "forked",
    split: Split = "test",
    device: torch.device | str = "cpu",
    precision: str = "fp32",
) -> pd.DataFrame:
    """One row a query of examples 0 to `examples - 1` of (split, seed).

    Columns: example, query, every query column of the task, stale (list of tokens, newest first), prediction, outcome,
    correct, stale_age (1: the newest stale value was answered; 0: no stale value), rank (0: the target scores best),
    log_odds_stale and log_odds_other (logit of the target minus that of the best stale and the best other presented
    value; NaN where there is none), loss (nats), chance, scoring.
    """
    modes = ("forked", "sequential") if scoring == "both" else (scoring,)
    was_training = model.training
    model.eval()
    frames = []
    size = _chunk(task)
    for mode in modes:
        for first in range(0, examples, size):
            batch = sample_range(task, first, min(examples, first + size), split, seed, device)
            with _cast(batch.inputs.device, precision):
                logits = query_logits(model, batch, mode)
            frames.append(pd.DataFrame(_columns(batch, task, logits, mode, first)))
    model.train(was_training)
    return pd.concat(frames, ignore_index=True)


def _columns(batch: Batch, task: Task, logits: Tensor, mode: str, first: int) -> dict[str, Any]:
    queries = batch.queries
    used = queries["position"] >= 0
    target, stale = queries["target"].clamp(min=0), queries["stale"]
    prediction = torch.where(used, logits.argmax(-1), NOT_A_TOKEN)
    outcome = classify(batch, prediction, task.vocabulary)

    wanted = logits.gather(-1, target[..., None])  # (B,Q,1)
    rank = (logits > wanted).sum(-1)
    loss = logits.logsumexp(-1) - wanted[..., 0]
    # counted, because several padded slots point at token 0 and must not clear a real one
    held = torch.zeros_like(logits, dtype=torch.int32)
    is_stale = held.scatter_add_(-1, stale.clamp(min=0), (stale >= 0).to(torch.int32)) > 0
    is_stale.scatter_(-1, target[..., None], False)
    other = torch.zeros_like(is_stale)
    values = task.vocabulary.values
    other[..., values.start : values.stop] = presented(batch, task.vocabulary)[:, None]
    other &= ~is_stale
    other.scatter_(-1, target[..., None], False)
    stale = F.pad(stale, (0, 1), value=NOT_A_TOKEN)  # a task may have no stale column at all
    hit = (stale == prediction[..., None]) & (stale >= 0)  # (B,Q,M)
    age = torch.where(hit.any(-1), hit.int().argmax(-1) + 1, 0) * (prediction != queries["target"])

    columns = {name: queries[name] for name in queries if name != "stale"}
    if mode == "forked":
        shift = queries["start"] - queries["fork"]
        columns |= {name: queries[name] - shift for name in ("position", "start", "lag_tokens")}
    columns |= {
        "prediction": prediction,
        "correct": prediction == queries["target"],
        "stale_age": age,
        "rank": rank,
        "log_odds_stale": _margin(wanted, logits, is_stale),
        "log_odds_other": _margin(wanted, logits, other),
        "loss": loss,
        "chance": task.chance(batch),
    }
    example = torch.arange(first, first + len(batch), device=used.device)[:, None].expand_as(used)
    slot = torch.arange(used.shape[1], device=used.device).expand_as(used)
    flat: dict[str, Any] = {"example": example[used].cpu().numpy(), "query": slot[used].cpu().numpy()}
    flat |= {name: column[used].cpu().numpy() for name, column in columns.items()}
    flat["stale"] = [[token for token in row if token >= 0] for row in stale[used].tolist()]
    flat["outcome"] = [OUTCOMES[code] for code in outcome[used].tolist()]
    flat["scoring"] = mode
    missing = [name for name in QUERY_COLUMNS if name not in flat]
    if missing:
        raise BadRequest(f"task {task.name}: its query table lacks {', '.join(missing)}")
    return flat


def _margin(wanted: Tensor, logits: Tensor, rivals: Tensor) -> Tensor:
    """(B,Q): logit of the target minus the best logit among `rivals` (B,Q,N); NaN where there is no rival."""
    best = logits.masked_fill(~rivals, -torch.inf).amax(-1)
    return torch.where(rivals.any(-1), wanted[..., 0] - best, torch.nan)
