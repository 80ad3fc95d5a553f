import pickle

import pytest

from mnemolab.errors import BadRequest
from mnemolab.tasks.vocabulary import Vocabulary

VOCABULARY = Vocabulary(special=("none", "first"), keys=4, values=8, filler=2)


def test_ranges_are_consecutive_and_disjoint():
    assert VOCABULARY.size == 16
    assert VOCABULARY.special == range(2) and VOCABULARY.keys == range(2, 6)
    assert VOCABULARY.values == range(6, 14) and VOCABULARY.filler == range(14, 16)
    assert VOCABULARY.topics == range(0) and len(VOCABULARY["nothing"]) == 0
    assert [VOCABULARY.kind(token) for token in (0, 2, 13, 15)] == ["special", "keys", "values", "filler"]
    with pytest.raises(BadRequest, match="token 16"):
        VOCABULARY.kind(16)


def test_names_and_texts():
    assert VOCABULARY.token("first") == 1 and VOCABULARY.has("none") and not VOCABULARY.has("k0")
    assert [VOCABULARY.text(token) for token in (0, 2, 13, 15)] == ["none", "k0", "v7", ".1"]
    with pytest.raises(BadRequest, match="did you mean 'first'"):
        VOCABULARY.token("frist")
    spelt = Vocabulary(bytes=256)
    assert spelt.text(ord("a")) == "a" and spelt.text(10) == "\\x0a" and spelt.text(255) == "\\xff"


def test_a_vocabulary_is_a_value():
    assert Vocabulary(special=("none", "first"), keys=4, values=8, filler=2) == VOCABULARY
    assert Vocabulary(special=("none", "last"), keys=4, values=8, filler=2) != VOCABULARY
    assert pickle.loads(pickle.dumps(VOCABULARY)) == VOCABULARY
    assert eval(repr(VOCABULARY), {"Vocabulary": Vocabulary}) == VOCABULARY
    assert hash(VOCABULARY) == hash(pickle.loads(pickle.dumps(VOCABULARY)))
    with pytest.raises(AttributeError, match="immutable"):
        VOCABULARY.size = 3
