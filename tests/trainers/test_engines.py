"""Sweeps for real: warm workers, bad runs among good ones, choice on validation, two sweeps on one folder, Ctrl-C."""

import json
import multiprocessing
import os
import signal
import threading
from collections import Counter

import pandas as pd
import pytest

from mnemolab.errors import BadRequest, RunFailed
from mnemolab.trainers import Sweep, load_run, run_sweep
from mnemolab.trainers.engines import ENGINES
from mnemolab.trainers.events import Failed, Finished, Progress, Skipped, Started
from mnemolab.trainers.local import Job, LocalEngine


def make(values, **parts):
    return Sweep.from_dict({"name": "s", "base": values(), **parts})


def test_bad_runs_harm_nobody_and_are_tried_again(values, tmp_path, plugin, request):
    """Of six runs one raises and one kills its worker; a second call, with the cure, does only those two."""
    cure = tmp_path / "cure"
    bad = [{"task": {"name": "faulty", "fault": fault, "cure": str(cure)}} for fault in ("raise", "die")]
    sweep = make(values, list=[{"seed": 0}, bad[0], {"seed": 1}, bad[1], {"seed": 2}, {"seed": 3}])
    broken = {run.run_id: run.task["fault"] for run in sweep.runs if run.task["name"] == "faulty"}
    events = []
    outcome = run_sweep(sweep, tmp_path, workers=2, on_event=events.append, plugins=[plugin])
    assert set(outcome.failed) == set(broken)
    assert set(outcome.done) == {run.run_id for run in sweep.runs} - set(broken)
    assert all(load_run(tmp_path / name).result["test"] for name in outcome.done)
    for name, fault in broken.items():
        failure = json.loads((tmp_path / name / "failure.json").read_text())
        if fault == "raise":
            assert "this task is faulty" in failure["traceback"]
        assert {"raise": "ValueError: this task is faulty", "die": "SIGKILL"}[fault] in failure["error"]
        assert not (tmp_path / name / "result.json").exists()
    kinds = Counter(type(event) for event in events)
    assert (kinds[Started], kinds[Finished], kinds[Failed]) == (6, 4, 2)
    assert kinds[Progress] >= 4
    assert {event.error for event in events if isinstance(event, Failed)} == {
        "ValueError: this task is faulty", "its worker died (signal SIGKILL)"
    }  # fmt: skip

    cure.touch()
    request.getfixturevalue("inline")
    again = run_sweep(sweep, tmp_path, plugins=[plugin])
    assert (set(again.done), again.failed, len(again.skipped)) == (set(broken), (), 4)
    assert not list(tmp_path.glob("*/failure.json"))
    table = pd.read_parquet(tmp_path / "sweep.parquet")
    assert set(table["run_id"]) == {run.run_id for run in sweep.runs}
    assert multiprocessing.active_children() == []


def test_a_worker_whose_gpu_is_spoiled_takes_no_more_runs(values, tmp_path, plugin):
    """After a kernel's error every run in that process would fail, at once, and a queue be gone in a minute."""
    tasks = [{"name": "faulty", "fault": fault, "cure": str(tmp_path / "cure")} for fault in ("spoil", "none", "none")]
    sweep = make(values, list=[{"task": task, "seed": seed} for seed, task in enumerate(tasks)])
    outcome = run_sweep(sweep, tmp_path, workers=1, plugins=[plugin])
    first, *others = (run.run_id for run in sweep.runs)
    assert (set(outcome.failed), set(outcome.done)) == ({first}, set(others))
    assert "illegal memory access" in json.loads((tmp_path / first / "failure.json").read_text())["error"]


def test_choice_on_validation_and_the_test_stream_read_once(values, tmp_path, inline):
    sweep = make(values, grid={"seed": [0, 1]}, choose={"optimiser.learning_rate": [0.0, 0.05]})
    events = []
    outcome = run_sweep(sweep, tmp_path, on_event=events.append)
    results = {run.run_id: load_run(tmp_path / run.run_id).result for run in sweep.runs}
    assert outcome.chosen is not None
    assert set(outcome.chosen) == {run.run_id for run in sweep.chosen(results)}
    assert len(outcome.chosen) == 2
    for name, result in results.items():
        assert (result["test"] is not None) == (name in outcome.chosen)
        assert (tmp_path / name / "records.parquet").exists() == (name in outcome.chosen)
    assert len([event for event in events if isinstance(event, Finished)]) == sweep.expected
    table = pd.read_parquet(tmp_path / "sweep.parquet")
    assert table["chosen"].sum() == 2
    assert table["optimiser.learning_rate"].nunique() == 2
    records = pd.read_parquet(tmp_path / "collected" / "key_overwrite.parquet")
    assert set(records["run_id"]) == set(outcome.chosen)
    assert {"stage", "recipe", "seed", "depth", "width", "outcome", "stale", "lag_tokens"} <= set(records)

    events.clear()
    again = run_sweep(sweep, tmp_path, on_event=events.append)
    assert (again.done, again.chosen) == ((), outcome.chosen)
    assert {type(event) for event in events} == {Skipped}


