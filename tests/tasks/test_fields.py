"""Fields of a task: on the command line, and in `mnemolab list tasks --json`."""

import json

import pytest

from mnemolab.cli import main
from mnemolab.commands._fields import read_value, split_fields
from mnemolab.errors import BadRequest
from mnemolab.tasks import TASKS, make_task


@pytest.mark.parametrize(
    "text, value",
    [
        ("4", 4),
        ("3e-3", 0.003),
        ("true", True),
        ("False", False),
        ("none", None),
        ("[1, 2]", [1, 2]),
        ("kda", "kda"),
        ("-1", -1),
    ],
)
def test_values_are_read_as_a_user_means_them(text, value):
    assert read_value(text) == value and type(read_value(text)) is type(value)


def test_fields_are_split_by_section():
    words = ["--task.versions", "4", "--model.width=64", "--task.lags", "-1", "--task.ask", "first"]
    assert split_fields(words) == {"task": {"versions": 4, "lags": -1, "ask": "first"}, "model": {"width": 64}}
    assert split_fields([]) == {}


@pytest.mark.parametrize(
    "words, message",
    [
        (["stray"], "unknown argument 'stray'"),
        (["--versions", "4"], "--section.field value"),
        (["--task.versions"], "--task.versions needs a value"),
        (["--task.versions", "--task.lags", "3"], "--task.versions needs a value"),
        (["--task.lags", "3", "--task.lags=4"], "given twice"),
        (["--tusk.lags", "3"], "did you mean 'task'"),
    ],
)
def test_what_cannot_be_read_is_said(words, message):
    with pytest.raises(BadRequest, match=message):
        split_fields(words, sections=("task", "model"))


def test_list_describes_every_field(capsys):
    assert main(["list", "tasks", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == set(TASKS) and len(rows) >= 9
    for name, row in rows.items():
        task = make_task(name)
        for field in row["fields"]:
            assert field["meaning"] and field["type"], (name, field)
            assert field["default"] == getattr(task, field["name"])
            kind = type(field["default"])
            assert kind in (bool, str) or field["low"] is not None, (name, field["name"])
        assert {"length"} <= {field["name"] for field in row["fields"]}
