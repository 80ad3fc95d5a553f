"""Where associative recall writes and asks: context then queries, scattered queries (MQAR), or both interleaved.

B batch, W writes, Q queries. `asked` (B,Q) holds the slot of the write that each query asks for, -1 for an unknown key and
-2 for an unused query.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mnemolab.tasks.layout import room, spread
from mnemolab.tasks.random import Random, sort_distinct, thresholds

__all__ = ["Places", "contiguous", "interleaved", "scattered"]

_LOW = (1 << 20) - 1  # query numbers, packed below a sort key


class Places(NamedTuple):
    """Start positions of writes (B,W) and queries (B,Q), the slots they ask in order of time, and the writes before them."""

    write: Tensor
    query: Tensor
    asked: Tensor
    load: Tensor | int
    fork: int


def contiguous(random: Random, asked: Tensor, writes: int, width: int, cue: int, length: int) -> Places:
    """Writes of `width` tokens and filler, then the queries of `cue` tokens in one row; all spare tokens are filler."""
    context = length - asked.shape[1] * cue
    query = context + torch.arange(asked.shape[1], device=asked.device) * cue
    write = spread(random, writes, width, context - writes * width)
    return Places(write, query.expand_as(asked), asked, writes, context)


def scattered(
    random: Random, asked: Tensor, writes: int, width: int, cue: int, length: int, inverse_weights: Sequence[int]
) -> Places:
    """Writes in one row, then queries in slots drawn in proportion to 1 / inverse_weights; filler follows each query."""
    context, queries = writes * width, asked.shape[1]
    slots = random.weighted_distinct("query slots", queries, inverse_weights)
    ordered = sort_distinct(slots << 20 | torch.arange(queries, device=asked.device))
    write = (torch.arange(writes, device=asked.device) * width).expand(len(random), writes)
    return Places(write, context + (ordered >> 20) * (cue + 1), asked.gather(1, ordered & _LOW), writes, -1)


def interleaved(
    random: Random, unknown: int, writes: int, width: int, cue: int, length: int, lags: int, law: str
) -> Places:
    """Each of the first writes - lags + 1 pairs is asked after a lag in writes drawn on 0 .. lags - 1, uniform or
    log-uniform (weight 1 / (lag + 1)): the lag is independent of the serial position. Unknown keys are asked anywhere.
    """
    device, known = random.device, writes - lags + 1
    queries = known + unknown
    weights = [1.0 if law == "uniform" else 1 / (lag + 1) for lag in range(lags)]
    place = torch.arange(known, device=device)
    after = place + random.choice("lags", known, bounds=thresholds(weights))
    if unknown:
        after = torch.cat([after, random.below("unknown places", unknown, bound=writes)], 1)
        place = torch.cat([place, place.new_full((unknown,), -1)])
    # queries after the same write come in random order
    ties = random.permutation("order", queries)
    ordered = sort_distinct(after << 40 | ties << 20 | torch.arange(queries, device=device))
    asked, after = place.expand_as(after).gather(1, ordered & _LOW), ordered >> 40
    counts = torch.zeros(len(random), writes, dtype=torch.int64, device=device)
    counts.scatter_add_(1, after, torch.ones_like(after))
    earlier = counts.cumsum(1) - counts  # queries before each write
    filler = room(random, writes + queries, length - writes * width - queries * cue)
    write_row = torch.arange(writes, device=device)
    query_row = torch.arange(queries, device=device)
    write = write_row * width + earlier * cue + filler.gather(1, write_row + earlier)
    query = query_row * cue + (after + 1) * width + filler.gather(1, query_row + after + 1)
    return Places(write, query, asked, after + 1, -1)
