"""The training benchmark tells the first step of a process that compiles from that of one that does not."""

import argparse
import json

import pytest

from mnemolab.benchmarks import training_steps
from mnemolab.benchmarks.training_steps import first_step, measure, show

WORDS = {
    "batch": 4, "length": 32, "width": 16, "depth": 1, "vocabulary": 64, "precision": "fp32", "device": "cpu",
}  # fmt: skip


@pytest.fixture
def words():
    return argparse.Namespace(
        **WORDS, stages="deltanet", seconds=0.05, kernels=50, no_first_step=False, against="zoology-numbers"
    )


def test_both_kinds_of_first_step_are_measured_and_shown(words, monkeypatch, capsys):
    seen = []

    def fresh(words, stage, cache):
        seen.append(cache)
        seconds = {"first_step_seconds": 16.0, "tenth_step_seconds": 20.0, "import_seconds": 6.0}
        return {name: x / len(seen) for name, x in seconds.items()}

    monkeypatch.setattr(training_steps, "_fresh_process", fresh)
    monkeypatch.setattr(training_steps, "speed", lambda steps, seconds: 1000.0)
    result = measure(words)
    (row,) = result["stages"]
    assert len(seen) == 2 and seen[0] == seen[1]  # the second finds what the first one made
    assert (row["first_step_seconds"], row["warm_first_step_seconds"], row["import_seconds"]) == (16.0, 8.0, 3.0)
    other, steps = row["zoology"], training_steps.EPOCH_EXAMPLES / 4
    assert other["cold"]["our_epoch_seconds"] == pytest.approx(20 + steps / 1000)
    assert other["warm"]["our_epoch_seconds"] == pytest.approx(10 + steps / 1000)
    assert other["cold"]["epoch_seconds"] - other["warm"]["epoch_seconds"] == pytest.approx(91.2)
    assert other["warm"]["speedup"] == pytest.approx(steps / 42.5 / (10 + steps / 1000))
    capsys.readouterr()
    show(result)
    told = capsys.readouterr().out
    assert "16.0 s   8.0 s" in told and "compiling first" in told and "nothing to compile" in told


def test_a_first_step_without_the_processes_start(capsys):
    first_step(WORDS, "gpt2")
    told = json.loads(capsys.readouterr().out)
    assert 0 < told["first_step_seconds"] < told["tenth_step_seconds"] and told["import_seconds"] is None
