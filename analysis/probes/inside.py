"""Probes that open the trained models: gates, half-lives, state, and what changing a gate does."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mnemolab.analysis import decay as gates
from mnemolab.analysis import interventions as causes
from mnemolab.analysis.decay import Trace
from mnemolab.analysis.probes import Finding
from mnemolab.analysis.records import Study
from mnemolab.analysis.report import Table
from mnemolab.errors import BadRequest
from mnemolab.models.backbone import Backbone
from mnemolab.tasks.base import Batch, Task

__all__ = ["Opened", "decay", "interventions", "opened"]

# First queries are one a sequence and not all have a stale value.
RATIO_SEQUENCES = 256


@dataclass(frozen=True)
class Opened:
    """A run with its model and the traces of the first test sequences."""

    row: pd.Series
    model: Backbone
    task: Task
    batch: Batch
    traces: list[Trace]

    @property
    def names(self) -> dict[str, Any]:
        return {name: self.row[name] for name in ("task", "arm", "run_id", "seed")}


def opened(study: Study, sequences: int | None = None) -> Iterator[Opened]:
    """The first `study.depth.runs` runs of each task and arm, one at a time, with traces of the first test sequences (by
    default `study.depth.sequences`). Raises BadRequest for runs without a folder (foreign ones)."""
    from mnemolab.trainers.folder import load_run

    if "folder" not in study.runs:
        raise BadRequest("these records come without a model: only retention and interference can be probed")
    ordered = study.runs.sort_values("seed")
    chosen = ordered.groupby(["task", "arm"], sort=False).head(study.depth.runs) if study.depth.runs else ordered
    for _, row in chosen.sort_index().iterrows():
        run = load_run(row["folder"])
        task, model = run.task(), run.model()
        count = study.depth.sequences if sequences is None else sequences
        batch = task.sample(torch.arange(count), split="test", seed=run.config.seed)
        yield Opened(row, model, task, batch, gates.trace(model, batch.inputs))


def _opened_said(study: Study) -> str:
    """How many runs were opened, of how many."""
    most = int(study.runs.groupby(["task", "arm"], observed=True).size().max())
    here = min(study.depth.runs or most, most)
    return f"Opened: {here} of {most} run{'s' if most > 1 else ''} per model" + (
        " (--runs opens more)." if here < most else "."
    )


def decay(study: Study) -> Finding:
    """Gates by token, half-lives trained and initial, functional half-lives, state, attention, routers."""
    from mnemolab.analysis.figures import gates as figures

    parts: dict[str, list[pd.DataFrame]] = {}
    notes: list[tuple[str, str]] = []
    example = None
    for run in opened(study):
        for name, measure in _MEASURES.items():
            try:
                frame = measure(run)
            except BadRequest as reason:
                notes.append((name, f"{name}, {run.row['arm']}: {reason}"))
                continue
            if len(frame):
                parts.setdefault(name, []).append(frame.assign(**run.names))
        if example is None and any(t.log_decay is not None and t.log_decay.dim() == 4 for t in run.traces):
            example = run
    tables = {name: Table(_CAPTIONS[name], pd.concat(frames, ignore_index=True)) for name, frames in parts.items()}
    if not tables:
        raise BadRequest("decay: no run here has a layer with keys and queries")
    plots = []
    for draw, needs in (
        (figures.half_lives, "half-lives"),
        (figures.retained_writes, "retained"),
        (figures.attention_by_lag, "attention"),
        (figures.predicted_ratio, "predicted-ratio"),
    ):
        if needs in tables:
            plots += draw(tables[needs].data)
    if example is not None:
        trace = next(t for t in example.traces if t.log_decay is not None and t.log_decay.dim() == 4)
        tokens = [example.task.vocabulary.text(t) for t in example.batch.inputs[0].tolist()]
        where = str(example.row["arm"]), str(example.row["task"]), trace.layer
        plots += figures.decay_map(trace.log_decay[0].cpu().numpy(), tokens, *where)  # type: ignore[index]
    big = ("retained", "predicted-ratio")  # for their figures; the page shows summaries
    said = (
        f"{_opened_said(study)} Gates, states and attention are traced on {study.depth.sequences} test sequences a run, "
        f"predicted ratios on the first queries of {RATIO_SEQUENCES}."
    )
    return Finding("Decay", {n: t for n, t in tables.items() if n not in big}, plots, [said, *_short(notes, tables)])


def interventions(study: Study) -> Finding:
    """Every intervention that the models allow, on `study.depth.examples` test sequences, paired."""
    from mnemolab.analysis.figures.gates import intervention_effects

    frames, skipped = [], {}
    for run in opened(study, 1):
        scoring = "sequential" if run.row["scoring"] == "sequential" else "forked"
        rows, left_out = causes.effects(
            run.model,
            run.task,
            examples=study.depth.examples,
            seed=int(run.row["seed"]),
            scoring=scoring,
            wipe_at=study.depth.wipe_at,
        )
        skipped |= {f"{run.row['arm']}, {name}": reason for name, reason in left_out.items()}
        if len(rows):
            frames.append(rows.assign(**run.names))
    if not frames:
        raise BadRequest("interventions: no model here has anything to intervene on")
    table = causes.changes(pd.concat(frames, ignore_index=True), ("task", "arm"))
    reasons = pd.DataFrame({"what": list(skipped), "why": list(skipped.values())})
    tables = {"interventions": Table("Paired change in accuracy.", table)}
    if len(reasons):
        tables["left-out"] = Table("Interventions that a model does not allow.", reasons)
    where = "the middle of the context" if study.depth.wipe_at is None else f"token {study.depth.wipe_at}"
    said = (
        f"{_opened_said(study)} Each intervention is tried on the same {study.depth.examples} test sequences a run; the state "
        f"is wiped at {where}."
    )
    return Finding("Interventions", tables, intervention_effects(table), [said])


def _half_lives(run: Opened) -> pd.DataFrame:
    trained = gates.channel_table(run.traces).assign(when="trained")
    initial = gates.channel_table(gates.trace(_initial(run), run.batch.inputs)).assign(when="initial")
    return pd.concat([trained, initial], ignore_index=True)


def _initial(run: Opened) -> Backbone:
    from mnemolab.trainers.folder import load_run

    return load_run(run.row["folder"]).config.make_model()


def _dispersion(run: Opened) -> pd.DataFrame:
    frame = _half_lives(run)
    return pd.concat(
        [gates.dispersion(part).assign(when=when) for when, part in frame.groupby("when")], ignore_index=True
    )


def _by_token(run: Opened) -> pd.DataFrame:
    return gates.gates_by_token(run.traces, gates.token_kinds(run.batch.inputs, run.task.vocabulary, run.batch))


def _gamma(run: Opened) -> pd.DataFrame:
    frame = gates.channel_table(run.traces)
    if (frame["rate"] <= 0).all():
        raise BadRequest("no decay")
    return pd.DataFrame([gates.gamma_fit(frame["rate"])])


def _state(run: Opened) -> pd.DataFrame:
    written = _written(run.batch, run.task)
    # the token before a value is its key
    names = None if written is None else run.batch.inputs.gather(1, (written - 1).clamp(min=0))
    return gates.state_table(run.traces, written, _context(run.batch), names)


def _retained(run: Opened) -> pd.DataFrame:
    """Curves of what is left of a write after D tokens: gates alone, erasures alone, both."""
    context = _context(run.batch) or run.batch.inputs.shape[1]
    starts = torch.linspace(0, context // 2, 8).round().long().unique()
    rows = []
    for trace in _memory(run):
        for what, parts in _PARTS.items():
            kept = gates.retained(trace, starts, context // 2 - 1, **parts).nanmean((0, 1))  # (D,H)
            for head in range(kept.shape[1]):
                lag = np.arange(len(kept))
                rows.append(
                    pd.DataFrame({"layer": trace.layer, "head": head, "lag": lag, "kept": kept[:, head], "what": what})
                )
    return pd.concat(rows, ignore_index=True)


def _functional(run: Opened) -> pd.DataFrame:
    """Median time to half by head: gates alone, erasures alone, both."""
    T = _context(run.batch) or run.batch.inputs.shape[1]
    starts = torch.linspace(0, T - 2, min(24, T - 1)).round().long().unique()
    rows = []
    for trace in _memory(run):
        short = _first(trace, T)
        row: dict[str, np.ndarray] = {}
        for what, parts in _PARTS.items():
            times, seen = gates.functional_half_lives(short, starts, **parts)
            row[what] = gates.discrete_quantiles(times, seen, [0.5])[0]
            row[f"{what} censored"] = 1 - seen.mean(0)
        rows.append(pd.DataFrame({"layer": trace.layer, "head": np.arange(len(row["both"])), **row}))
    return pd.concat(rows, ignore_index=True)


def _attention(run: Opened) -> pd.DataFrame:
    at = run.batch.queries["position"][:, :4]
    good = (at >= 0).all(1)
    if not run.traces:
        raise BadRequest("no layer of this model has keys and queries")
    if not good.any():
        raise BadRequest("no query positions to read at")
    frames = [gates.attention_by_lag(_rows(t, good), at[good]) for t in run.traces]
    return pd.concat(frames, ignore_index=True)


def _ratio(run: Opened) -> pd.DataFrame:
    """Per first query with a stale value: stale/new weight predicted from the traces, against the logits' odds.

    The first query stands where the context ends, so no other query has written before it. `offset` is how many tokens
    after the value's the memory takes the pair in: a short convolution may delay it.
    """
    from mnemolab.trainers.scoring import query_logits

    batch = run.task.sample(torch.arange(RATIO_SEQUENCES), split="test", seed=int(run.row["seed"]))
    first = (batch.queries["start"] == batch.queries["fork"]) & (batch.queries["position"] >= 0)
    chosen = first.any(1)
    rows = torch.arange(len(batch))[chosen], first.int().argmax(1)[chosen]
    q = {name: column[rows] for name, column in batch.queries.items()}  # (N,) or, for stale, (N,M)
    good = (q["stale"][:, 0] >= 0) & (q["lag_tokens"] >= 0)
    if "ask" in q:
        good &= q["ask"] == 0
    if not bool(good.any()):
        raise BadRequest("no first query has a stale value")
    q = {name: column[good] for name, column in q.items()}
    inputs = batch.inputs[rows[0][good]]
    read, new = q["position"], q["position"] - q["lag_tokens"]
    places = torch.arange(inputs.shape[1])
    here = (inputs == q["stale"][:, :1]) & (places < new[:, None])
    stale = torch.where(here, places, -1).amax(-1)
    one = Batch(inputs, batch.targets[rows[0][good]], {n: c[:, None] for n, c in q.items()})
    with torch.no_grad():
        logits = query_logits(run.model, one, "sequential")[:, 0]
    log_odds = (logits.gather(1, q["stale"][:, :1]) - logits.gather(1, q["target"][:, None]))[:, 0]
    frames = []
    for trace in (t for t in gates.trace(run.model, inputs) if t.kind == "memory"):
        # heads are pooled before the ratio, so that a silent head does not count
        weights = gates.read_weights(trace, read[:, None]).abs().sum(-1)[:, 0]  # (N,T)
        reach = [weights.gather(1, (new + d).clamp(max=weights.shape[1] - 1)[:, None]).mean() for d in range(3)]
        offset = int(torch.stack(reach).argmax())
        fresh, held = (weights.gather(1, (at + offset).clamp(min=0)[:, None])[:, 0] for at in (new, stale))
        frame = {"layer": trace.layer, "offset": offset, "versions": q["version"].numpy() + 1}
        frame |= {"predicted": (held / fresh.clamp(min=1e-9)).numpy(), "log_odds": log_odds.numpy()}
        frames.append(pd.DataFrame(frame)[(stale >= 0).numpy()])
    if not frames:
        raise BadRequest("no layer of this model is a memory recurrence")
    return pd.concat(frames, ignore_index=True)


def _energy(run: Opened) -> pd.DataFrame:
    """Share of the state's energy at the last switch that is left at the end of the context."""
    name = next((n for n in ("switch", "placebo") if run.task.vocabulary.has(n)), None)
    if name is None:
        raise BadRequest("this task marks no switch of topic")
    context = _context(run.batch) or run.batch.inputs.shape[1]
    marks = [run.task.vocabulary.token(n) for n in ("switch", "placebo") if run.task.vocabulary.has(n)]
    hit = torch.stack([run.batch.inputs[:, :context] == m for m in marks]).any(0)
    last = torch.where(hit, torch.arange(context), -1).amax(1)
    conditions = run.batch.queries["condition"][:, 0]
    rows = []
    for trace in _memory(run):
        for where in last.unique().tolist():
            for code in conditions.unique().tolist():
                chosen = (last == where) & (conditions == code)
                if where < 1 or not bool(chosen.any()):
                    continue
                kept = gates.retained_energy(_rows(trace, chosen), where, context)
                for head in range(kept.shape[1]):
                    row = {"layer": trace.layer, "head": head, "condition": run.task.conditions[code], "switch": where}
                    rows.append(row | {"kept": float(kept[:, head].mean()), "sequences": len(kept)})
    if not rows:
        raise BadRequest("no switch inside the context")
    return pd.DataFrame(rows)


