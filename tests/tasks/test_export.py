"""`mnemolab data`: files for other models, and the contact sheet, as a user types it."""

import json
import re

import pandas as pd
import pytest
import torch

from mnemolab.cli import main
from mnemolab.tasks import TASKS, make_task
from mnemolab.tasks.base import QUERY_COLUMNS
from mnemolab.tasks.export import example_rows, query_rows
from mnemolab.tasks.presets import preset_names, task_or_preset
from mnemolab.tasks.sheet import sheet


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_export_holds_the_examples_and_every_query(kind, tmp_path, capsys):
    path = tmp_path / "deep" / f"data.{kind}"
    words = [
        "data",
        "key_overwrite",
        "--n",
        "50",
        "--split",
        "test",
        "--seed",
        "4",
        "--task.versions",
        "3",
        "--out",
        str(path),
    ]
    assert main(words) == 0
    printed = capsys.readouterr().out.split()
    assert printed == [str(path), str(path.with_suffix(f".queries.{kind}")), str(path.with_suffix(".task.json"))]
    read = pd.read_parquet if kind == "parquet" else lambda p: pd.read_json(p, lines=True)
    examples, queries = read(printed[0]), read(printed[1])
    task = make_task("key_overwrite", versions=3)
    batch = task.sample(torch.arange(50), split="test", seed=4)
    assert [list(row) for row in examples["inputs"]] == batch.inputs.tolist()
    assert [list(row) for row in examples["targets"]] == batch.targets.tolist()
    assert len(queries) == (batch.queries["position"] >= 0).sum()
    assert set(QUERY_COLUMNS) | {"stale", "example", "query"} <= set(queries.columns)
    assert set(queries["condition"]) <= set(task.conditions)
    first = queries.iloc[0]
    assert examples["targets"][first["example"]][first["position"]] == first["target"]
    about = json.loads((tmp_path / "deep" / "data.task.json").read_text())
    assert about["fingerprint"] == task.fingerprint() and about["task"]["versions"] == 3
    assert about["vocabulary"]["ranges"]["values"] == [task.vocabulary.values.start, task.vocabulary.values.stop]
    assert not list(tmp_path.glob("**/*.tmp"))


def test_a_folder_that_is_made_is_named(tmp_path, capsys):
    words = ["data", "stack", "--n", "2", "--out", str(tmp_path / "new" / "deep" / "x.jsonl")]
    assert main(words) == 0
    assert capsys.readouterr().err == f"mnemolab data: made the folder {tmp_path / 'new' / 'deep'}\n"
    assert main(words) == 0
    assert capsys.readouterr().err == ""


def test_rows_leave_out_unused_slots():
    task = make_task("directed_forgetting", forgotten="unasked", condition="forget")
    batch = task.sample(torch.arange(3))
    assert len(query_rows(batch, task)) == 3 * task.pairs
    assert [row["example"] for row in example_rows(batch, 5)] == [5, 6, 7]


@pytest.mark.parametrize("name", list(TASKS))
def test_the_contact_sheet_shows_tokens_queries_and_lags(name):
    task = make_task(name)
    batch = task.sample(torch.arange(2))
    text = sheet(task, batch, width=80)
    assert text.count("example ") == 2 and max(map(len, text.splitlines())) < 140
    words = text.split()
    for token in batch.inputs[0].tolist():
        assert task.vocabulary.text(token) in words
    coloured = sheet(task, batch, width=80, colour=True)
    assert "\x1b[32m" in coloured and re.sub(r"\x1b\[\d+m", "", coloured) == text


def test_show_prints_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "stack", "--show", "3"]) == 0
    assert capsys.readouterr().out.count("example ") == 3
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words, message",
    [
        (["data", "key_overwrit"], "did you mean 'key_overwrite'"),
        (["data", "key_overwrite", "--task.version", "3"], "did you mean 'versions'"),
        (["data", "key_overwrite", "--model.width", "3"], "unknown section 'model'"),
        (["data", "key_overwrite", "--task.versions"], "needs a value"),
        (["data", "key_overwrite", "--n", "0"], "--n 0 is too small"),
        (["data", "key_overwrite", "--out", "x.csv"], "parquet or .jsonl"),
        (["data", "key_overwrite", "--out", "x.jsonl", "--format", "parquet"], "agree with --format"),
        (["data", "key_overwrite", "--out", "/proc/none/x.jsonl"], "cannot write there"),
        (["data", "key_overwrite", "stray"], "stray"),
        (["data", "--task.stacks", "3", "stack"], "name the task first: mnemolab data stack --task.stacks 3"),
        (["data", "--task.stacks", "3", "--n", "2"], "name the task first: mnemolab data TASK --task.stacks 3"),
        (["data", "3"], "unknown task '3'; tasks: associative_recall, key_overwrite"),
        (["data", "key_overwrit", "--task.versions", "3"], "did you mean 'key_overwrite'"),
        (["train", "--task", "kimi_linear_mqar", "--model", "kda"], "preset; give --config "),
        (["train", "--task", "kimi_linear_mqar", "--model", "kda"], "kimi_linear_mqar.yaml"),
    ],
)
def test_bad_requests_get_one_line_and_exit_code_2(words, message, capsys):
    try:
        code = main(words)
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert len(error) < 400


def test_every_preset_names_its_source_and_deviations_and_is_right():
    from importlib.resources import files

    assert len(preset_names()) >= 12
    for name in preset_names():
        text = files("mnemolab.configs").joinpath(f"tasks/{name}.yaml").read_text()
        assert text.startswith("# Source: ") and "# Deviations: " in text, name
        task = task_or_preset(name, {})
        batch = task.sample(torch.arange(4), split="test")
        assert torch.equal(task.solve(batch.inputs), batch.targets), name
    assert task_or_preset("mqar_zoology_64x4", {"pairs": 6}).pairs == 6  # type: ignore[attr-defined]
