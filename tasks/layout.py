"""Where writes, filler and queries stand in a sequence, and the query table that follows from it.

B batch, T time, W writes (bindings) in a sequence, Q queries, M other values of a key.
"""

import math

import torch
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.tasks.base import QUERY_COLUMNS, Batch, Task
from mnemolab.tasks.random import Random
from mnemolab.tasks.vocabulary import Vocabulary

__all__ = ["assemble", "check_tokens", "filler", "log2_arrangements", "room", "spread", "take"]


def check_tokens(task: Task, **needed: int) -> None:
    """Raises BadRequest where a field, such as key_vocabulary, has fewer tokens than the different ones that are needed."""
    for name, count in needed.items():
        if getattr(task, name) < count:
            raise BadRequest(
                f"{name}={getattr(task, name)} is too small: {count} different tokens are needed; raise it"
            )


def take(table: Tensor, index: Tensor) -> Tensor:
    """table (B,W) at index (B, ...) -> (B, ...); an index of -1 gives -1."""
    flat = index.reshape(len(index), -1)
    return torch.where(flat < 0, -1, table.gather(1, flat.clamp(min=0))).reshape(index.shape)


def filler(random: Random, length: int, vocabulary: Vocabulary) -> Tensor:
    """(B,T) random filler tokens, to be written over."""
    if random.bare:
        return torch.full((len(random), length), vocabulary.filler.start, dtype=torch.int64, device=random.device)
    return random.noise("filler", length, len(vocabulary.filler)) + vocabulary.filler.start


def room(random: Random, items: int, spare: int) -> Tensor:
    """(B,items) filler tokens before each of `items` things in a row, when `spare` of them stand among and after them.

    The filler after the last item is uniform on 0 .. spare, so that the lag in tokens varies apart from the lag in writes;
    the rest falls before items picked at random.
    """
    if not spare or not items or random.bare:
        return torch.zeros(len(random), items, dtype=torch.int64, device=random.device)
    trailing = random.below("trailing filler", 1, bound=spare + 1)
    before = random.below("filler places", spare, bound=items)
    before = torch.where(torch.arange(spare, device=random.device) < trailing, items, before)
    counts = torch.zeros(len(random), items + 1, dtype=torch.int64, device=random.device)
    counts.scatter_add_(1, before, torch.ones_like(before))
    return counts[:, :items].cumsum(1)


def spread(random: Random, items: int, width: int, spare: int) -> Tensor:
    """(B,items) start positions of items of `width` tokens with `spare` filler tokens among and after them (see `room`)."""
    return torch.arange(items, device=random.device) * width + room(random, items, spare)


def log2_arrangements(size: int, count: int) -> float:
    """log2 of the number of sequences of `count` different tokens out of `size`."""
    return (math.lgamma(size + 1) - math.lgamma(size - count + 1)) / math.log(2)


def assemble(inputs: Tensor, columns: dict[str, Tensor | int], stale: Tensor | None = None) -> Batch:
    """A batch from tokens (B,T) and query columns, each (B,Q) or broadcastable to the shape of `position`.

    Slots whose position is -1 are unused: -1 in every column. Positions in a row are different.
    """
    position = columns["position"]
    assert isinstance(position, Tensor) and columns.keys() >= QUERY_COLUMNS.keys()
    unused = position < 0
    queries = {}
    for name, column in columns.items():
        # a plain number stays one: a tensor made from it on the host could not be copied inside a CUDA graph
        full = column.to(torch.int64).expand(position.shape) if isinstance(column, Tensor) else column
        queries[name] = torch.where(unused, -1, full)
    if stale is None:
        stale = torch.full((*position.shape, 1), -1, dtype=torch.int64, device=inputs.device)
    queries["stale"] = torch.where(unused[..., None], -1, stale)
    length = inputs.shape[1]
    targets = torch.full((len(inputs), length + 1), -100, dtype=torch.int64, device=inputs.device)
    # unused slots write to a spare last column
    targets.scatter_(1, torch.where(unused, length, position), queries["target"])
    return Batch(inputs, targets[:, :length].contiguous(), queries)