def _memory(run: Opened) -> list[Trace]:
    found = [t for t in run.traces if t.kind == "memory"]
    if not found:
        raise BadRequest("no layer of this model is a memory recurrence")
    return found


def _rows(trace: Trace, chosen: Tensor) -> Trace:
    names = ("q", "k", "v", "log_decay", "erase", "write")
    return replace(trace, **{n: None if getattr(trace, n) is None else getattr(trace, n)[chosen] for n in names})


def _first(trace: Trace, tokens: int) -> Trace:
    names = ("q", "k", "v", "log_decay", "erase", "write")
    return replace(trace, **{n: None if getattr(trace, n) is None else getattr(trace, n)[:, :tokens] for n in names})


def _context(batch: Batch) -> int | None:
    """Length of the context that all queries of all sequences share; None where there is none."""
    forks = batch.queries["fork"][batch.queries["position"] >= 0]
    least = int(forks.min()) if len(forks) else -1
    return least if least > 1 else None


def _written(batch: Batch, task: Task) -> Tensor | None:
    """(B,N) positions of value tokens in the context, as many as every sequence has; None below 2."""
    end = _context(batch) or batch.inputs.shape[1]
    values = task.vocabulary.values
    hit = (batch.inputs[:, :end] >= values.start) & (batch.inputs[:, :end] < values.stop)
    least = int(hit.sum(1).min())
    if least < 2:
        return None
    return torch.where(hit, torch.arange(end), -1).topk(least, 1).values.sort(1).values


