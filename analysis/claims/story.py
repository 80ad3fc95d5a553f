"""Figures of docs/lineage.md: for each step of the lineage, the curve where the stage before fails and the next does not; and
three of the whole of it, recall against state, what lasts against what changes, and the worked example.

    python -m mnemolab.analysis.claims.story [--tier quick] [--runs claims/quick/runs] [--out docs/figures/lineage]

draws those whose runs are finished and says which are not. Nothing is trained; `mnemolab claims` does that.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from matplotlib.ticker import MaxNLocator

from mnemolab.analysis.cells import curve
from mnemolab.analysis.claims.catalogue import CLAIMS
from mnemolab.analysis.claims.evidence import Evidence
from mnemolab.analysis.claims.experiments import load_tier
from mnemolab.analysis.claims.figures import runs_beside, selection, study_of
from mnemolab.analysis.claims.frozen import load_frozen, plan
from mnemolab.analysis.claims.judge import experiments_of
from mnemolab.analysis.claims.judges.selection import EXPERIMENT
from mnemolab.analysis.figures import FIGURES
from mnemolab.analysis.figures.draw import intervals, runs_said, unit_axis, words
from mnemolab.analysis.figures.plot import Plot, save
from mnemolab.analysis.style import COLUMN, Look, canvas, legend_above, look, paper
from mnemolab.errors import BadRequest

__all__ = ["STEPS", "Step", "draw_step"]


@dataclass(frozen=True)
class Step:
    """From one stage to the next: `arms` maps an arm of the experiment to the stage it stands for."""

    name: str
    title: str
    experiment: str
    cell: str
    axis: str
    arms: dict[str, str]
    condition: str = ""


# Of several steps of one name the first whose runs are finished is drawn: the smaller tiers leave some experiments out.
STEPS = (
    Step(
        "rnn-to-softmax", "Bindings", "rnn", "main", "lag_writes",
        {"rnn": "rnn", "lstm": "lstm", "gru": "gru", "softmax": "gpt2"},
    ),
    Step(
        "softmax-to-linear", "Load", "frontier", "main", "lag_writes",
        {"softmax": "gpt2", "additive 16": "linear_attention"},
    ),
    Step("softmax-to-linear", "Load", "load", "heavy", "lag_writes", {"softmax": "gpt2", "additive": "linear_attention"}),
    Step("linear-to-delta", "Versions", "overwrite", "main", "versions", {"additive": "linear_attention", "delta": "deltanet"}),
    Step(
        "delta-to-gated", "After a switch", "topic", "relevant", "lag_writes",
        {"delta": "deltanet", "delta scalar": "gated_deltanet"}, "shift",
    ),
    Step(
        "gated-to-kda", "What lasts", EXPERIMENT, "main", "lag_writes",
        {"scalar delta mid": "gated_deltanet", "channel delta mid": "kda"}, "persistent",
    ),
    Step(
        "gated-to-kda", "What lasts", "retention", "main", "lag_writes",
        {"scalar delta mid": "gated_deltanet", "channel delta mid": "kda"}, "persistent",
    ),
    Step("kda-to-hybrid", "Copy", "retrieval", "copy", "serial_position", {"memory": "kda", "hybrid": "kimi_linear"}),
)  # fmt: skip


def draw_step(step: Step, evidence: Evidence) -> Plot:
    """Accuracy of both stages over the axis, 95% intervals over seeds. Raises BadRequest when a run of either is missing."""
    frames = []
    for arm, stage in step.arms.items():
        for run in evidence.runs(step.experiment, step.cell, arm):
            if not run.plan.twin:
                frames.append(run.records.assign(arm=stage, run_id=run.run_id))
    records = pd.concat(frames, ignore_index=True)
    if step.condition:
        records = records[records["condition"] == step.condition]
    if step.axis == "versions":
        records = records[records["condition"] != "control"].assign(versions=lambda frame: frame["version"] + 1)
    table = curve(records[["arm", "run_id", "example", "correct", step.axis]], step.axis)
    looks: dict[str, Look] = look(step.arms.values())
    with paper():
        figure, axes = canvas(COLUMN, 2.2)
        intervals(axes, table, step.axis, looks)
        unit_axis(axes)
        axes.set_xlabel(words(step.axis))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # writes, versions and tokens are counted
        legend_above(figure, axes)
    ends = table.sort_values(step.axis).groupby("arm")["mean"].agg(["first", "last"])
    said = "; ".join(f"{arm}, {row['first']:.2f} to {row['last']:.2f}" for arm, row in ends.iterrows())
    caption = f"Experiment {step.experiment}. Mean over {runs_said(table)}; 95% intervals over seeds and sequences."
    return Plot(
        step.name, step.title, caption, f"Accuracy from the least {step.axis} to the most: {said}.", figure, table
    )


def _frontier(evidence: Evidence) -> Plot:
    """Recall against the numbers that a state holds, every stage with a fixed one, softmax attention as the ceiling."""
    runs = runs_beside(evidence, "frontier", "main", CLAIMS["fixed-state-bottleneck"].beside)
    return replace(FIGURES["frontier"](study_of(runs))[0], name="frontier")


def _worked_example(evidence: Evidence) -> Plot:
    """What every stage answers after a record was updated."""
    runs = runs_beside(evidence, "record", "main", CLAIMS["record-update"].beside)
    return replace(FIGURES["conditions"](study_of(runs))[0], name="worked-example")


# what belongs to no one step
WHOLE = {"frontier": _frontier, "selection": selection, "worked-example": _worked_example}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m mnemolab.analysis.claims.story", description=__doc__)
    parser.add_argument("--tier", default="quick")
    parser.add_argument("--runs", type=Path, help="default: claims/TIER/runs")
    parser.add_argument("--out", type=Path, default=Path("docs/figures/lineage"))
    args = parser.parse_args(argv)
    try:
        return _draw_all(args.tier, args.runs or Path("claims") / args.tier / "runs", args.out)
    except BadRequest as error:
        print(error, file=sys.stderr)
        return 2


def _draw_all(tier: str, runs: Path, out: Path) -> int:
    """Draw what can be drawn; 1 when nothing could."""
    shown = experiments_of(("fixed-state-bottleneck", "record-update"))
    names = dict.fromkeys((*(step.experiment for step in STEPS), *shown))
    planned = plan(names, load_tier(tier), load_frozen(tier))
    evidence = Evidence.of(planned, runs)
    missing: dict[str, str] = {}
    drawn: set[str] = set()
    for step in STEPS:
        if step.name not in drawn:
            try:
                print(save(draw_step(step, evidence), out).png)
                drawn.add(step.name)
            except BadRequest as reason:
                missing.setdefault(step.name, str(reason))
    for name, draw in WHOLE.items():
        try:
            print(save(draw(evidence), out).png)
            drawn.add(name)
        except BadRequest as reason:
            missing[name] = str(reason)
    for name in [name for name in missing if name not in drawn]:
        print(f"{name}: not drawn ({missing[name]})", file=sys.stderr)
    return 0 if drawn else 1


if __name__ == "__main__":
    sys.exit(main())
