"""Needles in a haystack, placed by depth: one or many keys, values, value tokens and queries.

B batch, T time, P needles, A asked needles, C value tokens, Q = A * C scored positions.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.fields import check, setting
from mnemolab.tasks.base import Batch, Task
from mnemolab.tasks.haystacks import HAYSTACKS, haystack, read_text
from mnemolab.tasks.layout import assemble, check_tokens, log2_arrangements, take
from mnemolab.tasks.random import Random, sort_distinct
from mnemolab.tasks.vocabulary import Vocabulary

__all__ = ["Needle"]


@dataclass(frozen=True)
class Needle(Task):
    """A needle is a marker, a key and a value of `value_tokens` tokens; a query is the key, then a token "next" for each
    further value token.

        inputs   .3 .4 needle k5 v1 v9 .5 .6 k5 next
        targets  -  -  -      -  -  -  -  -  v1 v9

    `keys` keys are planted with `values` needles each and `queries` of them are asked; where a key has several values each
    is asked with its ordinal (`#2 k5`). So RULER's single needle is the default, multi-key is keys > 1, multi-value values > 1
    and multi-query queries > 1 (Hsieh et al. 2024). Depth is uniform over `depths` levels from 0 (start) to 100 percent of
    the haystack, for each needle on its own. `haystack` "file" takes windows of the UTF-8 text in `path`, as bytes: the
    first 12 sixteenths are for train, the next 2 for validation, the last 2 for test.
    """

    name: ClassVar[str] = "needle"
    version: ClassVar[int] = 3
    axes: ClassVar[tuple[str, ...]] = ("length", "depth", "keys", "values", "queries", "haystack", "lag_tokens")
    conditions: ClassVar[tuple[str, ...]] = ("single", "multi_key", "multi_value", "multi_query")

    length: int = setting(128, "tokens in a sequence", low=6, high=1 << 20)
    keys: int = setting(1, "keys that are planted", low=1, high=4096)
    values: int = setting(1, "needles of each key", low=1, high=64)
    queries: int = setting(1, "keys that are asked", low=1)
    value_tokens: int = setting(1, "tokens of a value", low=1, high=64)
    depths: int = setting(11, "levels of depth", low=2, high=1001)
    haystack: Literal["noise", "random", "markov", "file"] = setting("noise", "what needles hide in", choices=HAYSTACKS)
    path: str = setting("", "haystack=file: the text file")
    key_vocabulary: int = setting(64, "key tokens", low=1)
    value_vocabulary: int = setting(64, "value tokens", low=2)
    filler_vocabulary: int = setting(24, "filler tokens; the length of the repeated sentence", low=2, high=4096)

    def __post_init__(self):
        check(self)
        if (self.haystack == "file") != bool(self.path):
            raise BadRequest(
                f"path={self.path!r} with haystack={self.haystack}: give a path if and only if haystack is file"
            )
        if self.queries > self.keys:
            raise BadRequest(f"queries={self.queries} is more than keys={self.keys}; raise keys or lower queries")
        check_tokens(self, key_vocabulary=self.keys, value_vocabulary=self._planted * self.value_tokens)
        if self._hay < 1:
            needed = self.length - self._hay + 1
            raise BadRequest(
                f"length={self.length} is too short: {self._planted} needles of {self._width} tokens and {self._asked} queries of "
                f"{self._query} leave no haystack; raise length to {needed} or more"
            )
        if self.haystack == "file" and len(text := read_text(self.path)) < 8 * self._hay:
            raise BadRequest(
                f"path={self.path!r}: {len(text)} bytes, but length={self.length} needs {8 * self._hay}: windows of "
                f"{self._hay} for validation and for test come from an eighth of the text each; take a longer text or lower length"
            )

    @property
    def _planted(self) -> int:
        return self.keys * self.values

    @property
    def _asked(self) -> int:
        return self.queries * self.values

    @property
    def _width(self) -> int:
        return 2 + self.value_tokens

    @property
    def _query(self) -> int:
        return self.value_tokens + int(self.values > 1)

    @property
    def _hay(self) -> int:
        return self.length - self._planted * self._width - self._asked * self._query

    @property
    def vocabulary(self) -> Vocabulary:
        ordinals = tuple(f"#{j}" for j in range(1, self.values + 1)) if self.values > 1 else ()
        hay = {"bytes": 256} if self.haystack == "file" else {"filler": self.filler_vocabulary}
        special = ("needle", "next", *ordinals)
        return Vocabulary(special=special, keys=self.key_vocabulary, values=self.value_vocabulary, **hay)

    def identity(self) -> dict[str, Any]:
        """The fields, with the text itself in place of where it lies."""
        text = blake2b(read_text(self.path), digest_size=16).hexdigest() if self.path else ""
        return {**super().identity(), "path": text}

    @property
    def bits(self) -> float:
        # the haystack is filler: needles and queries are the content
        values = log2_arrangements(self.value_vocabulary, self._planted * self.value_tokens)
        return values + log2_arrangements(self.key_vocabulary, self.keys)

    def draw(self, random: Random) -> Batch:
        vocabulary, planted, device = self.vocabulary, self._planted, random.device
        tokens, batch = self.value_tokens, len(random)
        key = random.distinct("keys", self.keys, self.key_vocabulary) + vocabulary.keys.start
        value = random.distinct("values", planted * tokens, self.value_vocabulary) + vocabulary.values.start
        value = value.reshape(batch, planted, tokens)
        level = random.below("depth", planted, bound=self.depths)
        offset = (2 * level * self._hay + self.depths - 1) // (2 * (self.depths - 1))  # rounded to whole tokens
        needle = torch.arange(planted, device=device)
        # needles at one depth come in random order
        ties = random.permutation("ties", planted)
        ordered = sort_distinct(offset << 40 | ties << 20 | needle)
        which = ordered & 0xFFFFF  # (B,P) needle in order of time
        rank = torch.zeros_like(which).scatter_(1, which, needle.expand_as(which))
        start = offset + rank * self._width

        context = self.length - self._asked * self._query
        needle_key = key.repeat_interleave(self.values, 1)
        plant = torch.cat(
            [torch.full_like(start, vocabulary.token("needle"))[..., None], needle_key[..., None], value], 2
        )
        places = (start[..., None] + torch.arange(self._width, device=device)).flatten(1)
        free = torch.ones(batch, context, dtype=torch.int64, device=device).scatter_(1, places, 0)
        size = 256 if self.haystack == "file" else self.filler_vocabulary
        hay = haystack(random, self.haystack, self._hay, size, self.path)
        hay = hay + vocabulary["bytes" if self.haystack == "file" else "filler"].start
        inputs = torch.full((batch, self.length), vocabulary.token("next"), device=device)
        inputs[:, :context] = hay.gather(1, (free.cumsum(1) - 1).clamp(min=0)).scatter_(1, places, plant.flatten(1))

        # needles of the first `queries` keys are asked, in random order (keys are random already)
        asked = random.permutation("order", self._asked)  # (B,A)
        of_key = (asked // self.values)[..., None] * self.values + torch.arange(self.values, device=device)
        ranks = take(rank, of_key)  # (B,A,values) when each needle of the key came
        ordinal = (ranks < rank.gather(1, asked)[..., None]).sum(-1)
        begin = context + torch.arange(self._asked, device=device) * self._query
        cue = self._query - tokens
        answer_at = begin[:, None] + cue + torch.arange(tokens, device=device)  # (A,C)
        inputs[:, begin + cue] = needle_key.gather(1, asked)
        if cue:
            inputs[:, begin] = ordinal + vocabulary.token("#1")

        def scored(column: Tensor) -> Tensor:
            """(B,A) to (B,Q)"""
            return column.expand(batch, -1).repeat_interleave(tokens, 1)

        position = answer_at.flatten().expand(batch, -1)
        index = torch.arange(tokens, device=device).repeat(self._asked)
        columns = {
            "position": position,
            "start": scored(begin[None]),
            "fork": context,
            "key": scored(needle_key.gather(1, asked)),
            "target": value.flatten(1).gather(1, scored(asked) * tokens + index),
            "lag_tokens": position - scored(start.gather(1, asked)) - 2 - index,
            "lag_writes": planted - 1 - scored(rank.gather(1, asked)),
            "version": scored(ordinal),
            "serial_position": scored(rank.gather(1, asked)),
            "query_index": scored(torch.arange(self._asked, device=device)[None]),
            "load": planted,
            "condition": 3 if self.queries > 1 else 2 if self.values > 1 else int(self.keys > 1),
            "depth": scored(level.gather(1, asked) * 100 // (self.depths - 1)),
            "token_index": index,
        }
        return assemble(inputs, columns, self._others(value, of_key, ranks, scored(asked) * tokens + index))

    def _others(self, value: Tensor, of_key: Tensor, ranks: Tensor, own: Tensor) -> Tensor:
        """(B,Q,M) the other value tokens of the key, those of later needles first."""
        tokens = self.value_tokens
        index = torch.arange(tokens, device=value.device)
        place = (of_key[..., None] * tokens + index).flatten(2).repeat_interleave(tokens, 1)  # (B,Q,values * C)
        order = (ranks[..., None] * tokens + index).flatten(2).repeat_interleave(tokens, 1)
        # the target itself sorts first and is dropped
        ordered = sort_distinct(torch.where(place == own[..., None], -1, order << 32 | place))
        if ordered.shape[-1] == 1:
            return ordered
        return take(value.flatten(1), ordered[..., 1:].flip(-1) & 0xFFFFFFFF)

    def solve(self, inputs: Tensor) -> Tensor:
        vocabulary, targets = self.vocabulary, torch.full_like(inputs, -100)
        for row, tokens in enumerate(inputs.tolist()):
            held: dict[int, list[list[int]]] = {}
            for t, token in enumerate(tokens):
                if token not in vocabulary.keys:
                    continue
                if t and tokens[t - 1] == vocabulary.token("needle"):
                    held.setdefault(token, []).append(tokens[t + 1 : t + 1 + self.value_tokens])
                    continue
                which = tokens[t - 1] - vocabulary.token("#1") if self.values > 1 else 0
                for j, answer in enumerate(held[token][which]):
                    targets[row, t + j] = answer
        return targets

    def chance(self, batch: Batch) -> Tensor:
        """One among the value tokens in the context that stand at the same place of a value."""
        return torch.where(batch.queries["position"] < 0, 0.0, 1.0 / self._planted).float()
