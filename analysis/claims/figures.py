"""Figures of the claims: a forest of each claim's contrasts, the frontier of selective retention, and the analysis' own.

`draw` saves them and returns an index of plain values (figures.json), from which the report is made without the runs.
"""

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mnemolab.analysis.claims.claim import Verdict
from mnemolab.analysis.claims.evidence import Evidence, Ran
from mnemolab.analysis.claims.experiments import load_experiment
from mnemolab.analysis.claims.forest import forest
from mnemolab.analysis.claims.judges.retention import CLASSES
from mnemolab.analysis.claims.judges.selection import EXPERIMENT, class_accuracy
from mnemolab.analysis.claims.rules import interval
from mnemolab.analysis.claims.write import to_object
from mnemolab.analysis.figures import FIGURES
from mnemolab.analysis.figures.plot import NotApplicable, Plot, Saved, save
from mnemolab.analysis.records import Study
from mnemolab.analysis.style import PAGE, canvas, label, legend_above, look, paper
from mnemolab.errors import BadRequest

__all__ = ["draw", "runs_beside", "selection", "study_of"]

# initial half-lives of the arms of `selection`
_MARKERS = {"short": "v", "middle": "o", "long": "^", "none": "D"}
# what every experiment shows, where it applies; a claim adds its own
_ALWAYS = ("learning",)


def draw(verdicts: Sequence[Verdict], evidence: Evidence, out: Path) -> list[dict[str, Any]]:
    """Save all figures below `out`; one row a figure: claims, experiment, name, title, caption, alt, png, pdf, csv."""
    rows = []
    for verdict in verdicts:
        if any(c.n for c in verdict.contrasts):
            rows.append(_row(save(forest(to_object(verdict)), out), [verdict.claim.id], ""))
    wanted: dict[tuple[str, str], dict[str, list[str]]] = {}
    beside: dict[str, list[str]] = {}
    for verdict in verdicts:
        cell, _, name = verdict.claim.figure.partition("/")
        more = [load_experiment(e).name for e in verdict.claim.beside]
        for experiment in (load_experiment(e).name for e in verdict.claim.experiment if name):
            places = wanted.setdefault((experiment, cell), {})
            beside.setdefault(experiment, []).extend(more)
            places.setdefault(name, []).append(verdict.claim.id)
            for other in _ALWAYS:
                places.setdefault(other, [])
    for (experiment, cell), names in wanted.items():
        rows += _of_experiment(evidence, experiment, cell, names, out, beside[experiment])
    return rows


