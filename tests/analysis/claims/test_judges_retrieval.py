"""Judging functions of retrieval, hybrids, learning and forgetting on hand-made records: the right verdict, and the wrong one when planted."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from mnemolab.analysis.claims.judges import (
    forgetting,
    hybrids,
    learning,
    retrieval,
)

from .conftest import answers, evidence, verdict


def numbers(experiment, cells, values):
    """Evidence whose accuracies are `values[arm]`, or `values[cell, arm]`, with a little spread."""
    arms = {key if isinstance(key, str) else key[1] for key in values}
    places = [(experiment, cell, arm) for cell in cells for arm in sorted(arms)]
    level = lambda cell, arm: values.get((cell, arm), values.get(arm))
    return evidence(lambda cell, arm, rng, seed: {"records": answers(rng, level(cell, arm))}, places)


def test_hybrid_retrieves():
    judge = lambda hybrid, memory: verdict(
        "hybrid-retrieves",
        hybrids.hybrid_retrieves(
            numbers(
                "retrieval", ("needle", "needle beyond", "copy"), {"softmax": 0.97, "hybrid": hybrid, "memory": memory}
            )
        ),
    )
    assert judge(0.97, 0.5).verdict == "supported"
    assert judge(0.8, 0.5).verdict == "refuted"
    assert judge(0.97, 0.97).verdict == "inconclusive"  # a task that memory alone does too says nothing


def test_hybrid_outperforms(monkeypatch):
    monkeypatch.setattr(hybrids, "_silenced", lambda run: 0.1)
    judge = lambda hybrid: verdict(
        "hybrid-outperforms",
        hybrids.hybrid_outperforms(numbers("retrieval", ("overwrite", "recall"), {"softmax": 0.9, "hybrid": hybrid})),
    )
    assert judge(0.95).verdict == "supported" and judge(0.7).verdict == "refuted"


def test_ratio():
    judge = lambda best: verdict(
        "ratio-3-1",
        hybrids.ratio(
            numbers("ratio", ("main",), {"3:1": 0.97, "softmax": 0.97, "1:1": best, "7:1": 0.9, "memory": 0.3})
        ),
    )
    assert judge(0.97).verdict == "supported" and judge(1.0).verdict != "supported"


def test_rnn_distance_leaves_out_runs_that_never_bound():
    def make(cell, arm, rng, seed):
        near = 0.1 if arm == "gru" and seed < 6 else 0.97
        far = near if arm == "softmax" else 0.4
        frame = answers(rng, 1.0).assign(lag_writes=np.tile(np.arange(8), 50))
        rate = np.where(frame["lag_writes"] < 2, near, far)
        return {"records": frame.assign(correct=rng.random(len(frame)) < rate)}

    places = [("rnn", cell, arm) for arm, cell in (*retrieval.NETWORKS.items(), ("softmax", "main"))]
    found = verdict("rnn-distance", retrieval.rnn_distance(evidence(make, places)))
    assert found.verdict == "supported" and found.seeds == 6


def copied(lengths):
    def make(cell, arm, rng, seed):
        length = np.tile(np.arange(2, 18), 25)
        right = rng.random(400) < 1 / (1 + np.exp((length - lengths[arm]) / 0.8))
        dims = 4 if arm.endswith("small") else 8
        config = SimpleNamespace(model={"depth": 1, "heads": 2, "head_dim": dims})
        return {"records": answers(rng, 1.0).assign(string_length=length, correct=right), "config": config}

    return evidence(make, [("copy", "main", arm) for arm in lengths], twins=("delta small",))


def test_fixed_state_bottleneck():
    grows = {"softmax": 99, "hybrid": 99, "delta small": 4, "delta": 12, "delta channel small": 4, "delta channel": 12}
    judge = lambda lengths: verdict("fixed-state-bottleneck", retrieval.fixed_state_bottleneck(copied(lengths)))
    assert judge(grows).verdict == "supported"
    assert judge(grows | {"delta": 4}).verdict == "refuted"
    # both copy nearly the longest strings that were asked: a larger state cannot be seen to copy longer ones
    short = judge(grows | {"delta small": 14, "delta": 99})
    assert short.verdict == "inconclusive" and "ln of the longest strings" in short.why
    assert judge(grows | {"softmax": 6}).verdict == "refuted"


def test_half_length_interpolates():
    frame = pd.DataFrame({"string_length": [2, 2, 4, 4, 6, 6], "correct": [1, 1, 1, 1, 0, 0]})
    assert retrieval.half_length(frame) == pytest.approx(5.0)
    assert retrieval.half_length(frame.assign(correct=1)) == 6 and retrieval.half_length(frame.assign(correct=0)) == 2


def learned(steps):
    def make(cell, arm, rng, seed):
        at = steps[arm]
        config = SimpleNamespace(budget=SimpleNamespace(steps=100), model={})
        solved = None if at is None else int(at + rng.integers(-5, 5))
        return {"result": {"steps_to_solved": solved, "test": {"accuracy": 0.9}}, "config": config}

    places = [("learning", cell, arm) for cell in learning.TASKS for arm in learning.ORDER]
    return evidence(make, places, twins=("delta channel",))


def test_lineage_order():
    ordered = {"delta channel": 20, "delta scalar": 50, "mamba2": None}
    found = verdict("lineage-order", learning.lineage_order(learned(ordered)))
    assert found.verdict == "supported" and len(found.contrasts) == 6 and found.placebo_passed is False
    wrong = verdict("lineage-order", learning.lineage_order(learned(ordered | {"delta channel": 80})))
    assert wrong.verdict == "refuted"
    # all of them are as soon as any could be: none can be seen to be behind by the margin
    soon = verdict(
        "lineage-order", learning.lineage_order(learned({"delta channel": 90, "delta scalar": 90, "mamba2": 90}))
    )
    assert soon.verdict == "inconclusive" and "behind the earliest run" in soon.why


def test_race_against_itself_and_when_nobody_arrives():
    never = dict.fromkeys(range(6), 200.0)
    assert learning.race("r", never, never, 100.0).p == pytest.approx(0.5)
    assert set(learning.race("r", never, never, 100.0).values.values()) == {0.0}


def told(cost, benefit, later_block=0.85):
    def make(cell, arm, rng, seed):
        rows = 1600
        condition = np.where((np.arange(rows) // 4) % 2 == 0, "keep", "forget")
        block = np.arange(rows) % 2
        forget = condition == "forget"
        gain = benefit if arm == "delta scalar" else 0.0
        draw = rng.random(rows)
        first = np.where(draw < np.where(forget, 0.9 - cost, 0.9), np.where(forget, "stale", "correct"), "other_key")
        later = np.where(draw < later_block + gain * forget, "correct", "other_key")
        outcome = np.where(block == 0, first, later)
        frame = answers(rng, 1.0, rows)
        return {
            "records": frame.assign(condition=condition, block=block, outcome=outcome, correct=outcome == "correct")
        }

    return evidence(make, [("forgetting", "main", arm) for arm in ("delta", "delta scalar")], twins=("delta scalar",))


def test_directed_forgetting():
    judge = lambda *rates: verdict("directed-forgetting", forgetting.directed_forgetting(told(*rates))).verdict
    assert judge(0.6, 0.1) == "supported"
    assert judge(0.6, 0.0) == "refuted"
    assert judge(0.6, 0.0, 0.99) == "inconclusive"  # no errors that forgetting could take away
    assert judge(0.6, 0.0, 0.3) == "inconclusive"  # never learned
    assert judge(0.0, 0.1) == "refuted"


@pytest.mark.parametrize(("name", "arm"), [("attnres-compute", "residuals"), ("latent-moe-quality", "latent experts")])
def test_quality_is_undecidable_unless_the_interval_says_otherwise(name, arm):
    def judge(better):
        loss = {"plain": 1.0, "experts": 1.0, arm: 1.0 - better}
        make = lambda cell, a, rng, seed: {
            "records": answers(rng, 0.5).assign(loss=loss[a] + 0.05 * rng.normal()),
            "task": SimpleNamespace(vocabulary=SimpleNamespace(size=64)),
        }
        places = [("quality", "main", a) for a in loss]
        judgement = {"residuals": hybrids.attnres_compute}.get(arm, hybrids.latent_moe_quality)(
            evidence(make, places, twins=("plain", "experts"))
        )
        return verdict(name, judgement).verdict

    assert judge(0.3) == "supported" and judge(-0.3) == "refuted"
    if arm == "residuals":
        assert judge(0.015) == "undecidable here"
