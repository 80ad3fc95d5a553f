"""A random string is asked back: copied, reversed, picked out of filler, or looked up by its neighbours.

B batch, T time, N items of the string, G tokens of a lookup key, Q queries.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.fields import check, setting
from mnemolab.tasks.base import Batch, Task
from mnemolab.tasks.layout import assemble, filler, log2_arrangements, room
from mnemolab.tasks.random import Random, sort_distinct
from mnemolab.tasks.vocabulary import Vocabulary

__all__ = ["RandomCopy"]

_MODES = ("copy", "reverse", "selective", "prefix", "suffix")


@dataclass(frozen=True)
class RandomCopy(Task):
    """A string of value tokens in filler, then a token "recall" for each answer.

        inputs   .  v3 v7 v1 .  recall recall recall
        targets  -  -  -  -  -  v3     v7     v1

    Modes: "copy"; "reverse" (palindrome); "selective", the items scattered in filler; "suffix" and "prefix", lookups of the
    token after `key_tokens` neighbouring ones, with the key after the string (`recall v3 v7` wants v1) or before it (`key v3
    v7`, then the string, then `recall`) (Jelassi et al. 2024).
    With `forced` the inputs after the first recall token are the answers so far, as in next-token training. `least` draws
    the string length anew on least .. items. Without `replacement` the items of a string are all different.
    """

    name: ClassVar[str] = "random_copy"
    version: ClassVar[int] = 2
    axes: ClassVar[tuple[str, ...]] = ("items", "alphabet", "mode", "string_length", "lag_tokens", "serial_position")
    conditions: ClassVar[tuple[str, ...]] = _MODES

    length: int = setting(48, "tokens in a sequence", low=2, high=1 << 20)
    items: int = setting(16, "items of the string, the most if `least` is given", low=1, high=32768)
    mode: Literal["copy", "reverse", "selective", "prefix", "suffix"] = setting("copy", "what is asked", choices=_MODES)
    alphabet: int = setting(64, "value tokens", low=2)
    replacement: bool = setting(False, "draw items with replacement, so that tokens recur in a string")
    forced: bool = setting(False, "copy, reverse, selective: feed the answers so far instead of recall tokens")
    least: int = setting(0, "least string length, drawn up to `items`; 0 keeps it at `items`", low=0)
    key_tokens: int = setting(1, "prefix, suffix: tokens of the key", low=1, high=8)
    queries: int = setting(4, "prefix, suffix: lookups", low=1)
    filler_vocabulary: int = setting(16, "filler tokens", low=1, high=4096)

    def __post_init__(self):
        check(self)
        if not self.replacement and self.alphabet < self.items:
            raise BadRequest(
                f"alphabet={self.alphabet} is too small for items={self.items} different tokens; raise it to {self.items} or "
                f"set replacement to true"
            )
        if self.least > self.items:
            raise BadRequest(f"least={self.least} is more than items={self.items}; lower it")
        if self._lookup:
            self._check_lookup()
        if self._spare < 0:
            needed = self.length - self._spare
            raise BadRequest(
                f"length={self.length} is too short: items={self.items} and their answers make {needed} tokens in mode "
                f"{self.mode}; raise length to {needed} or lower items"
            )

    def _check_lookup(self) -> None:
        for name in ("forced", "least"):
            if getattr(self, name):
                raise BadRequest(
                    f"{name}={getattr(self, name)}: only for modes copy, reverse and selective, not {self.mode}"
                )
        places = self.items // (self.key_tokens + 1)
        if self.queries > (1 if self.replacement else places):
            most = "1 with replacement" if self.replacement else f"items // (key_tokens + 1) = {places}"
            raise BadRequest(f"queries={self.queries}: at most {most}, so that no key holds another's answer; lower it")
        if self.replacement and self.alphabet**self.key_tokens < 4 * self.items:
            raise BadRequest(
                f"key_tokens={self.key_tokens}: alphabet={self.alphabet} has {self.alphabet**self.key_tokens} such keys, too few "
                f"for unique ones among items={self.items} (at least {4 * self.items}); raise key_tokens or alphabet"
            )

    @property
    def _lookup(self) -> bool:
        return self.mode in ("prefix", "suffix")

    @property
    def _cues(self) -> int:
        """Tokens before the string: the keys of mode prefix."""
        return self.queries * (self.key_tokens + 1) if self.mode == "prefix" else 0

    @property
    def _asking(self) -> int:
        """Tokens of the queries at the end."""
        if not self._lookup:
            return self.items
        return self.queries * (1 if self.mode == "prefix" else self.key_tokens + 1)

    @property
    def _spare(self) -> int:
        return self.length - self.items - self._cues - self._asking

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(special=("recall", "key"), values=self.alphabet, filler=self.filler_vocabulary)

    @property
    def bits(self) -> float:
        items = self.least or self.items
        return items * math.log2(self.alphabet) if self.replacement else log2_arrangements(self.alphabet, items)

    def draw(self, random: Random) -> Batch:
        vocabulary, device = self.vocabulary, random.device
        if self.replacement:
            string = random.below("string", self.items, bound=self.alphabet)
        else:
            string = random.distinct("string", self.items, self.alphabet)
        string = string + vocabulary.values.start
        items = torch.full((len(random), 1), self.items, dtype=torch.int64, device=device)
        if self.least:
            items = random.below("string length", 1, bound=self.items - self.least + 1) + self.least
        place = torch.arange(self.items, device=device)
        # a contiguous string is one thing among filler, scattered items are as many
        scattered = self.mode == "selective"
        before = room(random, self.items if scattered else 1, self._spare)
        start = self._cues + place + before  # (B,N)
        inputs = filler(random, self.length, vocabulary)
        inputs.scatter_(1, start, torch.where(place < items, string, inputs.gather(1, start)))
        if self._lookup:
            return self._ask_keys(random, inputs, string, start)

        context = self.length - self.items
        order = items - 1 - place if self.mode == "reverse" else place.expand_as(string)
        unused = place >= items
        order = order.clamp(min=0)
        target = string.gather(1, order)
        cue = torch.full_like(target, vocabulary.token("recall"))
        if self.forced:
            cue[:, 1:] = target[:, :-1]
        inputs[:, context:] = torch.where(unused, inputs[:, context:], cue)
        position = torch.where(unused, -1, context + place)
        columns = self._columns(position, order, items)
        columns |= {
            "start": context,
            "fork": context,
            "key": vocabulary.token("recall"),
            "target": target,
            "lag_tokens": position - start.gather(1, order),
        }
        return assemble(inputs, columns)

    def _ask_keys(self, random: Random, inputs: Tensor, string: Tensor, start: Tensor) -> Batch:
        """Queries whose answer is the token after G neighbouring ones."""
        vocabulary, width, device = self.vocabulary, self.key_tokens + 1, random.device
        if self.replacement:
            first, unused = self._unique_window(random, string)
        else:
            # segments that do not overlap: no answer is part of another query's key
            offset = random.below("segment offset", 1, bound=self.items % width + 1)
            first = random.distinct("segments", self.queries, self.items // width) * width + offset
            unused = torch.zeros_like(first, dtype=torch.bool)
        answer = first + self.key_tokens
        key = first[..., None] + torch.arange(self.key_tokens, device=device)  # (B,Q,G)
        tokens = string.gather(1, key.flatten(1)).reshape(key.shape)
        before = self.mode == "prefix"
        cue = torch.full_like(tokens[..., :1], vocabulary.token("key" if before else "recall"))
        cue = torch.cat([cue, tokens], 2).flatten(1)
        context = self.length - self._asking
        empty = unused.any(1, keepdim=True)
        if before:
            inputs[:, : self._cues] = torch.where(empty, inputs[:, : self._cues], cue)
            cue = torch.full_like(first, vocabulary.token("recall"))
        inputs[:, context:] = torch.where(empty, inputs[:, context:], cue)
        size = self._asking // self.queries
        position = context + torch.arange(1, self.queries + 1, device=device) * size - 1
        columns = self._columns(torch.where(unused, -1, position), answer, torch.full_like(answer, self.items))
        columns |= {
            "start": position - size + 1,
            "fork": context,
            "key": tokens[..., -1],
            "target": string.gather(1, answer),
            "lag_tokens": position - start.gather(1, answer),
        }
        return assemble(inputs, columns)

    def _unique_window(self, random: Random, string: Tensor) -> tuple[Tensor, Tensor]:
        """(B,1) start of G + 1 items whose key occurs once in the string, and whether there is none."""
        width, device = self.key_tokens + 1, random.device
        windows = string.unfold(1, self.key_tokens, 1)
        equal = torch.ones(len(string), windows.shape[1], windows.shape[1], dtype=torch.bool, device=device)
        for token in windows.unbind(2):  # one number for a whole key could exceed 64 bits
            equal &= token[:, :, None] == token[:, None, :]
        recurs = equal.sum(-1) > 1
        place = torch.arange(self.items - width + 1, device=device)
        order = random.permutation("window", self.items - width + 1)
        best = sort_distinct(recurs[:, :-1].long() << 40 | order << 16 | place)[:, :1]
        return best & 0xFFFF, best >> 40 == 1

    def _columns(self, position: Tensor, serial: Tensor, items: Tensor) -> dict[str, Tensor | int]:
        return {
            "position": position,
            "lag_writes": items - 1 - serial,
            "version": 0,
            "serial_position": serial,
            "query_index": torch.arange(position.shape[1], device=position.device),
            "load": items,
            "condition": _MODES.index(self.mode),
            "string_length": items,
        }

    def solve(self, inputs: Tensor) -> Tensor:
        vocabulary, targets = self.vocabulary, torch.full_like(inputs, -100)
        recall, size = vocabulary.token("recall"), self.key_tokens
        cue = vocabulary.token("key") if self.mode == "prefix" else recall
        for row, tokens in enumerate(inputs.tolist()):
            asks = [t for t, token in enumerate(tokens) if token == recall]
            if not asks:
                continue
            string = [token for token in tokens[: asks[0]] if token in vocabulary.values]
            if self._lookup:
                cues = [t for t, token in enumerate(tokens) if token == cue]
                string = string[len(cues) * size if self.mode == "prefix" else 0 :]
                for t, key_at in zip(asks, cues, strict=True):
                    key = tokens[key_at + 1 : key_at + 1 + size]
                    at = next(j for j in range(len(string) - size) if string[j : j + size] == key)
                    targets[row, t if self.mode == "prefix" else t + size] = string[at + size]
                continue
            wanted = string[::-1] if self.mode == "reverse" else string
            targets[row, asks[0] : asks[0] + len(wanted)] = torch.tensor(wanted)
        return targets

    def chance(self, batch: Batch) -> Tensor:
        """The most frequent token of the string, which is one among its tokens where all differ."""
        used = batch.queries["position"] >= 0
        guess = 1.0 / batch.queries["load"].clamp(min=1).float()
        if self.replacement:
            context = batch.inputs[:, self._cues : self.length - self._asking] - self.vocabulary.values.start
            context = torch.where((context >= 0) & (context < self.alphabet), context, self.alphabet)
            counts = torch.zeros(len(batch), self.alphabet + 1, device=context.device)
            counts.scatter_add_(1, context, torch.ones_like(context, dtype=torch.float32))
            guess = guess * counts[:, : self.alphabet].amax(1, keepdim=True)
        return torch.where(used, guess, 0.0)