def _of_experiment(
    evidence: Evidence, experiment: str, cell: str, names: dict[str, list[str]], out: Path, beside: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Figures of one cell's runs, twins left out: they would count as further seeds. Runs `beside` them, on the same task, are in
    them too."""
    try:
        study = study_of(runs_beside(evidence, experiment, cell, beside))
    except BadRequest:
        return []
    rows = []
    for name, claims in names.items():
        try:
            plots = [selection(evidence)] if name == "selection" else FIGURES[name](study)
        except NotApplicable:
            continue
        for plot in plots:
            named = Plot(
                f"{experiment}-{cell}-{plot.name}".replace(" ", "_"),
                f"{plot.title}: experiment {experiment}, {cell}"
                if len(evidence_cells(evidence, experiment)) > 1
                else plot.title,
                plot.caption,
                plot.alt,
                plot.figure,
                plot.data,
            )
            rows.append(_row(save(named, out), claims, experiment))
    return rows


def runs_beside(evidence: Evidence, experiment: str, cell: str, beside: Sequence[str] = ()) -> list[Ran]:
    """Runs of a cell without its twins, and those of the experiments `beside` it that are of the same task. Raises NotTrained
    where the cell has none."""
    found = [run for run in evidence.runs(experiment, cell) if not run.plan.twin]
    tasks = [dict(run.plan.config.task) for run in found[:1]]
    more = [run for run in evidence.ran if run.plan.experiment in beside and not run.plan.twin]
    return found + [run for run in more if dict(run.plan.config.task) in tasks]


def study_of(runs: Sequence[Ran]) -> Study:
    """The runs as the figures read them. An arm is called after its stage, and after the experiment's name for it where
    several arms share a stage."""
    study = Study.of(sorted({run.folder for run in runs}))
    stages = {run.run_id: str(run.plan.config.model["name"]) for run in runs}
    arms = {run.run_id: run.plan.arm for run in runs}
    shared = {stage for stage in stages.values() if len({arms[i] for i in arms if stages[i] == stage}) > 1}
    called = {i: f"{stages[i]}, {arms[i]}" if stages[i] in shared else stages[i] for i in arms}
    study.__dict__["runs"] = study.runs.assign(arm=study.runs["run_id"].map(called))
    study.__dict__["metrics"] = study.metrics.assign(arm=study.metrics["run_id"].map(called))
    return study


def evidence_cells(evidence: Evidence, experiment: str) -> list[str]:
    """Cells of an experiment that have runs."""
    return list(dict.fromkeys(run.plan.cell for run in evidence.ran if run.plan.experiment == experiment))


def _row(saved: Saved, claims: Sequence[str], experiment: str) -> dict[str, Any]:
    row = {name: getattr(saved, name) for name in ("name", "title", "caption", "alt")}
    files = {kind: getattr(saved, kind).name for kind in ("png", "pdf", "csv")}
    return {"claims": list(claims), "experiment": experiment, **row, **files}


def _span(row: dict[str, Any], name: str) -> list[list[float]]:
    """[[below], [above]] of the interval within 0 and 1, for matplotlib; 0 where one seed has none."""
    low, high = max(row[f"{name} low"], 0.0), min(row[f"{name} high"], 1.0)
    found = (row[name] - low, high - row[name])
    return [[max(0.0, v) if np.isfinite(v) else 0.0] for v in found]


def _by_stage(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Stage -> its rows, in the arms' order: short, middle, long."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["stage"], []).append(row)
    return found


def _half_life(arm: str, model: Mapping[str, Any]) -> str:
    """Where an arm's decay starts, in the words of the key; arms that start away from the middle end with it."""
    if model.get("half_life") is None:
        return "none"
    last = arm.rpartition(" ")[2]
    return last if last in _MARKERS else "middle"


def _key(figure: Figure, shown: Container[str]) -> None:
    """What the markers mean, beside the legend of the stages: colours there, shapes here."""
    names = [name for name in _MARKERS if name in shown]
    marks = [Line2D([], [], color="#444444", linestyle="none", marker=_MARKERS[name]) for name in names]
    figure.legend(
        marks, names, title="initial half-life", title_fontsize=7, alignment="left", loc="outside upper right",
        ncols=len(names), handlelength=0.8, handletextpad=0.3, columnspacing=0.9,
    )  # fmt: skip


def selection(evidence: Evidence) -> Plot:
    """Persistent against volatile accuracy, one point an arm with intervals on both axes. Raises NotApplicable without runs."""
    try:
        values = {c: evidence.values(EXPERIMENT, lambda run, c=c: class_accuracy(run.records, c)) for c in CLASSES}
    except BadRequest as reason:
        raise NotApplicable(str(reason)) from reason
    rows = []
    for arm in values[CLASSES[0]].arms:
        model = evidence.runs(EXPERIMENT, "main", arm)[0].plan.config.model
        row: dict[str, Any] = {"arm": arm, "stage": model["name"], "half_life": _half_life(arm, model)}
        for c, found in values.items():
            x = list(found.of(arm).values())
            row |= {c: float(np.mean(x)), f"{c} low": interval(x)[0], f"{c} high": interval(x)[1], "seeds": len(x)}
        rows.append(row)
    data = pd.DataFrame(rows)
    with paper():
        figure, axes = canvas(PAGE * 0.78, 3.4)
        groups = _by_stage(rows)
        for stage, shown in look(groups).items():
            group, colour = groups[stage], shown.color
            x, y = ([row[c] for row in group] for c in reversed(CLASSES))
            axes.plot(x, y, color=colour, linewidth=1.0, alpha=0.7, label=label(stage), zorder=1)
            for row in group:
                spans = [_span(row, c) for c in reversed(CLASSES)]
                axes.errorbar(
                    row["volatile"], row["persistent"], xerr=spans[0], yerr=spans[1], color=colour, elinewidth=0.8,
                    fmt=_MARKERS[row["half_life"]], label="_", markeredgecolor="white", markeredgewidth=0.4,
                )  # fmt: skip
        for limits, limit in ((axes.get_xlim(), axes.set_xlim), (axes.get_ylim(), axes.set_ylim)):
            limit(max(-0.02, limits[0]), min(1.02, limits[1]))
        axes.set_xlabel("accuracy, volatile facts")
        axes.set_ylabel("accuracy, persistent facts")
        legend_above(figure, axes)
        _key(figure, {row["half_life"] for row in rows})
    best = max(rows, key=lambda row: row["persistent"] + row["volatile"])
    return Plot(
        "selection",
        "What lasts against what changes",
        "Accuracy on facts written once and on facts rewritten all the time; 95% intervals over seeds. Markers: "
        "initial half-lives, joined within a stage; none: no decay. Linear attention has a scalar decay here. Up and to the right "
        "is better at both.",
        f"Scatter of {len(data)} arms. Best at both: {best['arm']}, persistent {best['persistent']:.2f}, volatile "
        f"{best['volatile']:.2f}.",
        figure,
        data,
    )
