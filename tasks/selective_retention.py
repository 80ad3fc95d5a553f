"""Facts that are written once among facts that are rewritten all the time; the key shows which is which.

B batch, T time, K keys = queries, W writes.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.fields import check, setting
from mnemolab.tasks.base import Batch, Task
from mnemolab.tasks.layout import assemble, check_tokens, filler, log2_arrangements, spread, take
from mnemolab.tasks.random import Random
from mnemolab.tasks.schedule import GAPS, schedule
from mnemolab.tasks.vocabulary import Vocabulary

__all__ = ["SelectiveRetention"]


@dataclass(frozen=True)
class SelectiveRetention(Task):
    """`persistent` keys bound once and `volatile` keys bound `rewrites` times; then each key once, in random order.

        inputs   q1 v4 p1 v5 q1 v2 q2 v9 q1 v8 .  p1 q1
        targets  -  -  -  -  -  -  -  -  -  -  -  v5 v8

    Persistent (p) and volatile (q) keys are different token ranges. The last binding of every key of either class has a lag
    in writes uniform on 0 .. span - 1, so that the classes can be compared at equal lag. Slots that are left bind volatile
    keys that are not asked.
    """

    name: ClassVar[str] = "selective_retention"
    version: ClassVar[int] = 2
    axes: ClassVar[tuple[str, ...]] = ("persistent", "volatile", "span", "condition", "lag_writes", "lag_tokens")
    conditions: ClassVar[tuple[str, ...]] = ("persistent", "volatile")

    length: int = setting(72, "tokens in a sequence", low=4, high=1 << 20)
    persistent: int = setting(4, "keys bound once", low=1, high=4096)
    volatile: int = setting(4, "keys bound again and again", low=1, high=4096)
    rewrites: int = setting(4, "bindings of each volatile key", low=2, high=200)
    span: int = setting(16, "lags in writes of last bindings are uniform on 0 .. span - 1", low=2)
    gap: Literal["any", "near", "far", "mixed"] = setting(
        "any", "distance from the binding before to the last one", choices=GAPS
    )
    key_vocabulary: int = setting(64, "key tokens of each class", low=1)
    value_vocabulary: int = setting(64, "value tokens", low=2)
    filler_vocabulary: int = setting(16, "filler tokens", low=1, high=4096)

    def __post_init__(self):
        check(self)
        if self.span < self._keys:
            raise BadRequest(
                f"span={self.span} must be at least persistent + volatile = {self._keys}: each last binding has its own slot"
            )
        most = max(self.persistent, self.volatile + self.span - self._keys)
        check_tokens(self, value_vocabulary=self.writes, key_vocabulary=most)
        if self._spare < 0:
            needed = self.length - self._spare
            raise BadRequest(
                f"length={self.length} is too short: {self.writes} writes of 2 tokens and {self._keys} queries make {needed}; "
                f"raise length to {needed} or lower volatile, rewrites or span"
            )

    @property
    def _keys(self) -> int:
        return self.persistent + self.volatile

    @property
    def writes(self) -> int:
        """Bindings in every sequence, W."""
        return self.volatile * (self.rewrites - 1) + self.span

    @property
    def _spare(self) -> int:
        return self.length - 2 * self.writes - self._keys

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(
            special=("pad",),
            persistent=self.key_vocabulary,
            volatile=self.key_vocabulary,
            values=self.value_vocabulary,
            filler=self.filler_vocabulary,
        )

    @property
    def bits(self) -> float:
        keys = log2_arrangements(self.key_vocabulary, self.persistent) + log2_arrangements(
            self.key_vocabulary, self.volatile
        )
        return keys + log2_arrangements(self.value_vocabulary, self.writes)

    def draw(self, random: Random) -> Batch:
        vocabulary, writes, keys, device = self.vocabulary, self.writes, self._keys, random.device
        condition = (torch.arange(keys, device=device) >= self.persistent).long().expand(len(random), keys)
        counts = torch.where(condition == 1, self.rewrites, 1)
        slots = schedule(random, counts, self.rewrites, writes - self.span, self.span, self.gap)  # (B,K,R)
        lasting = random.distinct("persistent", self.persistent, self.key_vocabulary) + vocabulary["persistent"].start
        others = self.span - keys  # volatile keys that fill the slots left
        volatile = (
            random.distinct("volatile", self.volatile + others, self.key_vocabulary) + vocabulary["volatile"].start
        )
        key = torch.cat([lasting, volatile[:, : self.volatile]], 1)
        token = torch.full((len(random), writes + 1), -1, dtype=torch.int64, device=device)
        held = torch.where(slots < 0, writes, slots).flatten(1)
        token = token.scatter_(1, held, key[..., None].expand_as(slots).flatten(1))[:, :writes]
        if others:
            free = token < 0
            turn = (free.long().cumsum(1) - 1).clamp(min=0, max=others - 1)
            token = torch.where(free, volatile[:, self.volatile :].gather(1, turn), token)
        value = random.distinct("values", writes, self.value_vocabulary) + vocabulary.values.start

        start = spread(random, writes, 2, self._spare)
        inputs = filler(random, self.length, vocabulary)
        inputs.scatter_(1, start, token).scatter_(1, start + 1, value)
        order = random.permutation("order", keys)
        context = self.length - keys
        position = (context + torch.arange(keys, device=device)).expand_as(order)
        key, condition, counts = key.gather(1, order), condition.gather(1, order), counts.gather(1, order)
        slots = slots.gather(1, order[..., None].expand_as(slots))
        target = slots.amax(-1)
        inputs.scatter_(1, position, key)
        stale = torch.where(slots == target[..., None], -1, slots).flip(-1).sort(-1, descending=True).values
        columns = {
            "position": position,
            "start": position,
            "fork": context,
            "key": key,
            "target": take(value, target),
            "lag_tokens": position - take(start, target) - 1,
            "lag_writes": writes - 1 - target,
            "version": counts - 1,
            "serial_position": target,
            "query_index": torch.arange(keys, device=device),
            "load": writes,
            "condition": condition,
            "gap_writes": torch.where(counts > 1, target - stale[..., 0], -1),
        }
        return assemble(inputs, columns, take(value, stale[..., : self.rewrites - 1]))

    def solve(self, inputs: Tensor) -> Tensor:
        vocabulary, targets = self.vocabulary, torch.full_like(inputs, -100)
        for row, tokens in enumerate(inputs.tolist()):
            held: dict[int, int] = {}
            for t, token in enumerate(tokens):
                if vocabulary.kind(token) not in ("persistent", "volatile"):
                    continue
                if t + 1 < len(tokens) and tokens[t + 1] in vocabulary.values:
                    held[token] = tokens[t + 1]
                else:
                    targets[row, t] = held[token]
        return targets

    def chance(self, batch: Batch) -> Tensor:
        """One among the values in the context."""
        return torch.where(batch.queries["position"] < 0, 0.0, 1.0 / self.writes).float()
