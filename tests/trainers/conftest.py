"""The smallest run that has everything: two layers of nothing much, a few steps, one look at validation in the middle."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mnemolab.trainers import RunConfig

TINY: dict[str, Any] = {
    "task": {"name": "key_overwrite"},
    "model": {"name": "deltanet", "width": 8, "depth": 1, "heads": 1, "head_dim": 8},
    "budget": {"steps": 6, "batch_size": 4, "evaluate_every": 3, "validation_examples": 8, "test_examples": 8},
    "device": "cpu",
}  # fmt: skip


def tiny_values(**changes: Any) -> dict[str, Any]:
    """TINY with dotted fields changed: `tiny_values(**{"budget.steps": 9})`."""
    values = {name: dict(part) if isinstance(part, dict) else part for name, part in TINY.items()}
    for name, value in changes.items():
        section, dot, field = name.partition(".")
        if dot:
            values.setdefault(section, {})[field] = value
        else:
            values[name] = value
    return values


@pytest.fixture
def tiny() -> Callable[..., RunConfig]:
    return lambda **changes: RunConfig.from_dict(tiny_values(**changes))


@pytest.fixture
def values() -> Callable[..., dict[str, Any]]:
    return tiny_values


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Name of the module with the faulty task, importable here and in processes started from here."""
    folder = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", folder)
    from mnemolab.registry import load_plugins

    load_plugins(["faulty_task"])
    yield "faulty_task"
    sys.modules.pop("faulty_task", None)
    from mnemolab.tasks import TASKS

    TASKS._entries.pop("faulty", None)
