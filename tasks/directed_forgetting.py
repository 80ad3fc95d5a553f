"""A block of pairs, then a token that says to forget or to keep it, then another block.

B batch, T time, P pairs a block, Q queries = 2 P.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.fields import check, setting
from mnemolab.tasks.base import Batch, Task
from mnemolab.tasks.layout import assemble, filler, log2_arrangements, room, take
from mnemolab.tasks.random import Random
from mnemolab.tasks.splits import content
from mnemolab.tasks.vocabulary import Vocabulary

__all__ = ["DirectedForgetting"]


@dataclass(frozen=True)
class DirectedForgetting(Task):
    """Two blocks of `pairs` pairs with a forget or keep token between them; then the keys of both, in random order.

        inputs   k1 v5 k2 v8 forget k3 v1 k4 v2 .  k4 k1   k3 k2
        targets  -  -  -  -  -      -  -  -  -  -  v2 none v1 none

    Examples 2i and 2i + 1 differ in that token alone: cost is the recall of the first block lost by forgetting, benefit the
    recall of the second block won. `forgotten` says what a query of a forgotten key wants: "none", the answer NONE (then its
    value is stale); "value", the value all the same, to probe what is left; "unasked", such keys are not asked.
    """

    name: ClassVar[str] = "directed_forgetting"
    version: ClassVar[int] = 2
    axes: ClassVar[tuple[str, ...]] = ("pairs", "block", "condition", "lag_writes", "lag_tokens")
    conditions: ClassVar[tuple[str, ...]] = ("keep", "forget")

    length: int = setting(56, "tokens in a sequence", low=6, high=1 << 20)
    pairs: int = setting(8, "pairs in each of the two blocks", low=1, high=4096)
    condition: Literal["mixed", "keep", "forget"] = setting(
        "mixed", "one condition only, or both in turn", choices=("mixed", "keep", "forget")
    )
    forgotten: Literal["none", "value", "unasked"] = setting(
        "none", "what a query of a forgotten key wants", choices=("none", "value", "unasked")
    )
    key_vocabulary: int = setting(64, "key tokens", low=2)
    value_vocabulary: int = setting(64, "value tokens", low=2)
    filler_vocabulary: int = setting(16, "filler tokens", low=1, high=4096)

    def __post_init__(self):
        check(self)
        for name in ("key_vocabulary", "value_vocabulary"):
            if getattr(self, name) < 2 * self.pairs:
                raise BadRequest(
                    f"{name}={getattr(self, name)} is too small: two blocks of pairs={self.pairs} need {2 * self.pairs} tokens; "
                    f"raise it to {2 * self.pairs} or more"
                )
        if self._spare < 0:
            raise BadRequest(
                f"length={self.length} is too short: 2 x {self.pairs} pairs, a token and {2 * self.pairs} queries make "
                f"{self.length - self._spare}; raise length to {self.length - self._spare} or lower pairs to "
                f"{(self.length - 1) // 6}"
            )

    @property
    def _spare(self) -> int:
        return self.length - 1 - 6 * self.pairs

    @property
    def group(self) -> int:
        return 2 if self.condition == "mixed" else 1

    @property
    def vocabulary(self) -> Vocabulary:
        sizes = {"keys": self.key_vocabulary, "values": self.value_vocabulary, "filler": self.filler_vocabulary}
        return Vocabulary(special=("none", "keep", "forget"), **sizes)

    @property
    def bits(self) -> float:
        # the order of the queries is content too, but no part of the signature
        return self.signature_bits + (
            math.lgamma(2 * self.pairs + 1) / math.log(2) if self.forgotten != "unasked" else 0
        )

    @property
    def signature_bits(self) -> float:
        tokens = log2_arrangements(self.key_vocabulary, 2 * self.pairs)
        return tokens + log2_arrangements(self.value_vocabulary, 2 * self.pairs)

    def signature(self, batch: Batch) -> Tensor:
        """The context, whatever its cue."""
        context = content(batch.inputs[:, : self.length - 2 * self.pairs], self.vocabulary)
        forget, keep = self.vocabulary.token("forget"), self.vocabulary.token("keep")
        return torch.where(context == forget, keep, context)

    def draw(self, random: Random) -> Batch:
        vocabulary, pairs, writes, device = self.vocabulary, self.pairs, 2 * self.pairs, random.device
        condition = random.twin[:, None] if self.condition == "mixed" else torch.full_like(random.twin, 1)[:, None]
        condition = condition * 0 if self.condition == "keep" else condition
        token = random.distinct("keys", writes, self.key_vocabulary) + vocabulary.keys.start
        value = random.distinct("values", writes, self.value_vocabulary) + vocabulary.values.start
        slot = torch.arange(writes, device=device)
        # the cue is an item of its own, after the first block
        start = 2 * slot + (slot >= pairs) + room(random, writes, self._spare)
        inputs = filler(random, self.length, vocabulary)
        inputs.scatter_(1, start, token).scatter_(1, start + 1, value)
        inputs.scatter_(1, start[:, pairs : pairs + 1] - 1, condition + vocabulary.token("keep"))

        asked = random.permutation("order", writes)
        context = self.length - writes
        position = context + torch.arange(writes, device=device)
        lost = (asked < pairs) & (condition == 1)
        key, answer = token.gather(1, asked), value.gather(1, asked)
        stale = torch.full_like(answer, -1)
        if self.forgotten == "unasked":
            inputs[:, context:] = torch.where(lost, inputs[:, context:], key)
            position = torch.where(lost, -1, position)
        else:
            inputs[:, context:] = key
        if self.forgotten == "none":
            stale = torch.where(lost, answer, -1)
            answer = torch.where(lost, vocabulary.token("none"), answer)
        columns = {
            "position": position.expand_as(asked),
            "start": position,
            "fork": context,
            "key": key,
            "target": answer,
            "lag_tokens": position - take(start, asked) - 1,
            "lag_writes": writes - 1 - asked,
            "version": 0,
            "serial_position": asked,
            "query_index": torch.arange(writes, device=device),
            "load": writes,
            "condition": condition,
            "block": (asked >= pairs).long(),
            "forgotten": lost.long(),
        }
        return assemble(inputs, columns, stale[..., None])

    def solve(self, inputs: Tensor) -> Tensor:
        vocabulary, targets = self.vocabulary, torch.full_like(inputs, -100)
        none, forget = vocabulary.token("none"), vocabulary.token("forget")
        for row, tokens in enumerate(inputs.tolist()):
            held: dict[int, int] = {}
            for t, token in enumerate(tokens):
                if token == forget and self.forgotten == "none":
                    held = dict.fromkeys(held, none)
                elif token in vocabulary.keys and t + 1 < len(tokens) and tokens[t + 1] in vocabulary.values:
                    held[token] = tokens[t + 1]
                elif token in vocabulary.keys:
                    targets[row, t] = held[token]
        return targets

    def chance(self, batch: Batch) -> Tensor:
        """One among the values in the context; after a forget token NONE as often as it is right, which is half the time."""
        queries = batch.queries
        guess = torch.full(queries["position"].shape, 1.0 / (2 * self.pairs), device=batch.inputs.device)
        if self.forgotten == "none":
            forget = queries["condition"] == 1
            guess = torch.where(forget, torch.where(queries["forgotten"] == 1, 0.5, guess / 2), guess)
        return torch.where(queries["position"] < 0, 0.0, guess)
