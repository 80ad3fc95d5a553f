"""Some of the positions of a batch: what a scored position needs, without the others."""

from typing import NamedTuple

import torch
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.kernels.neighbours.dispatch import fused

__all__ = ["Rows", "choose_rows", "take_rows"]


class Rows(NamedTuple):
    """Which of N rows are taken: `index` (R,) int64, -1 for none, the others distinct; and, for the Triton form, where each of
    the N rows went, `place` (N,) int32, -1 for those left behind."""

    index: Tensor
    place: Tensor | None = None


def choose_rows(index: Tensor, N: int) -> Rows:
    """`Rows` of index (R,) int64 among N rows. Entries from 0 on must be distinct; nobody waits for the device to check it.

    Raises TypeError for another dtype, BadRequest for another shape.
    """
    if index.dtype != torch.int64:
        raise TypeError(f"index has dtype {index.dtype}; it must be int64")
    if index.dim() != 1:
        raise BadRequest(f"index has shape {tuple(index.shape)}; it must be (R,)")
    if not index.is_cuda or torch.compiler.is_compiling():
        return Rows(index)
    place = torch.full((N + 1,), -1, dtype=torch.int32, device=index.device)
    # the last entry takes in the rows that are none
    place[torch.where(index < 0, N, index)] = torch.arange(index.shape[0], dtype=torch.int32, device=index.device)
    return Rows(index, place[:N])


def take_rows(x: Tensor, rows: Rows) -> Tensor:
    """x (B,T,...) at `rows` of its B*T positions, row-major: (1,R,...), still batch, time and the rest; 0 where none is taken.

    The gradient of x is 0 at the rows that are not taken.
    """
    flat = x.flatten(0, 1)
    if rows.place is not None and rows.index.numel() and fused(flat.flatten(1)):
        from mnemolab.kernels.triton import rows as form

        return form.take_rows(flat.flatten(1), rows.index, rows.place).view(1, -1, *x.shape[2:])
    index = rows.index
    taken = flat.index_select(0, index.clamp(min=0))
    return taken.masked_fill((index < 0).view(-1, *[1] * (taken.dim() - 1)), 0)[None]
