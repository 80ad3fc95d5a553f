"""Customer records whose attributes change at different rates; the current value, the previous one or their order is asked.

B batch, T time, K = entities x attributes keys, R bindings of a key, W writes, Q queries.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.fields import check, setting
from mnemolab.tasks.base import Batch, Task
from mnemolab.tasks.layout import assemble, check_tokens, filler, log2_arrangements, spread, take
from mnemolab.tasks.random import Random, constant
from mnemolab.tasks.schedule import schedule
from mnemolab.tasks.vocabulary import Vocabulary

__all__ = ["RecordUpdate"]

_ATTRIBUTES = ("identity", "plan", "fee", "date", "status")
_ASKS = ("current", "previous", "compare", "mixed")


@dataclass(frozen=True)
class RecordUpdate(Task):
    """Bindings of (entity, attribute) to values, and updates; then queries of entity and attribute.

        inputs   k1 fee v9 k2 plan v4 k1 fee v7 .  previous k1 fee compare k1 fee   current k2 plan
        targets  -  -   -  -  -    -  -  -   -  -  -        -  v9  -       -  lower -       -  v4

    The identity never changes; plan, fee, date and status change more and more often, the status `updates` times. The binding
    asked for has a lag in writes uniform on least_lag .. least_lag + lags - 1 whatever the attribute and whether the current
    or the previous value is asked; least_lag is 0 where only last bindings are asked for. Slots that are left hold records
    of others. "compare" asks whether the current value is higher or lower than the one before (by token number); it and
    "previous" are asked of updated facts only. Facts that never changed are asked as well (condition untouched).
    """

    name: ClassVar[str] = "record_update"
    version: ClassVar[int] = 3
    axes: ClassVar[tuple[str, ...]] = ("entities", "updates", "attribute", "condition", "lag_writes", "lag_tokens")
    conditions: ClassVar[tuple[str, ...]] = ("untouched", "updated", "previous", "compare")

    length: int = setting(128, "tokens in a sequence", low=8, high=1 << 20)
    entities: int = setting(2, "customers whose records are asked", low=1, high=512)
    updates: int = setting(
        2, "updates of the status; the other attributes change in proportion to 3, 2, 1, 0 of 4", low=1
    )
    lags: int = setting(12, "lags in writes that a binding asked for can have, each as often", low=1)
    ask: Literal["current", "previous", "compare", "mixed"] = setting("mixed", "what is asked", choices=_ASKS)
    key_vocabulary: int = setting(64, "entity tokens", low=1)
    attribute_values: int = setting(32, "value tokens of each attribute", low=2)
    filler_vocabulary: int = setting(16, "filler tokens", low=1, high=4096)

    def __post_init__(self):
        check(self)
        keys = self.entities * len(_ATTRIBUTES)
        if self.lags < keys:
            raise BadRequest(
                f"lags={self.lags} must be at least entities x 5 = {keys}: each binding asked for has its own slot"
            )
        check_tokens(self, attribute_values=self.writes, key_vocabulary=self.entities + self._others)
        if self._spare < 0:
            needed = self.length - self._spare
            raise BadRequest(
                f"length={self.length} is too short: {self.writes} writes of 3 tokens and {len(self._asked)} queries of "
                f"{self._width} make {needed}; raise length to {needed} or lower entities, updates or lags"
            )

    @property
    def _counts(self) -> list[int]:
        """Bindings of each of the K keys."""
        return [1 + (2 * self.updates * a + 4) // 8 for a in range(len(_ATTRIBUTES))] * self.entities

    @property
    def _asked(self) -> list[int]:
        """Keys that are asked."""
        everyone = self.ask in ("current", "mixed")
        return [key for key, count in enumerate(self._counts) if everyone or count > 1]

    @property
    def least_lag(self) -> int:
        """The least lag in writes of a binding asked for: after a previous value its successor has room."""
        return sum(count > 1 for count in self._counts) if self.ask in ("previous", "mixed") else 0

    @property
    def _early(self) -> int:
        """Slots before those of the bindings asked for: as many as bindings can come before theirs."""
        most = sum(self._counts) - len(self._counts)
        return most - self.least_lag if self.ask == "previous" else most

    @property
    def writes(self) -> int:
        """Bindings in every sequence, W."""
        return self._early + self.lags + self.least_lag

    @property
    def _others(self) -> int:
        """Slots that the asked keys leave."""
        return self.writes - sum(self._counts)

    @property
    def _width(self) -> int:
        return 2 + int(self.ask != "current")

    @property
    def _spare(self) -> int:
        return self.length - 3 * self.writes - len(self._asked) * self._width

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(
            special=_ASKS[:3],
            answers=("higher", "lower"),
            attributes=_ATTRIBUTES,
            keys=self.key_vocabulary,
            values=len(_ATTRIBUTES) * self.attribute_values,
            filler=self.filler_vocabulary,
        )

    @property
    def bits(self) -> float:
        values = log2_arrangements(self.attribute_values, self.writes)
        return values + log2_arrangements(self.key_vocabulary, self.entities)

    def draw(self, random: Random) -> Batch:
        vocabulary, writes, device, batch = self.vocabulary, self.writes, random.device, len(random)
        kinds, most = len(_ATTRIBUTES), max(self._counts)
        counts = constant(tuple(self._counts), device).expand(batch, -1)
        fixed = torch.full_like(counts, _ASKS.index(self.ask))
        ask = (
            torch.where(counts > 1, random.below("ask", counts.shape[1], bound=3), 0) if self.ask == "mixed" else fixed
        )
        number = (counts - 1 - (ask == 1).long()).clamp(min=0)  # which binding of each key
        slots = schedule(random, counts, most, self._early, self.lags, asked=number, late=self.least_lag)  # (B,K,R)
        keys = torch.arange(counts.shape[1], device=device)
        entity = random.distinct("entities", self.entities + self._others, self.key_vocabulary)
        entity = entity + vocabulary.keys.start
        # slots that no asked key takes hold one fact each of other entities
        holder = torch.full((batch, writes + 1), -1, dtype=torch.int64, device=device)
        held = torch.where(slots < 0, writes, slots).flatten(1)
        holder = holder.scatter_(1, held, keys.repeat_interleave(most).expand(batch, -1))[:, :writes]
        other = holder < 0
        turn = (other.long().cumsum(1) - 1 + self.entities).clamp(min=0, max=entity.shape[1] - 1)
        who = entity.gather(1, torch.where(other, turn, holder // kinds))
        attribute = torch.where(other, random.below("other attributes", writes, bound=kinds), holder % kinds)
        number = random.distinct("values", writes, self.attribute_values)
        value = vocabulary.values.start + attribute * self.attribute_values + number

        start = spread(random, writes, 3, self._spare)
        inputs = filler(random, self.length, vocabulary)
        inputs.scatter_(1, start, who).scatter_(1, start + 2, value)
        inputs.scatter_(1, start + 1, attribute + vocabulary["attributes"].start)

        asked = constant(tuple(self._asked), device)[random.permutation("order", len(self._asked))]  # (B,Q)
        count, ask = counts.gather(1, asked), ask.gather(1, asked)
        own = slots.gather(1, asked[..., None].expand(-1, -1, most))
        latest = own.amax(-1)
        before = torch.where(own < latest[..., None], own, -1).amax(-1)
        target = torch.where(ask == 1, before, latest)
        rose = take(number, latest) > take(number, before)
        compare = ask == 2
        verdict = torch.where(rose, vocabulary.token("higher"), vocabulary.token("lower"))
        context = self.length - asked.shape[1] * self._width
        position = (context + torch.arange(1, asked.shape[1] + 1, device=device) * self._width - 1).expand_as(asked)
        inputs.scatter_(1, position, asked % kinds + vocabulary["attributes"].start)
        inputs.scatter_(1, position - 1, entity.gather(1, asked // kinds))
        if self._width == 3:
            inputs.scatter_(1, position - 2, ask)  # the special tokens are 0, 1, 2
        # the answer of a comparison is a verdict: all values of the key are other values
        answered = (own == target[..., None]) & ~compare[..., None]
        stale = torch.where(answered, -1, own).sort(-1, descending=True).values
        columns = {
            "position": position,
            "start": position - self._width + 1,
            "fork": context,
            "key": entity.gather(1, asked // kinds),
            "target": torch.where(compare, verdict, take(value, target)),
            "lag_tokens": position - take(start, target) - 2,
            "lag_writes": writes - 1 - target,
            "version": count - 1 - (ask == 1).long(),
            "serial_position": target,
            "query_index": torch.arange(asked.shape[1], device=device),
            "load": writes,
            "condition": torch.where(ask == 0, (count > 1).long(), ask + 1),
            "attribute": asked % kinds + vocabulary["attributes"].start,
            "rivals": torch.where(compare, 2, (attribute[:, None, :] == (asked % kinds)[..., None]).sum(-1)),
        }
        return assemble(inputs, columns, take(value, stale))

    def solve(self, inputs: Tensor) -> Tensor:
        vocabulary, targets = self.vocabulary, torch.full_like(inputs, -100)
        for row, tokens in enumerate(inputs.tolist()):
            held: dict[tuple[int, int], list[int]] = {}
            for t, token in enumerate(tokens):
                if token not in vocabulary["attributes"]:
                    continue
                fact = tokens[t - 1], token
                if t + 1 < len(tokens) and tokens[t + 1] in vocabulary.values:
                    held.setdefault(fact, []).append(tokens[t + 1])
                    continue
                cue = vocabulary.text(tokens[t - 2]) if self.ask != "current" else "current"
                if cue == "compare":
                    now, past = held[fact][-1], held[fact][-2]
                    targets[row, t] = vocabulary.token("higher" if now > past else "lower")
                else:
                    targets[row, t] = held[fact][-1 if cue == "current" else -2]
        return targets

    def chance(self, batch: Batch) -> Tensor:
        """One among the values that the context gives for this attribute; one half for a comparison."""
        guess = 1.0 / batch.queries["rivals"].clamp(min=1)
        return torch.where(batch.queries["position"] < 0, 0.0, guess).float()
