"""Training batches, made on the device: batch s of a run is examples s*B to (s+1)*B of its stream, whatever the feed.

Examples are pure functions of their index, so there is no loader, no worker and nothing to save in a checkpoint.
"""

import torch
from torch import Tensor

from mnemolab.tasks.base import Batch, Split, Task

__all__ = ["Feed", "sample_range"]

# Sampling has a fixed cost per call; several steps' examples are made at once and sliced.
BLOCK_TOKENS = 1 << 17


def sample_range(task: Task, first: int, last: int, split: Split, seed: int, device: torch.device | str) -> Batch:
    """Examples `first` to `last - 1` of the stream (split, seed)."""
    return task.sample(torch.arange(first, last), split=split, seed=seed, device=device)


class Feed:
    """`feed(step)` gives (inputs (B,T), targets (B,T)) of one training step for this rank of `world`."""

    def __init__(
        self, task: Task, batch_size: int, seed: int, device: torch.device | str, rank: int = 0, world: int = 1
    ):
        self.task, self.batch_size, self.seed, self.device = task, batch_size, seed, device
        self.local = batch_size // world
        self.rank = rank
        length: int = task.length  # type: ignore[attr-defined]
        self.block = max(1, min(64, BLOCK_TOKENS // (self.local * length)))
        self._first = 0
        self._made: tuple[Tensor, Tensor] | None = None

    def indices(self, step: int, count: int = 1) -> Tensor:
        """(count * local,) int64: this rank's examples of steps `step` to `step + count - 1`."""
        starts = torch.arange(step, step + count) * self.batch_size + self.rank * self.local
        return (starts[:, None] + torch.arange(self.local)).flatten()

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        if self._made is None or not self._first <= step < self._first + self.block:
            batch = self.task.sample(self.indices(step, self.block), split="train", seed=self.seed, device=self.device)
            self._first, self._made = step, (batch.inputs, batch.targets)
        inputs, targets = self._made
        rows = slice((step - self._first) * self.local, (step - self._first + 1) * self.local)
        return inputs[rows], targets[rows]
