"""Procedural memory tasks. `TASKS` maps a name to its class; adding a task is its file and one line here."""

from typing import TYPE_CHECKING, Any

from mnemolab.registry import Entry, Registry, lazy_exports

if TYPE_CHECKING:
    from mnemolab.tasks.base import Batch as Batch
    from mnemolab.tasks.base import Task as Task

TASKS = Registry(
    "task",
    {
        "associative_recall": Entry(
            "mnemolab.tasks.associative_recall:AssociativeRecall",
            "key-value pairs, then each key is asked for its value",
        ),
        "key_overwrite": Entry(
            "mnemolab.tasks.key_overwrite:KeyOverwrite", "keys are bound again and again; the latest value is asked"
        ),
        "topic_switch": Entry(
            "mnemolab.tasks.topic_switch:TopicSwitch",
            "blocks from one topic, then another or back; release from interference",
        ),
        "random_copy": Entry(
            "mnemolab.tasks.random_copy:RandomCopy", "a string is copied, reversed, picked out of filler or looked up"
        ),
        "needle": Entry(
            "mnemolab.tasks.needle:Needle", "needles by depth in noise, Zipf-Markov text or a text of your own"
        ),
        "selective_retention": Entry(
            "mnemolab.tasks.selective_retention:SelectiveRetention",
            "facts written once among facts rewritten all the time",
        ),
        "record_update": Entry(
            "mnemolab.tasks.record_update:RecordUpdate",
            "customer records change; current, previous or their order is asked",
        ),
        "stack": Entry("mnemolab.tasks.stack:Stack", "push and pop on many stacks at once"),
        "directed_forgetting": Entry(
            "mnemolab.tasks.directed_forgetting:DirectedForgetting",
            "a block, a token that says forget or keep, another block",
        ),
    },
)
register_task = TASKS.register

__getattr__, __dir__ = lazy_exports(__name__, {"Batch": "base", "Task": "base"})


def make_task(name: str, **values: Any) -> "Task":
    """The task `name` with the given fields. Raises BadRequest for an unknown name or field, or sizes that cannot fit."""
    from mnemolab.fields import build

    make: type[Task] = TASKS[name]
    return build(make, values, "task")
