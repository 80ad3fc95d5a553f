"""Keys are bound again and again; the latest, first or previous value is asked.

B batch, T time, K keys = queries, R versions, W writes.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.fields import check, setting
from mnemolab.tasks.base import Batch, Task
from mnemolab.tasks.layout import assemble, filler, log2_arrangements, spread, take
from mnemolab.tasks.random import Random
from mnemolab.tasks.schedule import GAPS, balanced_counts, rebound_keys, schedule, total_rebindings
from mnemolab.tasks.vocabulary import Vocabulary

__all__ = ["KeyOverwrite"]

_ASKS = ("latest", "first", "previous", "mixed")
_CONTROLS = (True, False, "equal", "one")
_NO_NEW_KEYS = ("equal", "one")


@dataclass(frozen=True)
class KeyOverwrite(Task):
    """Writes (key, value) and filler, then each key once in random order; key counts of 1 to `versions` mix in a sequence.

        inputs   k1 v5 k2 v8 .  k1 v3 k3 v1 .  k2 k1
        targets  -  -  -  -  -  -  -  -  -  -  v8 v3

    With `ask` other than "latest" a cue token stands before each asked key, and a key that never had a previous value has
    the answer NONE. Number of writes, filler and length are the same in every example. The lag in writes of the binding asked
    for is uniform on least_lag .. least_lag + lags - 1, whatever the version count and whichever is asked; least_lag, 0 for
    the latest, leaves room for later bindings. Slots beyond the asked keys' bind other keys.
    Examples 2i and 2i + 1 are a pair: in the second the asked key keeps only the binding asked for (and its last one, if the
    previous is asked) and the other bindings go to another key, so the same slots, values, lags and queries test a key that
    was never rebound (`condition` control; `paired_versions` is the number of bindings that its twin has). With `control` true
    that other key is a new one, so a control binds up to K more keys than its twin; with `equal` it is an unasked key that
    the twin binds too, one for each rebound key as far as there are unasked keys: both then bind the same keys, but more
    different ones after an asked binding in the control. With `one` a single asked key is relieved so, the one of most versions
    (of several, the first drawn): its query alone is `control`, the others of that sequence are fresh and rebound as in the twin.
    """

    name: ClassVar[str] = "key_overwrite"
    version: ClassVar[int] = 2
    axes: ClassVar[tuple[str, ...]] = ("versions", "lag_writes", "lag_tokens", "gap_writes", "keys", "load")
    conditions: ClassVar[tuple[str, ...]] = ("fresh", "rebound", "control")

    length: int = setting(64, "tokens in a sequence", low=4, high=1 << 20)
    keys: int = setting(6, "keys asked in a sequence", low=1, high=4096)
    versions: int = setting(4, "most bindings of a key; 1 .. versions are mixed in a sequence", low=1, high=200)
    lags: int = setting(8, "lags in writes that a binding asked for can have, each as often", low=1)
    gap: Literal["any", "near", "far", "mixed"] = setting(
        "any", "distance from the binding before to the one asked for", choices=GAPS
    )
    ask: Literal["latest", "first", "previous", "mixed"] = setting("latest", "which value is asked", choices=_ASKS)
    control: bool | Literal["equal", "one"] = setting(
        True,
        "every second example is the control of the one before; equal: it binds no more keys; one: nor relieves more than one",
        choices=_CONTROLS,
    )
    key_vocabulary: int = setting(24, "key tokens", low=1)
    value_vocabulary: int = setting(128, "value tokens", low=2)
    filler_vocabulary: int = setting(16, "filler tokens", low=1, high=4096)

    def __post_init__(self):
        check(self)
        if self.lags < self.keys:
            raise BadRequest(
                f"lags={self.lags} must be at least keys={self.keys}: each binding asked for has its own slot"
            )
        rebound, left = rebound_keys(self.keys, self.versions)[1], self._left
        if self.control in _NO_NEW_KEYS and rebound and left < 1:
            each = f"({self.lags + rebound - left} give every rebound key an unasked key of its own) "
            raise BadRequest(
                f"control={self.control} needs an unasked key to take older bindings, but keys={self.keys}, "
                f"versions={self.versions}, lags={self.lags}, ask={self.ask} leave it no slot; raise lags to "
                f"{self.lags + 1 - left} or more {each if self.control == 'equal' else ''}or set control=true"
            )
        for name, needed in (("key_vocabulary", self._key_tokens), ("value_vocabulary", self.writes)):
            if getattr(self, name) < needed:
                raise BadRequest(
                    f"{name}={getattr(self, name)} is too small: keys={self.keys}, versions={self.versions}, "
                    f"lags={self.lags}, control={self.control} need {needed} different tokens; raise it to {needed} or more"
                )
        if self._spare < 0:
            raise BadRequest(
                f"length={self.length} is too short: {self.writes} writes of 2 tokens and {self.keys} queries of {self._cue + 1} "
                f"make {self.length - self._spare}; raise length to {self.length - self._spare} or lower keys, versions or lags"
            )

    @property
    def _early(self) -> int:
        """Slots before those of the bindings asked for: as many as bindings can come before theirs."""
        most = total_rebindings(self.keys, self.versions)[1]
        return {"first": 0, "previous": most - rebound_keys(self.keys, self.versions)[0]}.get(self.ask, most)

    @property
    def least_lag(self) -> int:
        """The least lag in writes of a binding asked for: as many slots follow as bindings can come after theirs."""
        most = total_rebindings(self.keys, self.versions)[1]
        return {"latest": 0, "previous": rebound_keys(self.keys, self.versions)[1]}.get(self.ask, most)

    @property
    def writes(self) -> int:
        """Bindings in every sequence, W."""
        return self._early + self.lags + self.least_lag

    @property
    def _others(self) -> int:
        """Keys that are bound once and not asked: the most slots that the asked keys leave, and at least one."""
        return max(1, self.writes - self.keys - total_rebindings(self.keys, self.versions)[0])

    @property
    def _left(self) -> int:
        """The fewest slots that the asked keys leave, each of which binds an unasked key in both twins."""
        return self.writes - self.keys - total_rebindings(self.keys, self.versions)[1]

    @property
    def _key_tokens(self) -> int:
        return self.keys * (1 if self.control in (False, *_NO_NEW_KEYS) else 2) + self._others

    @property
    def _cue(self) -> int:
        return int(self.ask != "latest")

    @property
    def _spare(self) -> int:
        return self.length - 2 * self.writes - self.keys * (self._cue + 1)

    @property
    def vocabulary(self) -> Vocabulary:
        special = ("none", "latest", "first", "previous")
        sizes = {"keys": self.key_vocabulary, "values": self.value_vocabulary, "filler": self.filler_vocabulary}
        return Vocabulary(special=special, **sizes)

    @property
    def group(self) -> int:
        return 2 if self.control else 1

    @property
    def bits(self) -> float:
        values = log2_arrangements(self.value_vocabulary, self.writes)
        return values + log2_arrangements(self.key_vocabulary, self.keys)

    @property
    def signature_bits(self) -> float:
        values = 0 if self.ask in ("previous", "mixed") else log2_arrangements(self.value_vocabulary, self.keys)
        return values + log2_arrangements(self.key_vocabulary, self.keys)

    def signature(self, batch: Batch) -> Tensor:
        """Asked keys and answers, which a control shares with its twin."""
        return torch.cat([batch.queries["key"], batch.queries["target"]], 1)

    def draw(self, random: Random) -> Batch:
        vocabulary, writes, cue = self.vocabulary, self.writes, self._cue
        counts = balanced_counts(random, self.keys, self.versions)
        fixed = torch.full_like(counts, _ASKS.index(self.ask))
        ask = random.below("ask", self.keys, bound=3) if self.ask == "mixed" else fixed
        number = torch.where(ask == 1, 0, counts - 1 - (ask == 2).long())  # which binding; -1: no previous one, NONE
        slots = schedule(
            random, counts, self.versions, self._early, self.lags, self.gap, number.clamp(min=0), self.least_lag
        )  # (B,K,R)
        keys = random.distinct("keys", self._key_tokens, self.key_vocabulary) + vocabulary.keys.start
        key, others = keys[:, : self.keys], keys[:, -self._others :]
        value = random.distinct("values", writes, self.value_vocabulary) + vocabulary.values.start

        target = _of(slots, number)
        # a control keeps the binding asked for, and the one that makes it "previous"; the rest go to a key not asked
        control = (random.twin == 1)[:, None].expand_as(counts)
        if self.control == "one":
            # the others keep theirs: relieved too, they would spread more keys over the slots after the binding asked for.
            # A tie goes to the key drawn first, told apart here and not by argmax, so that every device agrees
            nth_key = torch.arange(self.keys, device=random.device)
            most = (counts * self.keys - nth_key).argmax(1, keepdim=True)
            control = control & (nth_key == most)
        nth = torch.arange(self.versions, device=random.device)
        newest = (ask == 2)[..., None] & (nth == counts[..., None] - 1)
        kept = (nth == number[..., None]) | newest | ~control[..., None]
        mine = torch.where(kept, slots, -1)
        holder = key[..., None].expand_as(slots)
        if self.control:
            giving = ((slots >= 0) & ~kept).any(-1)
            holder = torch.where(kept, holder, self._substitutes(random, keys, slots, target, giving)[..., None])
        token = torch.full((len(random), writes + 1), -1, dtype=torch.int64, device=random.device)
        token = token.scatter_(1, torch.where(slots < 0, writes, slots).flatten(1), holder.flatten(1))[:, :writes]
        turn = (token < 0).long().cumsum(1).clamp(min=1, max=self._others) - 1
        token = torch.where(token < 0, others.gather(1, turn), token)

        start = spread(random, writes, 2, self._spare)
        inputs = filler(random, self.length, vocabulary)
        inputs.scatter_(1, start, token).scatter_(1, start + 1, value)

        order = random.permutation("order", self.keys)
        drawn = counts, ask, number, target, key, control
        counts, ask, number, target, key, control = (x.gather(1, order) for x in drawn)
        mine = mine.gather(1, order[..., None].expand_as(mine))
        context = self.length - self.keys * (cue + 1)
        position = context + torch.arange(1, self.keys + 1, device=random.device) * (cue + 1) - 1
        position = position.expand_as(order)
        inputs.scatter_(1, position, key)
        if cue:
            inputs.scatter_(1, position - 1, ask + vocabulary.token("latest"))

        none = target < 0
        others = torch.where(mine == target[..., None], -1, mine).sort(-1, descending=True).values  # newest first
        before = torch.where(mine < target[..., None], mine, -1).amax(-1)
        columns = {
            "position": position,
            "start": position - cue,
            "fork": context,
            "key": key,
            "target": torch.where(none, vocabulary.token("none"), take(value, target)),
            "lag_tokens": torch.where(none, -1, position - take(start, target) - 1),
            "lag_writes": torch.where(none, -1, writes - 1 - target),
            "version": torch.where(none | control, 0, number),
            "serial_position": target,
            "query_index": torch.arange(self.keys, device=random.device),
            "load": writes,
            "condition": torch.where(counts == 1, 0, torch.where(control, 2, 1)),
            "versions": (mine >= 0).sum(-1),
            "paired_versions": counts,
            "gap_writes": torch.where(none | (before < 0), -1, target - before),
            "ask": ask,
        }
        return assemble(inputs, columns, take(value, others))

    def _substitutes(self, random: Random, keys: Tensor, slots: Tensor, target: Tensor, giving: Tensor) -> Tensor:
        """(B,K) key that takes the bindings which an asked key does not keep in a control; `giving` (B,K) tells who has any."""
        if self.control not in _NO_NEW_KEYS:
            return keys[:, self.keys : 2 * self.keys]
        # free slots bind the unasked keys in order of time, so only the first `bound` of these occur. Those are dealt out in
        # turn, each to no more asked keys than needed, from a random one on: the early ones would serve more often otherwise
        bound = (self.writes - (slots >= 0).sum((1, 2))[:, None]).clamp(min=1)
        if self.control == "one":
            # one whose own slot comes after the binding asked for would be bound there for the first time in the twin, and again
            # in the control
            asked = torch.where(giving, target, 0).sum(1, keepdim=True)
            earlier = asked - ((slots >= 0) & (slots < asked[..., None])).sum((1, 2))[:, None]
            bound = torch.where(earlier > 0, earlier, bound)
        turn = giving.cumsum(1) + random.below("substitutes", 1, bound=bound)
        return keys[:, -self._others :].gather(1, turn % bound)

    def solve(self, inputs: Tensor) -> Tensor:
        vocabulary = self.vocabulary
        cues = {vocabulary.token(name): name for name in ("latest", "first", "previous")}
        targets = torch.full_like(inputs, -100)
        for row, tokens in enumerate(inputs.tolist()):
            held: dict[int, list[int]] = {}
            for t, token in enumerate(tokens):
                if token not in vocabulary.keys:
                    continue
                if t + 1 < len(tokens) and tokens[t + 1] in vocabulary.values:
                    held.setdefault(token, []).append(tokens[t + 1])
                    continue
                cue = cues.get(tokens[t - 1], "latest")
                past = [vocabulary.token("none"), *held[token]]
                targets[row, t] = past[{"latest": -1, "first": 1, "previous": -2}[cue]]
        return targets

    def chance(self, batch: Batch) -> Tensor:
        """One among the `writes` values in the context; where the previous value is asked, NONE as often as it is right."""
        queries, missing = batch.queries, 1 / self.versions
        value = torch.full(queries["position"].shape, 1 / self.writes, device=batch.inputs.device)
        previous = torch.where(queries["lag_writes"] < 0, missing, (1 - missing) * value)
        guess = torch.where(queries["ask"] == _ASKS.index("previous"), previous, value)
        return torch.where(queries["position"] < 0, 0.0, guess).float()


def _of(table: Tensor, index: Tensor) -> Tensor:
    """table (B,K,R) at index (B,K) -> (B,K); an index of -1 gives -1."""
    return torch.where(index < 0, -1, table.gather(2, index.clamp(min=0)[..., None])[..., 0])
