"""Procedural memory tasks. `TASKS` maps a name to its class; adding a task is its file and one line here."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mnemolab.registry import Entry, Registry, lazy_exports

if TYPE_CHECKING:
    from mnemolab.tasks.base import Batch as Batch
    from mnemolab.tasks.base import Task as Task

TASKS = Registry(
    "task",
    {
        "associative_recall": Entry(
            "mnemolab.tasks.associative_recall:AssociativeRecall", "key-value pairs, then each key is asked for its value"
        ),
        "key_overwrite": Entry(
            "mnemolab.tasks.key_overwrite:KeyOverwrite", "keys are bound again and again; the latest value is asked"
        ),
    },
)
register_task = TASKS.register

__getattr__, __dir__ = lazy_exports(__name__, {"Batch": "base", "Task": "base"})


def make_task(name: str, **values: Any) -> "Task":
    """The task `name` with the given fields. Raises BadRequest for an unknown name or field, or sizes that cannot fit."""
    from mnemolab.fields import build

    make: Callable[..., Any] = TASKS[name]
    return build(make, values, "task")
