"""Whether claims.json and methods.json hold what `mnemolab claims` writes: names, types, finite numbers, intervals in order."""

import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from mnemolab.analysis.claims.claim import TESTS, VERDICTS
from mnemolab.errors import BadRequest

__all__ = ["CLAIM_FIELDS", "CONTRAST_FIELDS", "check_claims", "check_methods"]

OUTCOMES = ("supported", "refuted", "inconclusive")
# an effect at an end of its interval may lie beyond it by rounding
_ROUNDING = 1e-9

Kind = tuple[str, Callable[[Any], bool]]  # what a value is to be, in words, and whether it is


def _number(value: Any) -> bool:
    """Whether it is a number that a float holds; NaN and infinities are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _whole(value: Any) -> bool:
    return isinstance(value, int) and _number(value)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _list(of: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(of, value))


def _dict(of: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(of, value.values()))


def _optional(kind: Kind) -> Kind:
    return f"{kind[0]} or null", lambda value: value is None or kind[1](value)


def _one_of(names: tuple[str, ...]) -> Kind:
    return f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names


NUMBER: Kind = ("a finite number", _number)
COUNT: Kind = ("a whole number, 0 or more", lambda value: _whole(value) and value >= 0)
TEXT: Kind = ("text", _text)
FLAG: Kind = ("true or false", lambda value: isinstance(value, bool))
TEXTS: Kind = ("a list of texts", _list(_text))
WHOLES: Kind = ("a list of whole numbers", _list(_whole))
DICTS: Kind = ("a list of objects", _list(lambda value: isinstance(value, dict)))
MAYBE, MAYBE_COUNT = _optional(NUMBER), _optional(COUNT)

# of every object beside its id
CLAIM_FIELDS: dict[str, Kind] = {
    **dict.fromkeys(("statement", "source", "kind", "statistic", "direction", "unit", "rule", "placebo"), TEXT),
    **dict.fromkeys(("why", "would_change", "deciding", "figure", "note"), TEXT),
    **dict.fromkeys(("effect", "low", "high", "deciding_margin", "p", "power"), MAYBE),
    **dict.fromkeys(("contrasts", "placebo_contrasts", "twins", "checks", "numbers"), DICTS),
    "margin": NUMBER, "verdict": _one_of(VERDICTS), "seeds": COUNT, "seeds_needed": MAYBE_COUNT,
    "placebo_passed": _optional(FLAG), "experiment": TEXTS, "evidence": TEXTS,
}  # fmt: skip
CONTRAST_FIELDS: dict[str, Kind] = {
    "name": TEXT, "test": _one_of(tuple(TESTS)), "outcome": _one_of(OUTCOMES), "lacking": TEXT, "n": COUNT,
    "needed": MAYBE_COUNT, "margin": NUMBER, "values": ("an object of finite numbers", _dict(_number)), **dict.fromkeys(("effect", "low", "high", "p", "adjusted", "power"), MAYBE),
}  # fmt: skip
# files of before 2026-12 have no values
_NEWER = ("values",)
_CHECK: dict[str, Kind] = {
    "name": TEXT, "unit": TEXT, "passed": FLAG, **dict.fromkeys(("value", "low", "high"), MAYBE),
}  # fmt: skip
_FIGURE: dict[str, Kind] = {
    "claims": TEXTS, "experiment": _optional(TEXT),
    **dict.fromkeys(("name", "title", "caption", "alt", "png", "pdf", "csv"), TEXT),
}  # fmt: skip
# what is not there is left unsaid by those who read it
_ENTRY: dict[str, Kind] = {"claims": TEXTS, "provenance": ("an object of texts", _dict(_text))}
_METHODS: dict[str, Kind] = {
    **dict.fromkeys(("tier", "how", "checks_on"), TEXT),
    **dict.fromkeys(("claims", "runs", "steps", "twins", "twins_supported"), COUNT),
    **dict.fromkeys(("seeds", "twin_seeds", "pilot_seeds"), WHOLES),
    **dict.fromkeys(("devices", "diverged"), TEXTS),
    **dict.fromkeys(("training_seconds", "wall_seconds"), NUMBER),
    **dict.fromkeys(("hashes", "provenance", "rules"), ("an object of texts", _dict(_text))),
    "attempts": ("an object of whole numbers", _dict(_whole)),
    "rates": ("an object of objects of numbers", _dict(_dict(_number))),
    "rules_changed": _optional(TEXTS), "twins_limit": MAYBE, "figures": DICTS, "later": DICTS,
}  # fmt: skip


def check_claims(path: Path, rows: list[Any]) -> None:
    """Raise BadRequest for the first thing that is not as `mnemolab claims` writes it."""
    held: set[str] = set()
    for at, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise _refusal(path, f"entry {at}", row, "an object")
        if not (isinstance(row.get("id"), str) and row["id"]):
            raise _refusal(path, f"entry {at}, id", row.get("id"), "text")
        where = f"claim {row['id']}"
        if row["id"] in held:
            raise _refusal(path, f"{where}, id", row["id"], "the id of one object only")
        held.add(row["id"])
        _fields(path, where, row, CLAIM_FIELDS)
        _ordered(path, where, row, inside=bool(row["contrasts"]))
        for part in ("contrasts", "placebo_contrasts", "twins"):
            _contrasts(path, f"{where}, {part}", row[part])
        for check in row["checks"]:
            inside = f"{where}, check {check.get('name')!r}"
            _fields(path, inside, check, _CHECK)
            _ordered(path, inside, check, inside=False)  # these are bounds
        _finite(path, where, row)


def check_methods(path: Path, methods: Mapping[str, Any]) -> None:
    """As `check_claims`, for methods.json."""
    _fields(path, "methods", methods, {name: kind for name, kind in _METHODS.items() if name in methods})
    for at, row in enumerate(methods.get("figures", ()), start=1):
        _fields(path, f"figure {at}", row, _FIGURE)
    for at, row in enumerate(methods.get("later", ()), start=1):
        _fields(path, f"later {at}", row, _ENTRY)
    _finite(path, "methods", methods)


def _contrasts(path: Path, where: str, found: list[dict[str, Any]]) -> None:
    held: set[str] = set()
    for c in found:
        inside = f"{where} {c.get('name')!r}"
        _fields(path, inside, c, {k: kind for k, kind in CONTRAST_FIELDS.items() if k in c or k not in _NEWER})
        if c["name"] in held:
            raise _refusal(path, f"{where}, name", c["name"], "the name of one contrast only")
        held.add(c["name"])
        if c["n"] and c["effect"] is None:
            raise _refusal(path, f"{inside}, effect", None, f"a number, as n is {c['n']}")
        if "values" in c and len(c["values"]) != c["n"]:
            raise _refusal(path, f"{inside}, values", c["values"], f"those of n={c['n']} seeds")
        _ordered(path, inside, c, inside=True)


def _fields(path: Path, where: str, row: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
    for name, (said, fits) in kinds.items():
        if name not in row:
            raise BadRequest(f"{path}: {where} lacks {name!r}; run `mnemolab claims` again")
        if not fits(row[name]):
            raise _refusal(path, f"{where}, {name}", row[name], said)


def _ordered(path: Path, where: str, row: Mapping[str, Any], *, inside: bool) -> None:
    """low <= high, and the effect between them where it is to lie `inside`, as far as they are known."""
    names = ("low", "effect", "high") if inside else ("low", "high")
    known = [(name, row[name]) for name in names if row[name] is not None]
    rest = _ROUNDING * max((abs(value) for _, value in known), default=0.0)
    pairs = [(known[0], known[-1])] if len(known) > 1 else []  # the ends first: they are what is wrong if they are
    for (below, low), (above, high) in [*pairs, *pairwise(known)]:
        if low > high + rest:
            raise _refusal(path, f"{where}, {above}", high, f"not below {below}={low!r}")


def _finite(path: Path, where: str, value: Any) -> None:
    """Numbers that no kind asks about, such as those of `numbers`."""
    for place, number in _numbers(value):
        if not _number(number):
            raise _refusal(path, f"{where}, {place}", number, NUMBER[0])


def _numbers(value: Any, place: str = "") -> Iterator[tuple[str, int | float]]:
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value, start=1):
            yield from _numbers(inner, f"{place} {name}".strip())
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place, value


def _refusal(path: Path, where: str, value: Any, said: str) -> BadRequest:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return BadRequest(f"{path}: {where}={shown}, to be {said}; run `mnemolab claims` again")