def _short(notes: list[tuple[str, str]], filled: dict[str, Table]) -> list[str]:
    """Why a measure is missing that most models have; once each."""
    rare = ("router-load", "residual-weights", "energy")
    first = {name: note for name, note in reversed(notes) if name not in filled and name not in rare}
    return sorted(first.values())


_PARTS = {"gates": {"erase": False}, "erasures": {"decay": False}, "both": {}}
_MEASURES: dict[str, Callable[[Opened], pd.DataFrame]] = {
    "gates-by-token": _by_token,
    "half-lives": _half_lives,
    "dispersion": _dispersion,
    "functional-half-lives": _functional,
    "retained": _retained,
    "gamma": _gamma,
    "state": _state,
    "energy": _energy,
    "attention": _attention,
    "predicted-ratio": _ratio,
    "router-load": lambda run: gates.router_load(run.model, run.batch.inputs),
    "residual-weights": lambda run: gates.residual_weights(run.model, run.batch.inputs),
}
_CAPTIONS = {
    "gates-by-token": "Gates by type of token: log-decay, erase and write, means.",
    "half-lives": "Half-lives of the gates in tokens, by channel, trained and initial (Kaplan-Meier; inf: longer than seen).",
    "dispersion": "Spread of decay rates within each head.",
    "functional-half-lives": "Median time to half of a write by head: gates alone, erasures alone, both.",
    "retained": "Share of a write that a read with its key still finds.",
    "gamma": "Gamma fit of the channels' decay rates; the implied power law is (1 + scale lag)^(-shape).",
    "state": "The state at the end of the context: effective rank, norm, overlap of the written keys.",
    "energy": "Energy of the state at the last switch that is left at the end of the context.",
    "attention": "Where reads look, by lag.",
    "predicted-ratio": "Stale over new weight predicted from the traces, and the logits' log odds.",
    "router-load": "Load of each expert.",
    "residual-weights": "Weights of attention residuals over depth.",
}
