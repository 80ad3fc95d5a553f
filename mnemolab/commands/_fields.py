"""`--task.versions 4` on a command line: fields that only the named class knows, as plain values by section."""

import json
from collections.abc import Sequence
from typing import Any

from mnemolab.errors import BadRequest, hint

__all__ = ["read_value", "split_fields"]

_WORDS = {"true": True, "false": False, "none": None, "null": None}


def read_value(text: str) -> Any:
    """A JSON value (`4`, `3e-3`, `[1, 2]`), `true`, `false`, `none` in any case, or else the text itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def split_fields(rest: Sequence[str], sections: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
    """`["--task.versions", "4", "--model.width=64"]` -> `{"task": {"versions": 4}, "model": {"width": 64}}`.

    `sections`: the sections that the command takes, all when None. Raises BadRequest for a word that is no
    `--section.field value`, a section that is not in `sections`, a missing value, and a field given twice.
    """
    found: dict[str, dict[str, Any]] = {}
    words = list(rest)
    while words:
        word = words.pop(0)
        name, equals, text = word.partition("=")
        section, dot, field = name.removeprefix("--").partition(".")
        if not (name.startswith("--") and dot and section and field):
            raise BadRequest(f"unknown argument {word!r}; fields are given as --section.field value")
        if sections is not None and section not in sections:
            raise BadRequest(f"unknown section {section!r} in {name}; {hint(section, sections)}")
        if not equals:
            if not words or words[0].startswith("--"):
                raise BadRequest(f"{name} needs a value, as in {name} VALUE")
            text = words.pop(0)
        if field == "name":
            raise BadRequest(f"{name}: the name of a {section} is given as --{section} {text}")
        values = found.setdefault(section, {})
        if field in values:
            raise BadRequest(f"{name} is given twice; give it once")
        values[field] = read_value(text)
    return found
