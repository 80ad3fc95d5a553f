"""One run on several devices: the same run, in several processes."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

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


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_ranks_die_with_the_process_that_holds_the_lock(values, tmp_path):
    """The lock is free once the parent is dead: a rank that trained on would write beside the next process's."""
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(values(**{"budget.steps": 100_000, "budget.evaluate_every": 50_000})))
    command = [
        sys.executable,
        "-m",
        "mnemolab",
        "train",
        "--config",
        str(config),
        "--devices",
        "2",
        "--out",
        str(tmp_path),
    ]
    parent = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("*/metrics.jsonl")) and time.monotonic() < deadline:
            assert parent.poll() is None
            time.sleep(0.2)
        ranks = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        assert len(ranks) >= 2
    finally:
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 5
    while any(_alive(rank) for rank in ranks) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [rank for rank in ranks if _alive(rank)]


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
