"""Runs that die: whatever was finished stays, nothing is half written, and a rerun ends as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from mnemolab.trainers import RunConfig, load_run, train
from mnemolab.trainers.folder import load_checkpoint


@pytest.fixture(scope="module")
def victim():
    """`victim(values, out, fault, nth)` -> (exit code, or minus the signal; stderr)."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "victim.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # the checkout that is tested, installed or not
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    orders, answers = process.stdin, process.stdout
    assert orders is not None
    assert answers is not None
    assert answers.readline() == "ready\n"

    def run(config: dict, out: Path, fault: str, nth: int = 1) -> tuple[int, str]:
        print(json.dumps({"config": config, "out": str(out), "fault": fault, "nth": nth}), file=orders, flush=True)
        answer = json.loads(answers.readline())
        return os.waitstatus_to_exitcode(answer["status"]), answer["stderr"]

    yield run
    orders.close()
    process.wait(10)
    answers.close()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The same run without a fault."""
    from .conftest import tiny_values

    return train(RunConfig.from_dict(tiny_values()), tmp_path_factory.mktemp("unbroken"))


def assert_same(run, unbroken) -> None:
    assert (run.folder / "metrics.jsonl").read_bytes() == (unbroken.folder / "metrics.jsonl").read_bytes()
    pd.testing.assert_frame_equal(run.records, unbroken.records)
    for name in ("test", "validation", "steps", "steps_to_solved"):
        assert run.result[name] == unbroken.result[name]
    pairs = zip(run.model().state_dict().items(), unbroken.model().state_dict().items(), strict=True)
    assert all(a == b for a, b in [(x[0], y[0]) for x, y in pairs])
    pairs = zip(run.model().parameters(), unbroken.model().parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)  # bit for bit
    assert not list(run.folder.glob(".*.tmp"))


@pytest.mark.parametrize(
    ("fault", "nth", "resumed"),
    [
        ("step", 1, 0),  # before anything was saved
        ("step", 3, 1),
        ("step", 6, 1),  # the last one
        ("resume.ckpt", 1, 0),  # while the first checkpoint is written: there is none
        ("resume.ckpt", 2, 1),  # while the second is: the first one holds
        ("after:resume.ckpt", 2, 1),
        ("model.pt", 1, 1),
        ("records.parquet", 1, 1),
        ("result.json", 1, 1),
    ],
)
def test_killed_at_any_moment_it_ends_as_if_unbroken(victim, unbroken, values, tmp_path, fault, nth, resumed):
    status, _ = victim(values(), tmp_path, fault, nth)
    assert status == -signal.SIGKILL
    folder = tmp_path / unbroken.config.run_id
    assert not (folder / "result.json").exists()
    run = train(unbroken.config, tmp_path)
    assert run.result["resumed"] == resumed
    assert_same(run, unbroken)


def test_sigterm_is_no_success_and_the_run_goes_on(values, tmp_path):
    # as a scheduler stops a job: exit code 143, a checkpoint to go on from, no result
    import yaml

    config = values(**{"budget.steps": 1_000_000, "budget.evaluate_every": 1_000_000})
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    words = ["train", "--config", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "runs")]
    process = subprocess.Popen(
        [sys.executable, "-m", "mnemolab", *words],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stderr is not None
    assert "steps/s" in process.stderr.readline()
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143
    assert said.endswith("terminated; started again, the run goes on from its last checkpoint\n")
    (folder,) = (tmp_path / "runs").iterdir()
    assert not (folder / "result.json").exists()
    assert not (folder / "failure.json").exists()


def test_killed_twice(victim, unbroken, values, tmp_path):
    for nth in (3, 2):
        assert victim(values(), tmp_path, "step", nth)[0] == -signal.SIGKILL
    run = train(unbroken.config, tmp_path)
    assert run.result["resumed"] == 2
    assert run.result["wall_seconds"] >= run.result["train_seconds"]  # both of all attempts
    assert_same(run, unbroken)


def test_killed_after_result_json_it_is_finished(victim, unbroken, values, tmp_path):
    assert victim(values(), tmp_path, "after:result.json")[0] == -signal.SIGKILL
    before = (tmp_path / unbroken.config.run_id / "result.json").read_bytes()
    assert_same(train(unbroken.config, tmp_path), unbroken)
    assert (tmp_path / unbroken.config.run_id / "result.json").read_bytes() == before


@pytest.mark.parametrize("room", [200, 2000, 8000])
def test_a_full_disk_is_one_clear_line_and_loses_nothing(victim, unbroken, values, tmp_path, room):
    """No file may grow beyond `room` bytes: config.yaml, resume.ckpt or model.pt is the first that cannot."""
    finished = train(RunConfig.from_dict(values(seed=9)), tmp_path)
    before = {path.name: path.read_bytes() for path in finished.folder.iterdir()}
    status, text = victim(values(), tmp_path, "disk full", room)
    assert status == 1
    assert "cannot write there" in text.splitlines()[-1]
    assert "free some space" in text.splitlines()[-1]
    folder = tmp_path / unbroken.config.run_id
    assert not (folder / "result.json").exists()
    assert not list(folder.glob(".*.tmp"))
    if (folder / "resume.ckpt").exists():
        load_checkpoint(folder / "resume.ckpt")  # whole
    assert {path.name: path.read_bytes() for path in finished.folder.iterdir()} == before
    assert_same(train(unbroken.config, tmp_path), unbroken)


def test_a_checkpoint_cut_short_is_put_aside(victim, unbroken, values, tmp_path, capsys):
    victim(values(), tmp_path, "step", 3)
    path = tmp_path / unbroken.config.run_id / "resume.ckpt"
    path.write_bytes(path.read_bytes()[:100])
    run = train(unbroken.config, tmp_path)
    assert "starting this run from step 0" in capsys.readouterr().err
    assert run.result["resumed"] == 0
    assert_same(run, unbroken)


def test_a_metrics_line_cut_short_is_written_again(victim, unbroken, values, tmp_path):
    victim(values(), tmp_path, "step", 5)
    path = tmp_path / unbroken.config.run_id / "metrics.jsonl"
    with path.open("a") as file:
        file.write('{"step": 4, "spl')
    assert_same(train(unbroken.config, tmp_path), unbroken)


def test_a_lock_dies_with_its_holder(victim, unbroken, values, tmp_path):
    victim(values(), tmp_path, "step", 2)
    assert (tmp_path / unbroken.config.run_id / "lock").exists()
    assert load_run(train(unbroken.config, tmp_path).folder).result["status"] == "done"
