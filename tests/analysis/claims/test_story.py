"""Curves of the lineage: each step compares arms that there are, of the stages it names, and of equal size where both have a state."""

import numpy as np
import pytest

from mnemolab.analysis.claims.experiments import load_experiment, load_tier
from mnemolab.analysis.claims.story import STEPS, draw_step
from mnemolab.errors import BadRequest

from .conftest import answers, evidence

IDS = [f"{step.name}-{step.experiment}" for step in STEPS]


@pytest.mark.parametrize("step", STEPS, ids=IDS)
def test_a_step_compares_what_it_says(step):
    planned = load_experiment(step.experiment).planned(load_tier("full"), {})
    models = {p.arm: p.config.model for p in planned if p.cell == step.cell}
    assert {arm: models[arm]["name"] for arm in step.arms} == step.arms
    sized = [models[arm] for arm, stage in step.arms.items() if stage not in ("rnn", "lstm", "gru", "gpt2")]
    assert len({(model["depth"], model["width"], model["heads"], model["head_dim"]) for model in sized}) <= 1


def test_a_step_is_drawn_from_runs_and_from_nothing_else():
    step = next(step for step in STEPS if step.name == "delta-to-gated")

    def make(cell, arm, rng, seed):
        frame = answers(rng, 0.9 if arm == "delta scalar" else 0.6)
        return {"records": frame.assign(condition=np.where(frame["example"] % 2 == 0, step.condition, "single"))}

    places = [(step.experiment, step.cell, arm) for arm in step.arms]
    plot = draw_step(step, evidence(make, places, seeds=(0, 1, 2)))
    means = plot.data.groupby("arm")["mean"].mean()
    assert means["gated_deltanet"] == pytest.approx(0.9, abs=0.05) and means["deltanet"] == pytest.approx(0.6, abs=0.05)
    with pytest.raises(BadRequest, match="no finished run"):
        draw_step(step, evidence(make, places[:1], seeds=(0,)))
