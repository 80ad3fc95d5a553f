"""One run, end to end: what lies in its folder, that it repeats itself, and how it stops."""

import gc
import json
import math
import os
import signal
import weakref

import pandas as pd
import pytest
import torch
import yaml
from lightning.pytorch.loggers import CSVLogger

from mnemolab.errors import BadRequest, RunFailed
from mnemolab.files import held
from mnemolab.models.backbone import Backbone
from mnemolab.trainers import RunConfig, fitting, load_run, train
from mnemolab.trainers.run import resolve_device
from mnemolab.trainers.stops import Busy, NotFiniteRun, Stopped


def metrics(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_what_the_design_says(tiny, tmp_path):
    run = train(tiny(), tmp_path)
    assert run.folder == tmp_path / tiny().run_id
    assert {path.name for path in run.folder.iterdir()} == {
        "config.yaml", "metrics.jsonl", "records.parquet", "result.json", "model.pt", "lock"
    }  # fmt: skip
    assert RunConfig.from_dict(yaml.safe_load((run.folder / "config.yaml").read_text())) == tiny()
    rows = metrics(run.folder)
    assert [(row["step"], row["split"]) for row in rows] == [
        (3, "train"),
        (3, "validation"),
        (6, "train"),
        (6, "validation"),
    ]
    result = json.loads((run.folder / "result.json").read_text())
    assert result["run_id"] == tiny().run_id
    assert result["status"] == "done"
    assert result["steps"] == 6
    assert result["validation"]["loss"] == rows[-1]["loss"]
    assert result["test"]["queries"] == len(run.records) == 8 * 6
    assert result["test"]["accuracy"] == pytest.approx(run.records["correct"].mean())
    assert result["parameters"] == sum(p.numel() for p in run.model().parameters())
    assert result["device"] == "cpu"
    assert (result["backend"], result["memory_backend"]) == ("eager", "chunked")
    assert {"mnemolab", "torch", "lightning", "python", "triton", "task"} <= set(result["versions"])
    saved = torch.load(run.folder / "model.pt", weights_only=True)
    assert saved["config"] == tiny().to_dict()


def test_two_runs_of_one_config_are_the_same_run(tiny, tmp_path):
    first, second = train(tiny(), tmp_path / "a"), train(tiny(), tmp_path / "b")
    assert (first.folder / "metrics.jsonl").read_bytes() == (second.folder / "metrics.jsonl").read_bytes()
    pd.testing.assert_frame_equal(first.records, second.records)
    assert metrics(train(tiny(seed=1), tmp_path).folder) != metrics(first.folder)


def test_a_finished_run_is_not_run_again(tiny, tmp_path, monkeypatch):
    first = train(tiny(), tmp_path)
    monkeypatch.setattr(Backbone, "loss", lambda *args: pytest.fail("trained again"))
    assert train(tiny(), tmp_path).result == first.result


def test_what_a_run_stepped_with_is_let_go_at_its_end(tiny, tmp_path, monkeypatch):
    """Graphs and moments of one run must not wait, on a GPU, for Python to look for cycles while the next one runs."""
    made, choose = [], fitting._choose

    def chosen(*args):
        steps = choose(*args)
        made.append(weakref.ref(steps))
        return steps

    monkeypatch.setattr(fitting, "_choose", chosen)
    gc.disable()
    try:
        train(tiny(), tmp_path)
        assert [steps() for steps in made] == [None]
    finally:
        gc.enable()


def test_training_lowers_the_loss(tiny, tmp_path):
    run = train(tiny(**{"budget.steps": 60, "budget.batch_size": 16, "model.width": 16}), tmp_path)
    losses = [row["loss"] for row in metrics(run.folder) if row["split"] == "train"]
    assert losses[-1] < losses[0] - 0.05


def test_the_test_stream_can_wait(tiny, tmp_path):
    run = train(tiny(), tmp_path / "a", read_test=False)
    assert run.result["test"] is None
    assert not (run.folder / "records.parquet").exists()
    with pytest.raises(BadRequest, match="not read"):
        _ = run.records
    later = train(tiny(), tmp_path / "a")
    at_once = train(tiny(), tmp_path / "b")
    assert later.result["test"] == at_once.result["test"]
    pd.testing.assert_frame_equal(later.records, at_once.records)


def test_stopping_when_solved(tiny, tmp_path):
    run = train(tiny(**{"budget.stop_solved": True, "budget.solved_at": 0.0}), tmp_path)
    assert (run.result["steps"], run.result["stopped"], run.result["steps_to_solved"]) == (3, "solved", 3)
    assert run.result["test"]["queries"] > 0


def test_stopping_when_hopeless(tiny, tmp_path):
    run = train(tiny(**{"budget.stop_hopeless": 4, "budget.hope": 0.5, "budget.steps": 12}), tmp_path)
    assert (run.result["steps"], run.result["stopped"]) == (6, "hopeless")  # the first look at or after step 4


@pytest.mark.parametrize(("best", "stopped"), [(0.9, None), (0.6, "hopeless")])
def test_hope_is_the_best_look_so_far_against_chance(tiny, tmp_path, monkeypatch, best, stopped):
    """Chance is .5 here: .9 at the first look and nothing later keeps a run going, .6 does not reach .5 + .2."""
    config = tiny(**{"budget.stop_hopeless": 6, "budget.hope": 0.2, "budget.steps": 9})
    accuracies = iter([best, 0.1, 0.1])
    task = type(config.make_task())
    monkeypatch.setattr(task, "chance", lambda self, batch: torch.full(batch.queries["position"].shape, 0.5))
    monkeypatch.setattr(
        "mnemolab.trainers.callbacks.evaluate", lambda *args: {"loss": 1.0, "accuracy": next(accuracies)}
    )
    assert train(config, tmp_path).result["stopped"] == stopped


def test_each_stream_is_read_for_what_it_is_for(tiny, tmp_path, monkeypatch):
    task, read = type(tiny().make_task()), []
    sample = task.sample

    def heard(self, indices, split="train", seed=0, device="cpu"):
        if len(indices) > 1:  # single examples only show shapes
            read.append((split, len(indices), int(indices.max())))
        return sample(self, indices, split, seed, device)

    monkeypatch.setattr(task, "sample", heard)
    train(tiny(), tmp_path)
    assert [row for row in read if row[0] != "train"] == [("validation", 8, 7), ("test", 8, 7)]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_precisions_and_schedules_run(tiny, tmp_path, precision):
    run = train(tiny(precision=precision, **{"optimiser.schedule": "wsd"}), tmp_path)
    assert math.isfinite(run.result["test"]["loss"])


@pytest.mark.parametrize("layout", ["interleaved"])
def test_tasks_without_a_shared_context_are_read_in_sequence(values, tmp_path, layout):
    config = RunConfig.from_dict(values(task={"name": "associative_recall", "layout": layout}))
    assert config.scoring == "sequential"
    assert set(train(config, tmp_path).records["scoring"]) == {"sequential"}


def test_loggers_hear_every_row(tiny, tmp_path):
    logger = CSVLogger(tmp_path / "csv")
    run = train(tiny(), tmp_path, loggers=[logger])
    logger.save()
    rows = pd.read_csv(f"{logger.log_dir}/metrics.csv")
    assert rows["validation/loss"].dropna().tolist() == pytest.approx(
        [row["loss"] for row in metrics(run.folder) if row["split"] == "validation"]
    )


def test_the_bar_is_a_line_an_event_without_a_terminal(tiny, tmp_path, capsys):
    train(tiny(), tmp_path, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert "step 6/6" in lines[-1]
    assert "validation accuracy" in lines[-1]
    assert "\r" not in "".join(lines)


def test_nan_stops_the_run_and_says_where(tiny, tmp_path, monkeypatch):
    """The fifth step's loss is NaN: parameters stay as they were after the fourth, and the rerun is as if nothing was."""
    whole, calls = Backbone.loss, []

    def loss(self, inputs, targets):
        calls.append(1)
        return whole(self, inputs, targets) * (float("nan") if len(calls) == 5 else 1.0)

    monkeypatch.setattr(Backbone, "loss", loss)
    with pytest.raises(NotFiniteRun, match="step 5"):
        train(tiny(), tmp_path)
    folder = tmp_path / tiny().run_id
    failure = json.loads((folder / "failure.json").read_text())
    assert failure["step"] == 5
    assert failure["batch_indices"] == [16, 20]
    assert all(math.isfinite(norm) for norm in failure["parameter_norms"].values())
    assert "NotFiniteRun" in failure["traceback"]
    assert not (folder / "result.json").exists()
    monkeypatch.setattr(Backbone, "loss", whole)
    again, clean = train(tiny(), tmp_path), train(tiny(), tmp_path / "clean")
    assert again.result["test"] == clean.result["test"]
    assert not (folder / "failure.json").exists()


def test_nan_at_the_last_look_is_told_as_such(tiny, tmp_path, monkeypatch):
    """The last update may spoil the model without a step after it that would notice."""
    monkeypatch.setattr("mnemolab.trainers.callbacks.evaluate", lambda *args: {"loss": float("nan"), "accuracy": 0.0})
    with pytest.raises(NotFiniteRun, match="step 3: validation loss nan after it; lower"):
        train(tiny(), tmp_path)
    folder = tmp_path / tiny().run_id
    assert json.loads((folder / "failure.json").read_text())["step"] == 3
    assert [row["split"] for row in metrics(folder)] == ["train"]


def test_a_folder_with_another_run_in_it_is_not_taken_for_this_one(tiny, tmp_path):
    other = train(tiny(seed=1), tmp_path)
    other.folder.rename(tmp_path / tiny().run_id)
    with pytest.raises(BadRequest, match="another run than its name says"):
        train(tiny(), tmp_path)


def test_asked_to_stop_it_saves_itself_and_goes_on_later(tiny, tmp_path):
    seen = []
    with pytest.raises(Stopped):
        train(tiny(), tmp_path, tell=lambda state: seen.append(state.step), stop=lambda: bool(seen))
    folder = tmp_path / tiny().run_id
    assert (folder / "resume.ckpt").exists()
    assert not (folder / "failure.json").exists()
    on, whole = train(tiny(), tmp_path), train(tiny(), tmp_path / "whole")
    assert on.result["resumed"] == 1
    assert metrics(on.folder) == metrics(whole.folder)
    pd.testing.assert_frame_equal(on.records, whole.records)
    assert all(torch.equal(a, b) for a, b in zip(on.model().parameters(), whole.model().parameters(), strict=True))


@pytest.mark.parametrize("moment", ["on_train_batch_end", "on_train_batch_start"])
def test_sigterm_between_two_callbacks_still_saves(tiny, tmp_path, moment, monkeypatch):
    """The signal comes after the callback that saves has run: it is heeded after the next segment."""
    from lightning.pytorch import LightningModule

    asked = []
    before = signal.signal(signal.SIGTERM, lambda *_: asked.append(1))

    def hook(self, *args):
        if not asked:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(LightningModule, moment, hook)
    try:
        with pytest.raises(Stopped):
            train(tiny(**{"budget.steps": 600}), tmp_path, stop=lambda: bool(asked))
        assert signal.getsignal(signal.SIGTERM) is not before
    finally:
        signal.signal(signal.SIGTERM, before)
    (folder,) = tmp_path.iterdir()
    assert (folder / "resume.ckpt").exists()


def test_a_run_in_hand_is_left_alone(tiny, tmp_path):
    folder = tmp_path / tiny().run_id
    folder.mkdir()
    with held(folder / "lock") as mine:
        assert mine
        with pytest.raises(Busy, match="another process"):
            train(tiny(), tmp_path)
    assert train(tiny(), tmp_path).result["status"] == "done"


def test_what_cannot_start_fails_before_any_step(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(Backbone, "loss", lambda *args: pytest.fail("a step was taken"))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BadRequest, match="cannot write there"):
        train(tiny(), tmp_path / "file")
    with pytest.raises(BadRequest, match="cannot write there"):
        train(tiny(), tmp_path / "file" / "below")
    (tmp_path / tiny().run_id).write_text("a file where the run's folder must be")
    with pytest.raises(BadRequest, match="cannot write there"):
        train(tiny(), tmp_path)
    (tmp_path / "out" / tiny().run_id / "lock").mkdir(parents=True)
    with pytest.raises(BadRequest, match="cannot open this lock"):
        train(tiny(), tmp_path / "out")
    with pytest.raises(BadRequest, match="does not split"):
        train(tiny(), tmp_path / "out", devices=3)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(BadRequest, match="devices=2: this machine has 1 GPUs"):
        train(tiny(device="cuda"), tmp_path / "out", devices=2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(BadRequest, match="names one GPU and devices=2"):
        train(tiny(device="cuda:1"), tmp_path / "out", devices=2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(BadRequest, match="no usable GPU"):
        train(tiny(device="cuda"), tmp_path / "out")


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == torch.device("cuda", 0)
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    assert resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(BadRequest, match="cuda:0 to cuda:1"):
        resolve_device("cuda:2")


def test_an_error_inside_is_one_clear_line_and_a_traceback_on_disk(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(Backbone, "loss", lambda *args: 1 / 0)
    with pytest.raises(RunFailed, match="ZeroDivisionError") as error:
        train(tiny(), tmp_path)
    assert "\n" not in str(error.value)
    assert "1 / 0" in json.loads((tmp_path / tiny().run_id / "failure.json").read_text())["traceback"]


def spoil(folder, name, content=None):
    path = folder / name
    path.unlink() if content is None else path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.yaml", None, "not a run folder"),
        ("config.yaml", b"task: [", "not YAML"),
        ("config.yaml", b"- a list", "mapping"),
        ("config.yaml", b"task: {name: old}\nmodel: {name: kda}", "unknown task 'old'"),
        ("result.json", None, "not finished"),
        ("result.json", b"{", "not readable JSON"),
        ("result.json", b"[]", "not a result"),
        ("records.parquet", b"PAR1 cut", "not a readable Parquet file"),
        ("records.parquet", None, "not read"),
        ("model.pt", b"cut short", "not a mnemolab checkpoint"),
        ("model.pt", None, "no such file"),
        ("metrics.jsonl", b'{"step": 1}\nnonsense\n{"step": 2}\n', "line 2: not a row"),
        ("metrics.jsonl", b'3\n{"step": 2}\n', "line 1: not a row"),
        ("metrics.jsonl", b'{"step": 1}\n{"loss": 2}\n', "line 2: not a row"),
    ],
)
def test_foreign_and_corrupt_folders_get_one_clear_line(tiny, tmp_path, name, content, words):
    run = train(tiny(), tmp_path)
    spoil(run.folder, name, content)
    with pytest.raises(BadRequest, match=words) as error:
        opened = load_run(run.folder)
        _ = opened.records, opened.metrics, opened.model()
    assert "\n" not in str(error.value)
    assert str(run.folder) in str(error.value)


def test_weights_of_another_model_do_not_fit(tiny, tmp_path):
    run, other = train(tiny(), tmp_path), train(tiny(**{"model.width": 16}), tmp_path)
    (run.folder / "model.pt").write_bytes((other.folder / "model.pt").read_bytes())
    with pytest.raises(BadRequest, match="does not fit the model"):
        run.model()


def test_load_run_says_what_is_not_there(tmp_path):
    with pytest.raises(BadRequest, match="no such folder"):
        load_run(tmp_path / "nothing")
    with pytest.raises(BadRequest, match="not a run folder"):
        load_run(tmp_path)


def test_what_a_kill_after_the_result_left_is_cleared(tiny, tmp_path):
    run = train(tiny(), tmp_path)
    for name in ("failure.json", "resume.ckpt"):
        (run.folder / name).write_text("{}")
    train(tiny(), tmp_path)
    assert not (run.folder / "failure.json").exists() and not (run.folder / "resume.ckpt").exists()


@pytest.mark.parametrize("devices", [0, -1, "2", True])
def test_devices_are_a_whole_number(tiny, tmp_path, devices):
    with pytest.raises(BadRequest, match="use a whole number, at least 1"):
        train(tiny(), tmp_path, devices=devices)
