"""Published task layouts as YAML in configs/tasks: each names its source and every deviation from it."""

from collections.abc import Mapping
from difflib import get_close_matches
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from mnemolab.errors import BadRequest, unknown
from mnemolab.tasks import TASKS, make_task

if TYPE_CHECKING:
    from mnemolab.tasks.base import Task

__all__ = ["preset", "preset_names", "refuse_preset", "task_or_preset"]


def _folder():
    return files("mnemolab.configs").joinpath("tasks")


def preset_names() -> list[str]:
    """The presets of configs/tasks, in order."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _folder().iterdir() if entry.name.endswith(".yaml"))


def preset(name: str) -> dict[str, Any]:
    """The `task` section of a preset: its name and fields. Raises BadRequest for an unknown preset."""
    import yaml

    if name not in preset_names():
        raise unknown("preset", name, preset_names())
    section = yaml.safe_load(_folder().joinpath(f"{name}.yaml").read_text(encoding="utf-8"))["task"]
    if not isinstance(section, dict) or "name" not in section:
        raise BadRequest(f"configs/tasks/{name}.yaml: needs a section `task` with a name")
    return section


def refuse_preset(name: str) -> None:
    """Raises BadRequest where a task's name is wanted and `name` is a preset's: it says which file to give."""
    if name not in TASKS and name in preset_names():
        raise BadRequest(f"--task {name}: is a preset; give --config {_folder().joinpath(name + '.yaml')}")


def task_or_preset(name: str, fields: Mapping[str, Any]) -> "Task":
    """The task or preset `name` with `fields` over its own. Raises BadRequest for unknown names and fields."""
    if name in TASKS:
        return make_task(name, **fields)
    if name not in preset_names():
        known = [*TASKS, *preset_names()]
        if get_close_matches(name, known, n=1, cutoff=0.6):
            raise unknown("task", name, known)
        raise BadRequest(f"unknown task {name!r}; tasks: {', '.join(TASKS)}; or a preset, a file name in configs/tasks")
    section = preset(name)
    return make_task(section.pop("name"), **{**section, **fields})
