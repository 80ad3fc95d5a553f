"""Key-value pairs, then each key is asked for its value.

B batch, T time, W writes (slots), G keys, Q queries, M other values of a key.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.fields import check, setting
from mnemolab.tasks.base import Batch, Task
from mnemolab.tasks.layout import assemble, check_tokens, filler, log2_arrangements, take
from mnemolab.tasks.random import Random, constant, sort_distinct
from mnemolab.tasks.recall_layouts import Places, contiguous, interleaved, scattered
from mnemolab.tasks.spacing import pairs_needed, spaced
from mnemolab.tasks.vocabulary import Vocabulary

__all__ = ["AssociativeRecall"]


@dataclass(frozen=True)
class AssociativeRecall(Task):
    """Bindings of keys to values that are all different, and queries: a key alone, whose value is the answer.

        inputs   k1 v5 .  k2 v8 k3 v1 .  k2 k1 k3
        targets  -  -  -  -  -  -  -  -  v8 v5 v1

    `layout` "context": writes and filler, then all queries in random order; "mqar": writes, then queries scattered in filler
    (Arora et al. 2023, Zoology); "interleaved": queries between writes, with the lag in writes drawn by design.
    Variations, one at a time: `fan` gives keys 1 .. fan values, each asked with its ordinal (`#2 k1`); `repeats` writes some
    pairs twice, 1, 2, 4 .. `spacings` slots apart whatever the lag after the second; `pool` draws the key of every pair anew
    from few keys and asks the latest value (Schlag et al. 2021).
    `family` makes keys of two tokens, a stem that 1 .. family keys share and an ending. `unknown` adds queries of keys that
    were never bound: their answer is NONE.
    """

    name: ClassVar[str] = "associative_recall"
    version: ClassVar[int] = 4
    axes: ClassVar[tuple[str, ...]] = ("pairs", "lag_writes", "lag_tokens", "fan", "neighbours", "spacing", "load")
    conditions: ClassVar[tuple[str, ...]] = ("known", "unknown")

    length: int = setting(48, "tokens in a sequence", low=4, high=1 << 20)
    pairs: int = setting(8, "bindings in a sequence (repeats not counted)", low=1, high=16384)
    layout: Literal["context", "mqar", "interleaved"] = setting(
        "context", "where queries stand", choices=("context", "mqar", "interleaved")
    )
    queries: int = setting(0, "bindings asked, picked at random; 0 asks all that the layout can", low=0)
    unknown: int = setting(0, "further queries, of keys that were never bound", low=0)
    fan: int = setting(1, "most values of a key; 1 .. fan are mixed in a sequence", low=1, high=64)
    repeats: int = setting(0, "pairs that are written twice", low=0)
    spacings: int = setting(4, "repeats: the two writes are 1, 2, 4 .. slots apart, at most this", low=1, high=4096)
    pool: int = setting(0, "keys that every binding draws from with replacement; 0 gives each its own", low=0)
    family: int = setting(1, "most keys that share a stem; above 1 a key is two tokens", low=1)
    lags: int = setting(4, "interleaved: the lag in writes is drawn on 0 .. lags - 1", low=1)
    lag_law: Literal["uniform", "log"] = setting("uniform", "interleaved: law of the lag", choices=("uniform", "log"))
    gap_power: float = setting(0.01, "mqar: query slot i is drawn with weight i ** (gap_power - 1)", low=0.0, high=1.0)
    key_vocabulary: int = setting(64, "key tokens (stems and endings each, if family > 1)", low=1)
    value_vocabulary: int = setting(64, "value tokens", low=2)
    filler_vocabulary: int = setting(16, "filler tokens; 1 makes the filler constant", low=1, high=4096)

    def __post_init__(self):
        check(self)
        varied = [n for n, on in (("fan", self.fan > 1), ("repeats", self.repeats > 0), ("pool", self.pool > 0)) if on]
        if len(varied) > 1:
            raise BadRequest(
                f"{varied[0]}={getattr(self, varied[0])} and {varied[1]}={getattr(self, varied[1])}: vary one"
            )
        if varied and self.layout != "context":
            raise BadRequest(f"{varied[0]}={getattr(self, varied[0])} needs layout=context, not {self.layout!r}")
        if self.repeats and self.pairs < (needed := pairs_needed(self.repeats, self.spacings)):
            raise BadRequest(
                f"repeats={self.repeats} at spacings={self.spacings}: pairs={self.pairs} leave no room for every spacing at "
                f"every lag; raise pairs to {needed} or more, or lower repeats or spacings"
            )
        if self.layout == "interleaved" and (self.lags > self.pairs or self.queries):
            raise BadRequest(
                f"layout=interleaved asks the first pairs - lags + 1 = {self.pairs - self.lags + 1} bindings: needs lags <= pairs "
                f"and queries=0, got lags={self.lags}, pairs={self.pairs}, queries={self.queries}"
            )
        if self.queries > self._most_asked:
            raise BadRequest(f"queries={self.queries} is more than the {self._most_asked} that can be asked; lower it")
        check_tokens(self, key_vocabulary=self._groups + self.unknown, value_vocabulary=self._values)
        query = self._cue + int(self.layout == "mqar")
        needed = self._writes * (self._key_width + 1) + self._queries * query
        if self.length < needed:
            raise BadRequest(
                f"length={self.length} is too short: {self._writes} writes of {self._key_width + 1} tokens and {self._queries} "
                f"queries of {query} make {needed}; raise length to {needed} or lower pairs to about "
                f"{max(1, self.pairs * self.length // needed)}"
            )

    @property
    def _writes(self) -> int:
        return self.pairs + self.repeats

    @property
    def _values(self) -> int:
        return self.pairs

    @property
    def _sizes(self) -> list[int]:
        """Bindings of each key when fan > 1: 1, 2 .. fan, 1, 2 ... until all pairs are used."""
        sizes, left = [], self.pairs
        while left:
            sizes.append(min(left, len(sizes) % self.fan + 1))
            left -= sizes[-1]
        return sizes

    @property
    def _groups(self) -> int:
        """Different keys that are bound, G."""
        return self.pool or (len(self._sizes) if self.fan > 1 else self.pairs)

    @property
    def _most_asked(self) -> int:
        return self.pairs - self.lags + 1 if self.layout == "interleaved" else min(self.pairs, self.pool or self.pairs)

    @property
    def _known(self) -> int:
        return self.queries or self._most_asked

    @property
    def _queries(self) -> int:
        return self._known + self.unknown

    @property
    def _key_width(self) -> int:
        return 1 if self.family == 1 else 2

    @property
    def _cue(self) -> int:
        return self._key_width + int(self.fan > 1)

    @property
    def vocabulary(self) -> Vocabulary:
        ordinals = tuple(f"#{j}" for j in range(1, self.fan + 1)) if self.fan > 1 else ()
        endings = self.key_vocabulary if self.family > 1 else 0
        return Vocabulary(
            special=("none", *ordinals),
            keys=self.key_vocabulary,
            endings=endings,
            values=self.value_vocabulary,
            filler=self.filler_vocabulary,
        )

    @property
    def bits(self) -> float:
        values = log2_arrangements(self.value_vocabulary, self._values)
        return values + (0 if self.pool else log2_arrangements(self.key_vocabulary, self._groups))

    def draw(self, random: Random) -> Batch:
        vocabulary, writes, device = self.vocabulary, self._writes, random.device
        group = self._draw_groups(random)  # (B,W) which key each slot binds
        value = random.distinct("values", self._values, self.value_vocabulary) + vocabulary.values.start
        value = value.gather(1, group) if self.repeats else value
        keys, stems, sharing = self._draw_keys(random)  # (B, G + unknown)
        places = self._place(random, group)
        write, asked = places.write, places.asked
        none, unused = asked == -1, asked == -2

        # the j-th unknown query asks the j-th key that was never bound
        number = torch.where(none, none.long().cumsum(1) - 1 + self._groups, take(group, asked.clamp(min=-1)))
        number = number.clamp(min=0)
        position = places.query + self._cue - 1
        slot = torch.arange(writes, device=device)
        same = (group[:, None, :] == number[..., None]) if self.fan > 1 or self.repeats or self.pool else None
        earlier = 0 if same is None else (same & (slot < asked[..., None])).sum(-1)
        ordinal = torch.where(none, 0, earlier)

        inputs = filler(random, self.length, vocabulary)
        two = self._key_width == 2
        _put(inputs, write + self._key_width - 1, keys.gather(1, group))
        _put(inputs, write + self._key_width, value)
        blank = unused if self.pool else None  # those stay filler
        _put(inputs, position, keys.gather(1, number), blank)
        if two:
            _put(inputs, write, stems.gather(1, group))
            _put(inputs, position - 1, stems.gather(1, number), blank)
        if self.fan > 1:
            _put(inputs, places.query, vocabulary.token("#1") + ordinal, blank)

        known = asked.clamp(min=-1)
        value_position = take(write, known) + self._key_width
        columns = {
            "position": torch.where(unused, -1, position),
            "start": places.query,
            "fork": places.fork,
            "key": keys.gather(1, number),
            "target": torch.where(none, vocabulary.token("none"), take(value, known)),
            "lag_tokens": torch.where(none, -1, position - value_position),
            "lag_writes": torch.where(none, -1, places.load - 1 - asked),
            "version": ordinal,
            "serial_position": known,
            "query_index": torch.arange(asked.shape[1], device=device),
            "load": places.load,
            "condition": none.long(),
            "ordinal": ordinal,
            "fan": 1 if same is None or self.repeats else torch.where(none, 0, same.sum(-1)),
            "neighbours": self._neighbours(stems, group, number) if self.pool and two else sharing.gather(1, number),
            "spacing": 0 if not self.repeats or same is None else _spacing(same, asked),
        }
        stale = None
        if same is not None and not self.repeats:
            others = torch.where(same & (slot != asked[..., None]), slot, -1).sort(-1, descending=True).values
            stale = take(value, others[..., : max(1, (self.fan if self.fan > 1 else writes) - 1)])
        return assemble(inputs, columns, stale)

    def _draw_groups(self, random: Random) -> Tensor:
        """(B,W) number of the key that each slot binds, 0 .. G - 1."""
        if self.pool:
            return random.below("pool", self.pairs, bound=self.pool)
        everyone = torch.arange(self.pairs, device=random.device)
        if self.fan > 1:
            sizes = enumerate(self._sizes)
            everyone = constant(tuple(key for key, size in sizes for _ in range(size)), random.device)
        elif self.repeats:
            first, second = spaced(random, self.repeats, self._writes, self.spacings)
            group = torch.full((len(random), self._writes), -1, dtype=torch.int64, device=random.device)
            twice = everyone[: self.repeats].expand_as(first)
            group.scatter_(1, first, twice).scatter_(1, second, twice)
            return torch.where(group < 0, (group < 0).long().cumsum(1) - 1 + self.repeats, group)
        else:
            return everyone.expand(len(random), -1)
        return everyone[random.permutation("writes", self._writes)]

    def _draw_keys(self, random: Random) -> tuple[Tensor, Tensor, Tensor]:
        """(B, G + unknown) key tokens (endings if family > 1), stems, and other keys of the sequence that share the stem."""
        vocabulary, count = self.vocabulary, self._groups + self.unknown
        keys = random.distinct("keys", count, self.key_vocabulary)
        if self.family == 1:
            return keys + vocabulary.keys.start, keys, torch.zeros_like(keys)
        family, size, left = [], [], self._groups
        while left:
            members = min(left, len(set(family)) % self.family + 1)
            family += [len(set(family))] * members
            size += [members - 1] * members
            left -= members
        families = len(set(family))
        # an unknown key shares its stem with known ones
        family += [j % families for j in range(self.unknown)]
        size += [size[family.index(j % families)] + 1 for j in range(self.unknown)]
        number = constant(tuple(family), random.device)
        stems = random.distinct("stems", families, self.key_vocabulary)[:, number] + vocabulary.keys.start
        sharing = constant(tuple(size), random.device).expand_as(keys)
        # a key's number says where it stands and how often it is written: families are mixed over the numbers
        mix = random.permutation("families", self._groups)
        rest = torch.arange(self._groups, count, device=random.device).expand(len(random), -1)
        mix = torch.cat([mix, rest], 1)
        stems, sharing = stems.gather(1, mix), sharing.gather(1, mix)
        return keys + vocabulary["endings"].start, stems, sharing

    def _neighbours(self, stems: Tensor, group: Tensor, number: Tensor) -> Tensor:
        """(B,Q) other bound keys with the asked key's stem: some keys of a pool are never bound."""
        keys = torch.arange(self._groups, device=stems.device)
        bound = torch.zeros(len(stems), self._groups, dtype=torch.bool, device=stems.device).scatter(1, group, True)
        alike = stems[:, None, : self._groups] == stems.gather(1, number)[..., None]
        return (alike & bound[:, None, :] & (keys != number[..., None])).sum(-1)

    def _place(self, random: Random, group: Tensor) -> Places:
        width, cue = self._key_width + 1, self._cue
        if self.layout == "interleaved":
            return interleaved(random, self.unknown, self.pairs, width, cue, self.length, self.lags, self.lag_law)
        order = random.permutation("order", self._writes)
        if self.repeats or self.pool:
            # only the last binding of a key is asked; those that come after it sort behind
            slot = torch.arange(self._writes, device=random.device)
            later = (group[:, None, :] == group[:, :, None]) & (slot[None, None, :] > slot[None, :, None])
            ordered = sort_distinct(later.any(-1).long() << 40 | order << 16 | slot)
            asked = torch.where(ordered >> 40 == 1, -2, ordered & 0xFFFF)[:, : self._known]
        else:
            asked = order[:, : self._known]
        if self.unknown:
            asked = torch.cat([asked, asked.new_full((len(random), self.unknown), -1)], 1)
            asked = asked.gather(1, random.permutation("unknown order", self._queries))
        if self.layout == "context":
            return contiguous(random, asked, self._writes, width, cue, self.length)
        space = (self.length - self._writes * width) // (cue + 1)
        power = 1 - self.gap_power
        scale = min(256.0, ((1 << 20) - 1) / space**power)
        inverse = [max(1, round(i**power * scale)) for i in range(1, space + 1)]
        return scattered(random, asked, self._writes, width, cue, self.length, inverse)

    def solve(self, inputs: Tensor) -> Tensor:
        vocabulary, targets = self.vocabulary, torch.full_like(inputs, -100)
        last = vocabulary["endings"] if self.family > 1 else vocabulary.keys
        for row, tokens in enumerate(inputs.tolist()):
            held: dict[tuple[int, ...], list[int]] = {}
            for t, token in enumerate(tokens):
                if token not in last:
                    continue
                key = (tokens[t - 1], token) if self.family > 1 else (token,)
                if t + 1 < len(tokens) and tokens[t + 1] in vocabulary.values:
                    held.setdefault(key, []).append(tokens[t + 1])
                elif key not in held:
                    targets[row, t] = vocabulary.token("none")
                else:
                    which = tokens[t - len(key)] - vocabulary.token("#1") if self.fan > 1 else -1
                    targets[row, t] = held[key][which]
        return targets

    def chance(self, batch: Batch) -> Tensor:
        """NONE as often as it is right in this example, else one among the values written before the query."""
        queries = batch.queries
        asked = (queries["position"] >= 0).sum(1, keepdim=True)  # with `pool` a key that never turned up is not asked
        unknown = self.unknown / asked
        values = queries["load"] - self.repeats
        known = (1 - unknown) / values.clamp(min=1)
        guess = torch.where(queries["condition"] == 1, unknown, known)
        return torch.where(queries["position"] < 0, 0.0, guess).float()


def _put(inputs: Tensor, position: Tensor, token: Tensor, unused: Tensor | None = None) -> None:
    """Write `token` at `position`, in place, save where `unused`; the positions of a row are different."""
    if unused is not None:
        token = torch.where(unused, inputs.gather(1, position), token)
    inputs.scatter_(1, position, token)


def _spacing(same: Tensor, asked: Tensor) -> Tensor:
    """(B,Q) slots between the two writes of the asked key, 0 where it was written once."""
    slot = torch.arange(same.shape[-1], device=same.device)
    before = torch.where(same & (slot < asked[..., None]), slot, -1).amax(-1)
    return torch.where(before < 0, 0, asked - before)
