"""What every task is: a frozen config that makes batches, solves them, and knows its chance level.

B batch, T time, Q queries per example, M earlier values of a key.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.tasks.random import Random
from mnemolab.tasks.splits import CONTENT_BITS, LEAST_BITS, belongs, content
from mnemolab.tasks.vocabulary import Vocabulary

__all__ = ["QUERY_COLUMNS", "SPLITS", "Batch", "Split", "Task", "join"]

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

_INDEX_BITS = 48  # the counter of the random numbers holds as many beside the attempt
_TRIES = 512  # candidates a round at least, where a hash of the content names the split: few examples try many at once

# Columns that every task's query table has, all int64 of shape (B,Q), with -1 in unused slots. Beside them is `stale` (B,Q,M).
QUERY_COLUMNS = {
    "position": "index t whose logits must give the target",
    "start": "first token of this query's cue; start <= position",
    "fork": "length of the context that all queries share, or -1 where reading and asking interleave",
    "key": "token of the asked key",
    "target": "token of the right answer",
    "lag_tokens": "`position` minus the position of the target's value token; -1 where nothing was written (answer NONE)",
    "lag_writes": "bindings written after the target's, before `start`; -1 where nothing was written",
    "version": "bindings this key had before the one asked for",
    "serial_position": "bindings written before the target's; -1 where nothing was written",
    "query_index": "queries asked before this one",
    "load": "bindings written before `start`",
    "condition": "index into the task's `conditions`",
}


@dataclass(frozen=True)
class Batch:
    """Examples and their query table.

    `inputs` (B,T) int64. `targets` (B,T) int64: what the logits at t must say (no shift), -100 where nothing is scored.
    `queries`: the columns of QUERY_COLUMNS, `stale` (B,Q,M) with the other values that the key has or had, newest first,
    -1 padded (M >= 1), and any columns of the task's own. Scored positions and used query slots correspond one to one.
    """

    inputs: Tensor
    targets: Tensor
    queries: dict[str, Tensor]

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def to(self, device: torch.device | str) -> "Batch":
        moved = {name: column.to(device) for name, column in self.queries.items()}
        return Batch(self.inputs.to(device), self.targets.to(device), moved)


def join(batches: list[Batch]) -> Batch:
    """The examples of all `batches` in order."""
    columns = {name: torch.cat([batch.queries[name] for batch in batches]) for name in batches[0].queries}
    return Batch(torch.cat([b.inputs for b in batches]), torch.cat([b.targets for b in batches]), columns)


@dataclass(frozen=True)
class Task(ABC):
    """A frozen dataclass of difficulty fields that constructs without arguments.

    Every subclass has a field `length`, class attributes `name`, `version` (raised when its data change), `axes` (query
    columns and fields that its analysis plots against) and `conditions` (names of the `condition` codes), and `draw`.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    axes: ClassVar[tuple[str, ...]]
    conditions: ClassVar[tuple[str, ...]] = ("all",)

    @property
    @abstractmethod
    def vocabulary(self) -> Vocabulary:
        """Disjoint token ranges; `vocabulary.size` is the model's vocabulary."""

    @property
    def group(self) -> int:
        """Consecutive examples that share their random numbers: an experimental condition and its paired controls."""
        return 1

    @property
    def bits(self) -> float:
        """log2 of a lower bound on the number of different contents (filler does not count); small spaces are split by it."""
        return math.inf

    @property
    def split_by_content(self) -> bool:
        """Whether an example's content says which split it belongs to. How many candidates are drawn then depends on them."""
        return self.bits < CONTENT_BITS

    @property
    def signature_bits(self) -> float:
        """log2 of a lower bound on the number of different signatures."""
        return self.bits

    def signature(self, batch: Batch) -> Tensor:
        """(B,N) int64, the part of an example that names its split where the space is small: a function of its content
        (tokens that are not filler, in order) that the examples of a group share; by default all of the content."""
        return content(batch.inputs, self.vocabulary)

    def draw(self, random: Random) -> Batch:
        """The examples of `random`, made with its numbers alone and on its device."""
        raise NotImplementedError(f"{type(self).__name__} must define draw(random) -> Batch, or sample")

    def sample(
        self, indices: Tensor, split: Split = "train", seed: int = 0, device: str | torch.device = "cpu"
    ) -> Batch:
        """Examples `indices` (B,) int64 of the stream (split, seed): a pure function of each index, on any device.

        Streams of different splits are independent. Where the space of examples is so small that they would collide
        (`bits` below 80), an example belongs to the split that a hash of its `signature` names, and candidates are drawn
        until one does. No index gives a batch of no examples. Raises BadRequest for an unknown split, for spaces too small to
        split and for indices that are not a row of whole numbers from 0 to 2**48 - 1 (their values are checked on the CPU
        only: a CUDA graph cannot capture the check).
        """
        self.check_split(split)
        _check_indices(indices)
        if not len(indices):
            one = self.sample(torch.zeros(1, dtype=torch.int64), split, seed, device)
            columns = {name: column[:0] for name, column in one.queries.items()}
            return Batch(one.inputs[:0], one.targets[:0], columns)
        indices = indices.to(device=device, dtype=torch.int64)
        by_content = self.split_by_content
        if by_content and round(self.signature_bits, 6) < LEAST_BITS:
            raise BadRequest(
                f"{self.name}: about 2**{math.floor(max(0, self.signature_bits) * 100) / 100} different contents, too few to share among three "
                f"splits (least 2**{LEAST_BITS}); raise the vocabulary or the number of items"
            )
        if indices.device.type != "cpu" or len(indices) <= self._chunk:
            return self._draw(indices, split, seed, by_content)
        # pieces that stay in the processor's cache; an example does not depend on its batch
        return join([self._draw(piece, split, seed, by_content) for piece in indices.split(self._chunk)])

    @property
    def _chunk(self) -> int:
        return max(32, (1 << 17) // int(getattr(self, "length", 256)))

    def _draw(self, indices: Tensor, split: Split, seed: int, by_content: bool) -> Batch:
        batch = self.draw(Random(self.name, split, seed, indices, group=self.group))
        if not by_content:
            return batch
        wrong = (~belongs(self.signature(batch), split)).nonzero()[:, 0]
        if len(wrong):
            redrawn = indices[wrong]
            accepted = self._accepted(redrawn, split, seed)
            others = self.draw(Random(self.name, split, seed, redrawn, accepted, self.group))
            batch.inputs[wrong], batch.targets[wrong] = others.inputs, others.targets
            for name, column in batch.queries.items():
                column[wrong] = others.queries[name]
        return batch

    def _accepted(self, indices: Tensor, split: Split, seed: int) -> Tensor:
        """(B,) the first attempt after 0 whose content belongs to the split; the answer does not depend on the batch."""
        found, left, attempt = torch.zeros_like(indices), torch.arange(len(indices), device=indices.device), 0
        while len(left):
            tries = max(1, _TRIES // len(left))
            numbers = torch.arange(attempt + 1, attempt + 1 + tries, device=indices.device).repeat(len(left))
            again = indices[left].repeat_interleave(tries)
            candidates = self.draw(Random(self.name, split, seed, again, numbers, self.group, bare=True))
            right = belongs(self.signature(candidates), split).view(-1, tries)
            found[left] = torch.where(right.any(1), attempt + 1 + right.long().argmax(1), 0)
            attempt += tries
            left = left[found[left] == 0]
        return found

    @abstractmethod
    def solve(self, inputs: Tensor) -> Tensor:
        """The oracle in plain Python: (B,T) inputs to (B,T) targets, -100 where nothing is scored."""

    @abstractmethod
    def chance(self, batch: Batch) -> Tensor:
        """(B,Q) float32: accuracy of guessing among the values presented before each query; 0 in unused slots."""

    def identity(self) -> dict[str, Any]:
        """What the fingerprint knows of the configuration: the fields."""
        return asdict(self)

    def fingerprint(self) -> str:
        """16 hex digits over the config, the version and sampled content of all three splits."""
        from mnemolab.tasks.fingerprint import fingerprint

        task: Any = self
        return fingerprint(task)

    @staticmethod
    def check_split(split: str) -> None:
        if split not in SPLITS:
            raise BadRequest(f"split {split!r}; known: {', '.join(SPLITS)}")


def _check_indices(indices: Tensor) -> None:
    """Raises BadRequest for indices that number no examples."""
    if indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
        kind = str(indices.dtype).removeprefix("torch.")
        raise BadRequest(f"indices of type {kind}: examples are numbered by integers; use torch.arange(n)")
    if indices.dim() != 1:
        raise BadRequest(f"indices of shape {tuple(indices.shape)}: must be one row; flatten them")
    if indices.device.type == "cpu" and len(indices):
        low, high = (int(bound) for bound in torch.aminmax(indices))
        if low < 0 or high >= 1 << _INDEX_BITS:
            raise BadRequest(f"indices from {low} to {high}: examples are numbered from 0 to 2**{_INDEX_BITS} - 1")
