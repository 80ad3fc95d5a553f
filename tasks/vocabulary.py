"""Disjoint token ranges, so that what a token is can be read off its number."""

from collections.abc import Mapping

from mnemolab.errors import BadRequest, unknown

__all__ = ["Vocabulary"]

_LETTERS = {"keys": "k", "values": "v", "filler": ".", "endings": "e", "persistent": "p", "volatile": "q"}


class Vocabulary:
    """`Vocabulary(special=("none",), keys=64, values=64, filler=16)`: consecutive ranges in the order given.

    A range is given by its size, or by names, one a token (`special` always by names). Each is a `range` of token numbers:
    `vocabulary.values.start`, `len(vocabulary.values)`, `token in vocabulary.keys`. A range that is not there is empty.
    Immutable; equal when the ranges are.
    """

    __slots__ = ("_names", "_ranges", "size")
    size: int

    def __init__(self, **sizes: int | tuple[str, ...]):
        start, ranges, names = 0, {}, {}
        for kind, size in sizes.items():
            count = size if isinstance(size, int) else len(size)
            ranges[kind] = range(start, start + count)
            if not isinstance(size, int):
                names.update({start + j: name for j, name in enumerate(size)})
            start += count
        object.__setattr__(self, "_ranges", ranges)
        object.__setattr__(self, "_names", names)
        object.__setattr__(self, "size", start)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Vocabulary is immutable: cannot set {name}")

    def __getstate__(self) -> Mapping[str, int | tuple[str, ...]]:
        return {
            kind: tuple(self._names[t] for t in r) if r and r[0] in self._names else len(r)
            for kind, r in self._ranges.items()
        }

    def __setstate__(self, state: Mapping[str, int | tuple[str, ...]]) -> None:
        self.__init__(**state)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and (self._ranges, self._names) == (other._ranges, other._names)

    def __hash__(self) -> int:
        return hash(tuple(self._ranges.items()))

    def __repr__(self) -> str:
        return f"Vocabulary({', '.join(f'{kind}={value!r}' for kind, value in self.__getstate__().items())})"

    def __getitem__(self, kind: str) -> range:
        """The range `kind`; empty when this vocabulary has none."""
        return self._ranges.get(kind, range(0))

    @property
    def ranges(self) -> dict[str, range]:
        return dict(self._ranges)

    @property
    def special(self) -> range:
        return self["special"]

    @property
    def keys(self) -> range:
        return self["keys"]

    @property
    def values(self) -> range:
        return self["values"]

    @property
    def topics(self) -> range:
        return self["topics"]

    @property
    def filler(self) -> range:
        return self["filler"]

    def token(self, name: str) -> int:
        """The token with that name. Raises BadRequest when there is none."""
        for token, held in self._names.items():
            if held == name:
                return token
        raise unknown("token", name, self._names.values())

    def has(self, name: str) -> bool:
        return name in self._names.values()

    def kind(self, token: int) -> str:
        """The name of the range that `token` lies in. Raises BadRequest outside the vocabulary."""
        for kind, tokens in self._ranges.items():
            if token in tokens:
                return kind
        raise BadRequest(f"token {token}: the vocabulary ends at {self.size - 1}")

    def text(self, token: int) -> str:
        """For people: the token's name, or a letter for its range and its number there, as in `k3`, `v17`, `.4`; bytes as their character."""
        if token in self._names:
            return self._names[token]
        kind = self.kind(token)
        if kind == "bytes":
            letter = chr(token - self._ranges[kind].start)
            return letter if letter.isascii() and letter.isprintable() and letter != " " else f"\\x{ord(letter):02x}"
        return f"{_LETTERS.get(kind, kind)}{token - self._ranges[kind].start}"
