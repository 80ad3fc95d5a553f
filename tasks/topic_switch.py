"""Blocks of pairs from one topic, then from another, or back again; release from proactive interference.

B batch, T time, P pairs a block = queries, N blocks.
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
from mnemolab.tasks.random import Random, constant
from mnemolab.tasks.vocabulary import Vocabulary

__all__ = ["TopicSwitch"]

_CONDITIONS = ("single", "no_shift", "shift", "return")


@dataclass(frozen=True)
class TopicSwitch(Task):
    """Blocks that bind `pairs` keys to values of a topic; with `rebind` every block binds the same keys anew.

        inputs   placebo k1 v3 k2 v7 switch k2 v21 k1 v18 .  k1  k2
        targets  -       -  -  -  -  -      -  -   -  -   -  v18 v21

    The last block is the same in all conditions: `single`, nothing but filler before it; `no_shift`, blocks of its own topic;
    `shift`, blocks of another; `return`, its own, then one block of the other (needs 3 blocks). Consecutive examples run
    through the conditions with the same keys, last block, filler and queries, so that release from proactive interference is
    (p_shift - p_no_shift) / (p_single - p_no_shift) at equal lag and length (Wickens 1970). `marker` "switch" stands where the
    topic changes and a placebo where it does not; "topic" names the topic of each block. `ask` "all" names a topic
    and a key; "relevant" asks whatever belongs to the topic of the last block, so that only a change of topic makes older
    blocks useless (under "current" they are useless whatever follows). The conditions then share the queries of the last block
    alone (`blocks_ago` 0).
    """

    name: ClassVar[str] = "topic_switch"
    version: ClassVar[int] = 2
    axes: ClassVar[tuple[str, ...]] = ("pairs", "blocks", "condition", "marker", "lag_writes", "lag_tokens", "load")
    conditions: ClassVar[tuple[str, ...]] = _CONDITIONS

    length: int = setting(64, "tokens in a sequence", low=4, high=1 << 20)
    pairs: int = setting(8, "pairs in a block", low=1, high=4096)
    blocks: int = setting(2, "blocks in a sequence", low=2, high=64)
    topics: int = setting(4, "topics; a sequence uses at most two", low=2)
    marker: Literal["none", "switch", "topic"] = setting(
        "switch", "token before each block", choices=("none", "switch", "topic")
    )
    condition: Literal["mixed", "single", "no_shift", "shift", "return"] = setting(
        "mixed", "one condition only, or all that the blocks allow in turn", choices=("mixed", *_CONDITIONS)
    )
    rebind: bool = setting(True, "every block binds the same keys; else each has its own")
    ask: Literal["current", "all", "relevant"] = setting(
        "current",
        "which blocks are asked: the last, all, or those of its topic",
        choices=("current", "all", "relevant"),
    )
    key_vocabulary: int = setting(64, "key tokens", low=1)
    topic_values: int = setting(32, "value tokens of each topic", low=1)
    filler_vocabulary: int = setting(16, "filler tokens", low=1, high=4096)

    def __post_init__(self):
        check(self)
        if self.condition == "return" and self.blocks < 3:
            raise BadRequest(
                f"condition=return needs a block to return from: blocks={self.blocks}; set blocks to 3 or more"
            )
        if self.ask == "relevant" and self.rebind:
            raise BadRequest(
                "ask=relevant needs keys that say which block is meant, and rebind=True gives all blocks the same ones; set rebind "
                "to false"
            )
        writes, keys = self.blocks * self.pairs, self.pairs * (1 if self.rebind else self.blocks)
        for name, needed in (("topic_values", writes), ("key_vocabulary", keys)):
            if getattr(self, name) < needed:
                raise BadRequest(
                    f"{name}={getattr(self, name)} is too small: pairs={self.pairs} in blocks={self.blocks} need {needed} "
                    f"different tokens; raise it to {needed} or more"
                )
        if self._spare < 0:
            needed = self.length - self._spare
            raise BadRequest(
                f"length={self.length} is too short: {self.blocks} blocks of {self.pairs} pairs and {self.pairs} queries make "
                f"{needed} tokens; raise length to {needed} or lower pairs or blocks"
            )

    @property
    def _marked(self) -> int:
        return int(self.marker != "none")

    @property
    def _cue(self) -> int:
        return int(self.ask == "all")

    @property
    def _spare(self) -> int:
        return self.length - self.blocks * (self._marked + 2 * self.pairs) - self.pairs * (self._cue + 1)

    @property
    def _turns(self) -> tuple[int, ...]:
        """Conditions of consecutive examples."""
        if self.condition != "mixed":
            return (_CONDITIONS.index(self.condition),)
        return (0, 1, 2, 3) if self.blocks > 2 else (0, 1, 2)

    @property
    def group(self) -> int:
        return len(self._turns)

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(
            special=("placebo", "switch"),
            topics=self.topics,
            keys=self.key_vocabulary,
            values=self.topics * self.topic_values,
            filler=self.filler_vocabulary,
        )

    @property
    def bits(self) -> float:
        # the order of the queries is content too, but no part of the signature
        return self.signature_bits + math.lgamma(self.pairs + 1) / math.log(2)

    @property
    def signature_bits(self) -> float:
        values = log2_arrangements(self.topic_values, self.pairs) + math.log2(self.topics)
        return values + log2_arrangements(self.key_vocabulary, self.pairs)

    def signature(self, batch: Batch) -> Tensor:
        """Keys and values of the last block, which all conditions share."""
        inputs, values = batch.inputs, self.vocabulary.values
        place = torch.arange(self.length, device=inputs.device)
        place = torch.where((inputs >= values.start) & (inputs < values.stop), place, 0).sort(1, descending=True).values
        place = place[:, : self.pairs]
        return torch.cat([inputs.gather(1, place), inputs.gather(1, place - 1)], 1)

    def draw(self, random: Random) -> Batch:
        vocabulary, pairs, blocks, device = self.vocabulary, self.pairs, self.blocks, random.device
        batch, writes = len(random), blocks * pairs
        condition = constant(self._turns, device)[random.twin][:, None]  # (B,1)
        pair_of_topics = random.distinct("topics", 2, self.topics)
        block = torch.arange(blocks, device=device)
        other = ((condition == 2) & (block < blocks - 1)) | ((condition == 3) & (block == blocks - 2))  # (B,N)
        topic = torch.where(other, pair_of_topics[:, 1:], pair_of_topics[:, :1])
        written = ((condition > 0) | (block == blocks - 1)).repeat_interleave(pairs, 1)  # (B,W)

        if self.rebind:
            keys = random.distinct("keys", pairs, self.key_vocabulary) + vocabulary.keys.start
            which = random.permutation("block orders", blocks, pairs)
            token = keys[:, None, :].expand(batch, blocks, pairs).gather(2, which).flatten(1)
            rank = torch.zeros_like(which).scatter_(2, which, torch.arange(pairs, device=device).expand_as(which))
        else:
            token = random.distinct("keys", writes, self.key_vocabulary) + vocabulary.keys.start
            rank = torch.arange(pairs, device=device).expand(batch, blocks, pairs)
        # rank (B,N,P): where in its block key p is bound
        number = random.distinct("values", writes, self.topic_values)
        value = vocabulary.values.start + topic.repeat_interleave(pairs, 1) * self.topic_values + number

        slot = torch.arange(writes, device=device)
        start = 2 * slot + (slot // pairs + 1) * self._marked + room(random, writes, self._spare)
        inputs = filler(random, self.length, vocabulary)
        _put_where(inputs, start, token, written)
        _put_where(inputs, start + 1, value, written)
        if self._marked:
            shifts = torch.cat([torch.zeros_like(topic[:, :1], dtype=torch.bool), topic[:, 1:] != topic[:, :-1]], 1)
            mark = topic + vocabulary.topics.start if self.marker == "topic" else shifts.long()
            _put_where(inputs, start[:, ::pairs] - 1, mark, written[:, ::pairs])

        asked = random.permutation("order", pairs)
        # the block asked about: the last, with ask=all any that the condition and the topic cue single out, or any of its topic
        target_block = torch.full_like(asked, blocks - 1)
        if self.ask == "relevant":
            of_its_topic = torch.where(condition == 1, blocks, torch.where(condition == 3, blocks - 1, 1))
            own = random.below("asked block", pairs, bound=of_its_topic)
            target_block = torch.where((condition == 1) | (own < of_its_topic - 1), own, blocks - 1)
        if self._cue:
            if self.rebind:
                earlier = (random.below("asked topic", pairs, bound=2) == 1) & other.any(1, keepdim=True)
                target_block = torch.where(earlier, blocks - 2, target_block)
            else:
                target_block = torch.where(condition == 0, blocks - 1, random.below("asked block", pairs, bound=blocks))
        places = rank.gather(2, asked[:, None, :].expand(batch, blocks, pairs)).transpose(1, 2)  # (B,Q,N)
        slots = places + block * pairs
        target = slots.gather(2, target_block[..., None])[..., 0]
        width = self._cue + 1
        context = self.length - pairs * width
        position = (context + torch.arange(1, pairs + 1, device=device) * width - 1).expand_as(asked)
        key = token.gather(1, target)
        inputs.scatter_(1, position, key)
        asked_topic = topic.gather(1, target_block) + vocabulary.topics.start
        if self._cue:
            inputs.scatter_(1, position - 1, asked_topic)

        single = condition == 0
        first = torch.where(single, writes - pairs, 0)  # slots before it hold filler
        stale = torch.full_like(slots, -1)
        if self.rebind:
            stale = torch.where((slots == target[..., None]) | single[..., None], -1, slots).flip(-1)
            # newest first, and no hole where the block asked about was not the last
            stale = stale.sort(-1, descending=True).values
        columns = {
            "position": position,
            "start": position - self._cue,
            "fork": context,
            "key": key,
            "target": value.gather(1, target),
            "lag_tokens": position - take(start, target) - 1,
            "lag_writes": writes - 1 - target,
            "version": torch.where(single | (not self.rebind), 0, target_block),
            "serial_position": target - first,
            "query_index": torch.arange(pairs, device=device),
            "load": writes - first,
            "condition": condition,
            "topic": asked_topic,
            "blocks_ago": blocks - 1 - target_block,
        }
        return assemble(inputs, columns, take(value, stale))

    def solve(self, inputs: Tensor) -> Tensor:
        vocabulary, targets = self.vocabulary, torch.full_like(inputs, -100)
        for row, tokens in enumerate(inputs.tolist()):
            held: dict[tuple[int, int], int] = {}
            latest: dict[int, int] = {}
            for t, token in enumerate(tokens):
                if token not in vocabulary.keys:
                    continue
                following = tokens[t + 1] if t + 1 < len(tokens) else -1
                if following in vocabulary.values:
                    topic = (following - vocabulary.values.start) // self.topic_values
                    held[topic, token] = latest[token] = following
                elif self.ask == "all":
                    targets[row, t] = held[tokens[t - 1] - vocabulary.topics.start, token]
                else:
                    targets[row, t] = latest[token]
        return targets

    def chance(self, batch: Batch) -> Tensor:
        """One among the values written before the query."""
        guess = 1.0 / batch.queries["load"].clamp(min=1)
        return torch.where(batch.queries["position"] < 0, 0.0, guess).float()


def _put_where(inputs: Tensor, position: Tensor, token: Tensor, where: Tensor) -> None:
    """Write `token` at `position` where the mask is set, in place; the positions of a row are different."""
    inputs.scatter_(1, position, torch.where(where, token, inputs.gather(1, position)))
