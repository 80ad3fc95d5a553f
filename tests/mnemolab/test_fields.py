"""Building frozen dataclasses from plain values."""

from dataclasses import dataclass
from typing import Literal

import pytest

from mnemolab.errors import BadRequest
from mnemolab.fields import build, check, describe, setting


@dataclass(frozen=True)
class Thing:
    pairs: int = setting(4, "pairs in a sequence", low=1, high=9)
    rate: float = setting(1e-3, "step size", low=0.0)
    mode: str = setting("copy", "what is asked", choices=("copy", "reverse"))
    order: Literal["up", "down"] = "up"
    sizes: tuple[int, ...] = setting((1, 2), "sizes", low=1)
    cap: int | None = None
    twin: bool | Literal["equal"] = setting(True, "what comes second", choices=(True, False, "equal"))

    def __post_init__(self):
        check(self)


def test_types_are_converted():
    made = build(Thing, {"pairs": 3, "rate": "3e-3", "sizes": [3, 4], "cap": 2, "twin": "equal"}, "task")
    assert made == Thing(pairs=3, rate=0.003, sizes=(3, 4), cap=2, twin="equal")


@pytest.mark.parametrize(
    "given, kept", [(True, True), (False, False), ("true", True), ("no", False), ("equal", "equal")]
)
def test_a_truth_value_beside_a_word_stays_one(given, kept):
    """Hashes of configs hold the value, so `true` must not become text where a word is allowed too."""
    assert build(Thing, {"twin": given}, "task").twin is kept


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"pair": 3}, ("task", "'pair'", "did you mean 'pairs'")),
        ({"zzz": 3}, ("'zzz'", "known:", "pairs")),
        ({"pairs": "many"}, ("task.pairs", "a whole number, such as 4", "many")),
        ({"pairs": 2.5}, ("task.pairs", "2.5")),
        ({"pairs": True}, ("task.pairs", "True")),
        ({"pairs": 0}, ("task.pairs=0", "least is 1")),
        ({"rate": float("nan")}, ("task.rate=nan", "give a number")),
        ({"pairs": 10}, ("task.pairs=10", "most is 9")),
        ({"sizes": [3, 0]}, ("sizes=0", "least is 1")),
        ({"mode": "coppy"}, ("mode='coppy'", "did you mean 'copy'")),
        ({"order": "sideways"}, ("task.order", "expected 'up', 'down'", "sideways")),
        ({"twin": "equl"}, ("task.twin", "expected true or false, or 'equal'. Got value: equl")),
        ({"twin": 1}, ("task.twin", "expected true or false, or 'equal'. Got value: 1")),
        ({"twin": None}, ("task.twin=none", "needs a value, such as True")),
    ],
)
def test_errors_name_field_value_and_remedy(values, parts):
    with pytest.raises(BadRequest) as error:
        build(Thing, values, "task")
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_describe_gives_type_default_range_and_meaning():
    rows = {row["name"]: row for row in describe(Thing)}
    assert rows["pairs"] == {
        "name": "pairs",
        "type": "int",
        "default": 4,
        "meaning": "pairs in a sequence",
        "low": 1,
        "high": 9,
        "choices": None,
    }
    assert rows["order"]["default"] == "up"
