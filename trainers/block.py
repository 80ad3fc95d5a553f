"""The examples of several steps, made at once, and with them all that a step needs to know of its data.

B batch, T time, Q query slots per example, M = B*T tokens and R = B*Q rows of a step.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mnemolab.kernels.neighbours.cross_entropy import IGNORED
from mnemolab.kernels.neighbours.embedding import TokenOrder, sorts, token_order
from mnemolab.kernels.neighbours.rows import Rows
from mnemolab.tasks.base import Task
from mnemolab.trainers.query_loss import Asked, ask

__all__ = ["Block", "Examples"]

_ALIGNED = 16  # bytes: kernels load vectors


class Examples(NamedTuple):
    """Of one step: inputs (B,T) int64, what is asked, and the tokens' order where the table's gradient wants it."""

    inputs: Tensor
    asked: Asked
    order: TokenOrder | None


class Block:
    """`steps` steps of `batch` examples of the training stream, for a model with the embedding `table` (N,D).

    A step's tensors lie in one row of bytes, so that it is taken by one copy; addresses stay the same, as CUDA graphs ask.
    """

    def __init__(self, task: Task, batch: int, steps: int, seed: int, table: Tensor):
        self.task, self.batch, self.steps, self.seed, self.device = task, batch, steps, seed, table.device
        self.length: int = task.length  # type: ignore[attr-defined]
        slots = task.sample(torch.arange(1)).queries["position"].shape[1]
        M, R = batch * self.length, batch * slots
        fields = {"inputs": (torch.int64, M), "index": (torch.int64, R), "wanted": (torch.int64, R)}
        fields |= {"share": (torch.float32, R), "place": (torch.int32, M)}
        self._tokens = table.shape[0] if sorts(M, table) else None
        if self._tokens is not None:
            made = token_order(torch.zeros(1, 1, dtype=torch.int64), self._tokens)
            fields |= {"keys": (made.keys.dtype, M), "order": (made.order.dtype, M)}
        self._fields: dict[str, tuple[torch.dtype, int, int]] = {}  # dtype, first byte and the one after the last
        size = 0
        for name, (dtype, count) in fields.items():
            self._fields[name] = dtype, size, size + count * dtype.itemsize
            size += -(-count * dtype.itemsize // _ALIGNED) * _ALIGNED
        self._rows = torch.zeros(steps, size, dtype=torch.uint8, device=self.device)
        self._offsets = torch.arange(steps * batch, device=self.device)

    def make(self, number: Tensor) -> None:
        """Fill it with the steps from `number` () int64 times `steps` on."""
        indices = number * (self.steps * self.batch) + self._offsets
        made = self.task.sample(indices, split="train", seed=self.seed, device=self.device)
        position = made.queries["position"]
        wanted = torch.where(position >= 0, made.targets.gather(1, position.clamp(min=0)), IGNORED)
        by_step = (self.steps, self.batch, -1)
        asked = ask(position.view(by_step), wanted.view(by_step), self.length)
        self._put("inputs", made.inputs)
        self._put("index", asked.rows.index)
        self._put("place", asked.rows.place)
        self._put("wanted", asked.wanted)
        self._put("share", asked.share)
        if self._tokens is not None:
            order = token_order(made.inputs.view(self.steps, -1), self._tokens)
            self._put("keys", order.keys)
            self._put("order", order.order)

    def take(self, slot: Tensor) -> Examples:
        """Copies of the step `slot` () int64 of the block."""
        row = self._rows.view(torch.int64).index_select(0, slot.view(1))[0].view(torch.uint8)
        part = {name: row[first:last].view(dtype) for name, (dtype, first, last) in self._fields.items()}
        asked = Asked(Rows(part["index"], part["place"]), part["wanted"], part["share"])
        order = None if self._tokens is None else TokenOrder(part["keys"], part["order"])
        return Examples(part["inputs"].view(self.batch, self.length), asked, order)

    def _put(self, name: str, value: Tensor | None) -> None:
        dtype, first, last = self._fields[name]
        if value is not None:
            self._rows[:, first:last].view(dtype).copy_(value.reshape(self.steps, -1))
