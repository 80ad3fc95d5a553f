"""Push and pop on many stacks at once.

B batch, T time, S stacks, P pushes a stack, L = 2 S P operations, Q = S P pops.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.fields import check, setting
from mnemolab.tasks.base import Batch, Task
from mnemolab.tasks.layout import assemble, check_tokens, filler, log2_arrangements, room, take
from mnemolab.tasks.random import Random, sort_distinct
from mnemolab.tasks.vocabulary import Vocabulary

__all__ = ["Stack"]


@dataclass(frozen=True)
class Stack(Task):
    """A push is a stack token and a value; a pop is the token "pop" and a stack, whose top value is the answer.

        inputs   k1 v5 k2 v8 pop k1 k1 v3 k1 v9 pop k1 pop k2 pop k1
        targets  -  -  -  -  -   v5 -  -  -  -  -   v9 -   v8 -   v3

    Every stack gets `pushes` pushes and as many pops in an order that never exceeds `depth` values (a fair coin where both
    are possible); the stacks' operations are shuffled together. Popped values are not fed back. A value's lag follows from
    the order of operations. Reading and asking interleave.
    """

    name: ClassVar[str] = "stack"
    version: ClassVar[int] = 2
    axes: ClassVar[tuple[str, ...]] = ("stacks", "depth", "height", "lag_writes", "lag_tokens", "load")

    length: int = setting(72, "tokens in a sequence", low=4, high=1 << 20)
    stacks: int = setting(4, "stacks", low=1, high=4096)
    pushes: int = setting(4, "pushes, and pops, of each stack", low=1, high=256)
    depth: int = setting(4, "most values on a stack", low=1, high=256)
    key_vocabulary: int = setting(16, "stack tokens", low=1)
    value_vocabulary: int = setting(64, "value tokens", low=2)
    filler_vocabulary: int = setting(16, "filler tokens", low=1, high=4096)

    def __post_init__(self):
        check(self)
        check_tokens(self, key_vocabulary=self.stacks, value_vocabulary=self.stacks * self.pushes)
        if self._spare < 0:
            needed = self.length - self._spare
            raise BadRequest(
                f"length={self.length} is too short: stacks={self.stacks} with {self.pushes} pushes and pops of 2 tokens make "
                f"{needed}; raise length to {needed} or lower pushes to {max(1, self.length // (4 * self.stacks))}"
            )

    @property
    def _spare(self) -> int:
        return self.length - 4 * self.stacks * self.pushes

    @property
    def vocabulary(self) -> Vocabulary:
        sizes = {"keys": self.key_vocabulary, "values": self.value_vocabulary, "filler": self.filler_vocabulary}
        return Vocabulary(special=("pop",), **sizes)

    @property
    def bits(self) -> float:
        return log2_arrangements(self.value_vocabulary, self.stacks * self.pushes)

    def draw(self, random: Random) -> Batch:
        vocabulary, device, batch = self.vocabulary, random.device, len(random)
        stacks, pushes, operations = self.stacks, self.pushes, 2 * self.stacks * self.pushes
        pushed, number, height = self._operations(random)  # each (B,S,2P), flattened below to (B,L) by stack, then time
        # the shuffle of the stacks' operations: sorting by stack, then time gives the time of the t-th operation of a stack
        turns = random.permutation("turns", operations) // (2 * pushes)
        time = sort_distinct(turns << 20 | torch.arange(operations, device=device)) & 0xFFFFF
        pushed, number, height = (x.flatten(1) for x in (pushed, number, height))
        stack = torch.arange(stacks, device=device).repeat_interleave(2 * pushes).expand(batch, -1)
        which = stack * pushes + number  # the push that an operation makes or undoes

        key = random.distinct("keys", stacks, self.key_vocabulary) + vocabulary.keys.start
        value = random.distinct("values", stacks * pushes, self.value_vocabulary) + vocabulary.values.start
        start = (2 * torch.arange(operations, device=device) + room(random, operations, self._spare)).gather(1, time)
        inputs = filler(random, self.length, vocabulary)
        token, content = key.gather(1, stack), value.gather(1, which)
        inputs.scatter_(1, start, torch.where(pushed, token, vocabulary.token("pop")))
        inputs.scatter_(1, start + 1, torch.where(pushed, content, token))

        # pushes before each operation, in order of time and back
        in_time = torch.zeros_like(time).scatter_(1, time, pushed.long())
        earlier = (in_time.cumsum(1) - in_time).gather(1, time)
        spare = torch.full((batch, stacks * pushes + 1), -1, dtype=torch.int64, device=device)
        at = torch.where(pushed, which, stacks * pushes)
        serial = spare.scatter(1, at, earlier)
        written = spare.scatter(1, at, start + 1)
        pops = sort_distinct((pushed.long() << 40) | time << 20 | torch.arange(operations, device=device))
        pops = pops[:, : stacks * pushes] & 0xFFFFF  # (B,Q) operations that pop, in order of time

        def of(column: Tensor) -> Tensor:
            return column.gather(1, pops)

        target, load, position = of(which), of(earlier), of(start) + 1
        so_far = of(pushed.reshape(batch, stacks, -1).long().cumsum(-1).flatten(1))  # pushes of this stack so far
        newest = so_far[..., None] - 1 - torch.arange(pushes, device=device)
        others = torch.where(
            (newest < 0) | (newest == of(number)[..., None]), -1, newest + of(stack)[..., None] * pushes
        )
        others = others.sort(-1, descending=True).values[..., : max(1, pushes - 1)]
        columns = {
            "position": position,
            "start": position - 1,
            "fork": -1,
            "key": of(token),
            "target": value.gather(1, target),
            "lag_tokens": position - written.gather(1, target),
            "lag_writes": load - 1 - serial.gather(1, target),
            "version": of(number),
            "serial_position": serial.gather(1, target),
            "query_index": torch.arange(stacks * pushes, device=device),
            "load": load,
            "condition": 0,
            "height": of(height),
        }
        return assemble(inputs, columns, take(value, others))

    def _operations(self, random: Random) -> tuple[Tensor, Tensor, Tensor]:
        """Each (B,S,2P): whether the t-th operation of a stack pushes, the number of the push that it makes or undoes, and
        the values on the stack before it."""
        shape = (len(random), self.stacks)
        coins = random.words("coins", self.stacks, 2 * self.pushes) & 1
        height = torch.zeros(shape, dtype=torch.int64, device=random.device)
        made = torch.zeros_like(height)
        held = torch.zeros(*shape, self.depth + 1, dtype=torch.int64, device=random.device)
        rows = []
        for t in range(2 * self.pushes):
            may_push = (made < self.pushes) & (height < self.depth)
            push = may_push & ((coins[..., t] == 1) | (height == 0))
            top = (height - 1).clamp(min=0)[..., None]
            rows.append((push, torch.where(push, made, held.gather(2, top)[..., 0]), height))
            place = torch.where(push, height, self.depth)[..., None]  # the last column takes what no push writes
            held.scatter_(2, place, made[..., None])
            made = made + push.long()
            height = height + push.long() * 2 - 1
        pushed, number, heights = zip(*rows, strict=True)
        return torch.stack(pushed, -1), torch.stack(number, -1), torch.stack(heights, -1)

    def solve(self, inputs: Tensor) -> Tensor:
        vocabulary, targets = self.vocabulary, torch.full_like(inputs, -100)
        for row, tokens in enumerate(inputs.tolist()):
            held: dict[int, list[int]] = {}
            for t, token in enumerate(tokens):
                if token not in vocabulary.keys:
                    continue
                if tokens[t - 1] == vocabulary.token("pop") and t:
                    targets[row, t] = held[token].pop()
                else:
                    held.setdefault(token, []).append(tokens[t + 1])
        return targets

    def chance(self, batch: Batch) -> Tensor:
        """One among the values written before the pop."""
        guess = 1.0 / batch.queries["load"].clamp(min=1)
        return torch.where(batch.queries["position"] < 0, 0.0, guess).float()
