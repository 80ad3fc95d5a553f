"""One run on several devices: the same run, in several processes."""

import json

import pytest

from mnemolab.errors import RunFailed
from mnemolab.trainers import train

pytestmark = pytest.mark.slow  # each rank imports everything


def test_two_processes_end_where_one_does(tiny, tmp_path):
    config = tiny(**{"budget.steps": 30, "budget.evaluate_every": 10})
    one, two = train(config, tmp_path / "one"), train(config, tmp_path / "two", devices=2)
    rows = [
        [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()] for run in (one, two)
    ]
    assert len(rows[0]) == len(rows[1])
    for a, b in zip(*rows, strict=True):
        assert (a["step"], a["split"]) == (b["step"], b["split"])
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-4)
    assert two.result["resumed"] == 0
    assert two.result["backend"] == "eager: 2 devices share the run"
    assert two.result["test"]["accuracy"] == pytest.approx(one.result["test"]["accuracy"], abs=0.05)


def test_a_rank_that_fails_ends_the_run(tiny, tmp_path, plugin):
    config = tiny(task={"name": "faulty", "fault": "raise", "cure": str(tmp_path / "cure")})
    with pytest.raises(RunFailed, match="this task is faulty"):
        train(config, tmp_path, devices=2, plugins=[plugin])
    (tmp_path / "cure").touch()
    assert train(config, tmp_path, devices=2, plugins=[plugin]).result["status"] == "done"