def test_two_sweeps_on_one_folder_run_every_run_once(values, tmp_path):
    sweep = make(lambda: values(**{"budget.steps": 30}), grid={"seed": list(range(4))})
    outcomes = {}

    def go(name):
        outcomes[name] = run_sweep(sweep, tmp_path, workers=1)

    threads = [threading.Thread(target=go, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for outcome in outcomes.values():
        assert outcome.failed == ()
        assert {*outcome.done, *outcome.skipped} == {run.run_id for run in sweep.runs}
    for run in sweep.runs:
        rows = [json.loads(line) for line in (tmp_path / run.run_id / "metrics.jsonl").read_text().splitlines()]
        assert len(rows) == len({(row["step"], row["split"]) for row in rows})
        assert load_run(tmp_path / run.run_id).result["resumed"] == 0


def test_ctrl_c_saves_what_runs_and_a_later_call_goes_on(values, tmp_path, request):
    # a shell's background job is born with SIGINT ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    sweep = make(lambda: values(**{"budget.steps": 20_000, "budget.evaluate_every": 20_000}))
    (run,) = sweep.runs

    def press(event):
        if isinstance(event, Progress) and event.step > 10:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, tmp_path, workers=1, on_event=press)
    assert multiprocessing.active_children() == []
    folder = tmp_path / run.run_id
    assert (folder / "resume.ckpt").exists()
    assert not (folder / "result.json").exists()
    assert not (folder / "failure.json").exists()


def test_requests_that_cannot_be_met(values, tmp_path):
    sweep = make(values)
    with pytest.raises(BadRequest, match="did you mean 'local'"):
        run_sweep(sweep, tmp_path, engine="locale")
    with pytest.raises(BadRequest, match="at least 1"):
        run_sweep(sweep, tmp_path, workers=0)
    (tmp_path / "file").touch()
    with pytest.raises(BadRequest, match="cannot write there"):
        run_sweep(sweep, tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("result.json", '{"run_id": "another"}', "not the result of run"),
        ("result.json", "{", "not readable"),
        ("config.yaml", None, "no config.yaml"),
        ("records.parquet", "garbage", "delete"),
        ("records.parquet", None, "delete"),
    ],
)
def test_one_damaged_folder_keeps_no_other_run_from_the_tables(values, tmp_path, capsys, inline, name, text, said):
    sweep = make(values, grid={"seed": [0, 1]})
    run_sweep(sweep, tmp_path)
    bad, good = (run.run_id for run in sweep.runs)
    (tmp_path / "sweep.parquet").unlink()
    path = tmp_path / bad / name
    path.unlink() if text is None else path.write_text(text)
    events = []
    outcome = run_sweep(sweep, tmp_path, on_event=events.append)
    assert outcome.failed == (bad,) and good in outcome.skipped
    assert list(pd.read_parquet(tmp_path / "sweep.parquet")["run_id"]) == [good]
    told = capsys.readouterr().err + "".join(event.error for event in events if isinstance(event, Failed))
    assert said in told and "delete" in told and bad in told


def test_a_worker_that_dies_between_two_lists_is_replaced(values, tmp_path):
    runs = make(values, grid={"seed": [0, 1]}).runs
    jobs = [Job(run.run_id, run.label, run.budget.steps, run.to_dict()) for run in runs]
    events = []
    with LocalEngine(1) as engine:
        engine.run(jobs[:1], tmp_path, events.append)
        process = engine.crew[0].process
        process.kill()
        process.join()
        engine.run(jobs[1:], tmp_path, events.append)
    assert [type(event) for event in events if not isinstance(event, Progress)] == [Started, Finished] * 2


@pytest.mark.parametrize("deaths", (1, 3))
def test_workers_that_die_while_importing(values, tmp_path, monkeypatch, deaths):
    """One is replaced and its run loses nothing; of one after the other the sweep says so and ends."""
    # three die of the first thing that a worker imports, which costs them no time
    (tmp_path / ("mortal.py" if deaths == 1 else "torch.py")).write_text(
        "import os, signal\nfrom pathlib import Path\n"
        "died = Path(__file__).with_name('died')\n"
        f"if died.stat().st_size < {deaths}:\n"
        "    died.open('a').write('x')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "died").touch()
    monkeypatch.syspath_prepend(tmp_path)
    (run,) = make(values).runs
    job, events = Job(run.run_id, run.label, run.budget.steps, run.to_dict()), []
    with LocalEngine(1, ["mortal"]) as engine:
        if deaths == 3:
            with pytest.raises(RunFailed, match=r"3 workers in a row died while starting \(the last: signal SIGKILL\)"):
                engine.run([job], tmp_path, events.append)
            assert (tmp_path / "died").stat().st_size == 3
            return
        engine.run([job], tmp_path, events.append)
    assert isinstance(events[-1], Finished) and load_run(tmp_path / run.run_id).result["test"]


def test_an_empty_list_needs_no_worker(tmp_path):
    with LocalEngine() as engine:
        engine.run([], tmp_path, lambda event: None)
        assert engine.crew == []
    assert set(ENGINES) == {"local", "ray"}


def test_a_choice_is_not_forgotten_by_a_sweep_that_chooses_nothing(values, tmp_path, inline):
    chooses = make(values, grid={"seed": [0]}, choose={"optimiser.learning_rate": [1e-3, 3e-3]})
    run_sweep(chooses, tmp_path)
    before = pd.read_parquet(tmp_path / "sweep.parquet").set_index("run_id")["chosen"]
    assert before.sum() == 1
    run_sweep(
        make(values, grid={"seed": [0]}, list=[{"optimiser.learning_rate": 1e-3}, {"optimiser.learning_rate": 3e-3}]),
        tmp_path,
    )
    after = pd.read_parquet(tmp_path / "sweep.parquet").set_index("run_id")["chosen"]
    assert after[before.index].tolist() == before.tolist()
