"""Figures of one claim alone, from hand-made evidence."""

from types import SimpleNamespace

import numpy as np
import pytest

from mnemolab.analysis.claims.evidence import Evidence, NotTrained
from mnemolab.analysis.claims.figures import runs_beside, selection
from mnemolab.analysis.claims.judges.selection import EXPERIMENT

from .conftest import answers, evidence

STAGES = {
    "additive scalar": "linear_attention",
    "additive channel": "gla",
    "scalar delta": "gated_deltanet",
    "channel delta": "kda",
}
SHORT_MIDDLE_LONG = {"short": 10.0, "": 20.0, "long": 400.0}
# as the experiment names them; `delta` has no decay
MODELS = {
    "delta": {"name": "deltanet", "half_life": None},
    **{
        f"{kind} {end}".strip(): {"name": stage, "half_life": half_life}
        for kind, stage in STAGES.items()
        for end, half_life in SHORT_MIDDLE_LONG.items()
    },
}


def drawn(arms):
    def make(cell, arm, rng, seed):
        condition = np.where(np.arange(400) % 2 == 0, "persistent", "volatile")
        right = np.where(condition == "persistent", 0.9, 0.3)
        return {"records": answers(rng, right, condition=condition), "config": SimpleNamespace(model=MODELS[arm])}

    return selection(evidence(make, [(EXPERIMENT, "main", arm) for arm in arms], seeds=range(3)))


def marks(legend):
    return {text.get_text(): line.get_marker() for text, line in zip(legend.texts, legend.legend_handles, strict=True)}


def test_runs_beside_are_those_of_the_same_task_without_twins():
    tasks = {"frontier": {"pairs": 64}, "copy": {"items": 80}, "recurrent": {"pairs": 64}}

    def ran_of(experiment, twins=()):
        make = lambda cell, arm, rng, seed: {"config": SimpleNamespace(task=tasks[experiment])}
        return evidence(make, [(experiment, "main", arm) for arm in ("one", "two")], seeds=range(2), twins=twins).ran

    made = Evidence([*ran_of("frontier", ("one",)), *ran_of("copy"), *ran_of("recurrent", ("two",))])
    found = runs_beside(made, "frontier", "main", ["recurrent"])
    assert [run.plan.experiment for run in found] == ["frontier"] * 4 + ["recurrent"] * 4
    assert not any(run.plan.twin for run in found)
    assert {run.plan.experiment for run in runs_beside(made, "copy", "main", ["recurrent"])} == {"copy"}
    assert len(runs_beside(made, "frontier", "main")) == 4
    with pytest.raises(NotTrained):
        runs_beside(made, "load", "main", ["recurrent"])


def test_selection_says_what_its_markers_mean():
    plot = drawn(MODELS)
    stages, key = plot.figure.legends
    assert key.get_title().get_text() == "initial half-life"
    assert marks(key) == {"short": "v", "middle": "o", "long": "^", "none": "D"}
    rows = plot.data.set_index("arm")
    assert rows["half_life"]["additive channel long"] == "long" and rows["half_life"]["scalar delta"] == "middle"
    wanted = zip(rows["volatile"], rows["persistent"], rows["half_life"].map(marks(key)), strict=True)
    points = [line for line in plot.figure.axes[0].lines if line.get_marker() in ("v", "o", "^", "D")]
    found = [(*np.ravel(line.get_xydata()).tolist(), line.get_marker()) for line in points]
    assert sorted(found) == sorted(wanted)
    plot.figure.draw_without_rendering()
    boxes = [legend.get_window_extent() for legend in (stages, key)]
    assert not boxes[0].overlaps(boxes[1])
    assert min(box.y0 for box in boxes) >= plot.figure.axes[0].get_window_extent().y1
    assert max(box.x1 for box in boxes) <= plot.figure.bbox.x1


def test_the_key_of_selection_has_only_markers_that_are_drawn():
    assert set(marks(drawn(["channel delta short", "channel delta"]).figure.legends[1])) == {"short", "middle"}
