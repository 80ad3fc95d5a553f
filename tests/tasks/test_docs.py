"""The code of docs/tasks.md runs, and its tables name what there is."""

import re
from pathlib import Path

import pytest
import torch

from mnemolab.tasks import TASKS, make_task
from mnemolab.tasks.base import QUERY_COLUMNS

TEXT = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")


def test_the_code_runs():
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 2
    held = {"__name__": "docs_tasks"}
    try:
        for block in blocks:
            exec(compile(block, "docs/tasks.md", "exec"), held)  # noqa: S102  (our own document)
        assert tuple(held["stale"].shape) == (256, 6, 4)
        task = make_task("one_pair", length=5)
        batch = task.sample(torch.arange(9), split="test")
        assert torch.equal(task.solve(batch.inputs), batch.targets)
    finally:
        TASKS._entries.pop("one_pair", None)


def test_every_column_and_task_is_named():
    for name in [*QUERY_COLUMNS, *TASKS]:
        assert re.search(rf"\b{name}\b", TEXT), name


@pytest.mark.parametrize("name", list(TASKS))
def test_the_tables_fields_and_columns_exist(name):
    row = next(line for line in TEXT.splitlines() if line.startswith(f"| {name} |"))
    task = make_task(name)
    fields = row.split("|")[3]
    own = re.findall(r"`([^`]+)`", fields)
    columns = task.sample(torch.arange(2)).queries
    for column in own[0].split(", "):
        assert column in columns, column
    for field in re.sub(r"\(.*?\)", "", fields.split(";")[0]).split(","):
        assert hasattr(task, field.strip()), field
