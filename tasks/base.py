"""What every task is: a frozen config that makes batches, solves them, and knows its chance level.

B batch, T time, Q queries per example, M earlier values of a key.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.tasks.vocabulary import Vocabulary

__all__ = ["QUERY_COLUMNS", "SPLITS", "Batch", "Split", "Task"]

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

# Columns that every task's query table has, all int64 of shape (B,Q), with -1 in unused slots. Beside them is `stale` (B,Q,M).
QUERY_COLUMNS = {
    "position": "index t whose logits must give the target",
    "start": "first token of this query's cue; start <= position",
    "fork": "length of the context that all queries share, or -1 where reading and asking interleave",
    "key": "token of the asked key",
    "target": "token of the right answer",
    "lag_tokens": "tokens between the write of the target's value token and `position`",
    "lag_writes": "bindings written after the target's, before `start`",
    "version": "bindings this key had before the one asked for",
    "serial_position": "bindings written before the target's",
    "query_index": "queries asked before this one",
    "load": "bindings written before `start`",
    "condition": "index into the task's `conditions`",
}


@dataclass(frozen=True)
class Batch:
    """Examples and their query table.

    `inputs` (B,T) int64. `targets` (B,T) int64: what the logits at t must say (no shift), -100 where nothing is scored.
    `queries`: the columns of QUERY_COLUMNS, `stale` (B,Q,M) with earlier values of the key, newest first, -1 padded, and
    any columns of the task's own. Scored positions and used query slots correspond one to one.
    """

    inputs: Tensor
    targets: Tensor
    queries: dict[str, Tensor]

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def to(self, device: torch.device | str) -> "Batch":
        moved = {name: column.to(device) for name, column in self.queries.items()}
        return Batch(self.inputs.to(device), self.targets.to(device), moved)


@dataclass(frozen=True)
class Task(ABC):
    """A frozen dataclass of difficulty fields that constructs without arguments.

    Every subclass has a field `length`, class attributes `name`, `version` (raised when its data change), `axes` (query
    columns and fields that its analysis plots against) and `conditions` (names of the `condition` codes).
    """

    name: ClassVar[str]
    version: ClassVar[int]
    axes: ClassVar[tuple[str, ...]]
    conditions: ClassVar[tuple[str, ...]] = ("all",)

    @property
    @abstractmethod
    def vocabulary(self) -> Vocabulary:
        """Disjoint token ranges; `vocabulary.size` is the model's vocabulary."""

    @abstractmethod
    def sample(
        self, indices: Tensor, split: Split = "train", seed: int = 0, device: str | torch.device = "cpu"
    ) -> Batch:
        """Examples `indices` (B,) int64 of the stream (split, seed): a pure function of each index, on any device."""

    @abstractmethod
    def solve(self, inputs: Tensor) -> Tensor:
        """The oracle in plain Python: (B,T) inputs to (B,T) targets, -100 where nothing is scored."""

    @abstractmethod
    def chance(self, batch: Batch) -> Tensor:
        """(B,Q) float32: accuracy of guessing among the values presented before each query; 0 in unused slots."""

    def fingerprint(self) -> str:
        """16 hex digits over the config, the version and sampled content of all three splits."""
        from mnemolab.tasks.fingerprint import fingerprint

        return fingerprint(self)

    @staticmethod
    def check_split(split: str) -> None:
        if split not in SPLITS:
            raise BadRequest(f"split {split!r}; known: {', '.join(SPLITS)}")
