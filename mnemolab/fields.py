"""Frozen dataclasses from plain values: unknown fields are errors, types are checked, ranges are stated once.

`setting(...)` declares a field with its meaning and range; `build` makes the object (jsonargparse converts the types);
`check` enforces the ranges and belongs in `__post_init__`; `describe` is what `mnemolab list --json` prints.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from functools import cache
from math import isnan
from typing import Any, TypeVar, get_type_hints

from mnemolab.errors import BadRequest, hint

__all__ = ["build", "check", "describe", "setting"]

T = TypeVar("T")


def setting(default: Any, meaning: str, *, low: Any = None, high: Any = None, choices: tuple | None = None) -> Any:
    """A dataclass field with its meaning, inclusive range and allowed values."""
    return field(default=default, metadata={"meaning": meaning, "low": low, "high": high, "choices": choices})


def check(obj: Any) -> None:
    """Raise BadRequest when a field of `obj` lies outside the range or the choices that its `setting` states."""
    for f in fields(obj):
        value, low, high, choices = getattr(obj, f.name), *(f.metadata.get(k) for k in ("low", "high", "choices"))
        if value is None and f.default is not None and "None" not in str(f.type):
            raise BadRequest(f"{f.name}=none: needs a value, such as {f.default!r}")
        for item in value if isinstance(value, tuple) else (value,):
            if item is None:
                continue
            if isinstance(item, float) and isnan(item):  # NaN lies in no range and outside none
                raise BadRequest(f"{f.name}=nan: give a number")
            if choices is not None and item not in choices:
                raise BadRequest(f"{f.name}={item!r}: {hint(str(item), map(str, choices))}")
            if low is not None and item < low:
                raise BadRequest(f"{f.name}={item!r} is too small; the least is {low}")
            if high is not None and item > high:
                raise BadRequest(f"{f.name}={item!r} is too large; the most is {high}")


def build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """`cls(**values)` with types converted and checked. `where` names the section in errors (`task`, `model` ...).

    Raises BadRequest naming field, value and remedy: unknown field, wrong type, out of range.
    """
    known = [f.name for f in fields(cls) if f.init]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise BadRequest(f"{where}: unknown field {name!r}; {hint(str(name), known)}")
    types, needed = _simple(cls)
    if needed <= values.keys() and all(type(value) is types.get(name) for name, value in values.items()):
        make = lambda: cls(**values)  # nothing to convert, which takes milliseconds
    else:
        make = _converted(cls, values, where)
    try:
        return make()
    except BadRequest as error:
        raise BadRequest(f"{where}.{error}") from error


@cache
def _simple(cls: Any) -> tuple[dict[str, type], set[str]]:
    """Types of the fields that hold a number, a truth value or a text and nothing else; names of the fields without a default."""
    try:
        types = get_type_hints(cls)
    except NameError:  # imported for type checkers alone
        types = {}
    needed = {f.name for f in fields(cls) if f.init and f.default is MISSING and f.default_factory is MISSING}
    return {name: kind for name, kind in types.items() if kind in (bool, int, float, str)}, needed


def _converted(cls: type[T], values: Mapping[str, Any], where: str) -> Callable[[], T]:
    from jsonargparse import ArgumentError, ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(cls, where)
    try:
        parsed = parser.parse_object({where: dict(values)})
    except ArgumentError as error:
        raise BadRequest(_reworded(str(error))) from error
    return lambda: parser.instantiate(parsed)[where]


_KINDS = {"int": "a whole number, such as 4", "float": "a number, such as 0.5", "bool": "true or false", "str": "text"}
_UNION = re.compile(r"Does not validate .* Subtypes: .* Errors: - expected (.*) Given value type: .* Given value: ")


def _reworded(message: str) -> str:
    """jsonargparse's words for a wrong type, as one line that says what would do."""
    message = " ".join(message.replace("Parser key", "field").split())
    message = re.sub(r"Expected a <class '(\w+)'>", lambda found: f"expected {_KINDS.get(found[1], found[1])}", message)
    message = re.sub(r"Expected a typing\.Literal\[(.*?)\]", r"expected \1", message)
    # a field of several types gets one error a type
    return _UNION.sub(lambda found: f"expected {found[1].replace(' - expected ', ', or ')}. Got value: ", message)


def describe(cls: type) -> list[dict[str, Any]]:
    """One dict a field: name, type, default, meaning, low, high, choices."""
    rows = []
    for f in fields(cls):
        default = None if f.default is MISSING else f.default
        kind = f.type if isinstance(f.type, str) else getattr(f.type, "__name__", str(f.type))
        rows.append({"name": f.name, "type": kind, "default": default, **f.metadata})
    return rows
