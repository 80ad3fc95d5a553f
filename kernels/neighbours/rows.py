"""Some of the positions of a batch: what a scored position needs, without the others."""

from typing import NamedTuple

import torch
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.kernels.neighbours.dispatch import fused

__all__ = ["Rows", "choose_rows", "places", "take_rows"]


class Rows(NamedTuple):
    """Which of N rows are taken: `index` (R,) int64, -1 for none, the others distinct; and, for the Triton form, where each of
    the N rows went, `place` (N,) int32, -1 for those left behind."""

    index: Tensor
    place: Tensor | None = None


def choose_rows(index: Tensor, N: int) -> Rows:
    """`Rows` of index (R,) int64 among N rows. Entries from 0 on must be distinct.

    Raises TypeError for another dtype, BadRequest for another shape and, on the CPU, for a row that is asked for twice;
    elsewhere the check would wait for the device.
    """
    if index.dtype != torch.int64:
        raise TypeError(f"index has dtype {index.dtype}; it must be int64")
    if index.dim() != 1:
        raise BadRequest(f"index has shape {tuple(index.shape)}; it must be (R,)")
    if torch.compiler.is_compiling():
        return Rows(index)
    if not index.is_cuda:
        _distinct(index)
        return Rows(index)
    return Rows(index, places(index, N))


def places(index: Tensor, N: int) -> Tensor:
    """(...,N) int32: where each of N rows went, of indices (...,R) int64; -1 for those left behind."""
    place = torch.full((*index.shape[:-1], N + 1), -1, dtype=torch.int32, device=index.device)
    went = torch.arange(index.shape[-1], dtype=torch.int32, device=index.device).expand(index.shape)
    # the last entry takes in the rows that are none
    return place.scatter_(-1, torch.where(index < 0, N, index), went)[..., :N]


def _distinct(index: Tensor) -> None:
    ordered = index.sort().values
    fine = ((ordered[1:] != ordered[:-1]) | (ordered[1:] < 0)).all()
    try:
        torch._assert_async(fine)  # which on the CPU is a check, and no value is handed to the host before it
    except RuntimeError as error:
        raise BadRequest("index asks for a row twice; give each row once, and -1 for none") from error


def take_rows(x: Tensor, rows: Rows) -> Tensor:
    """x (B,T,D...) at `rows` of its B*T positions, row-major: (1,R,D...), still batch, time and the rest.

    A row that is none is all ones, whose norm is finite whatever its epsilon. The gradient of x is 0 at the rows not taken.
    """
    flat = x.flatten(0, 1)
    if rows.place is not None and rows.index.numel() and fused(flat.flatten(1)):
        from mnemolab.kernels.triton import rows as form

        return form.take_rows(flat.flatten(1), rows.index, rows.place).view(1, -1, *x.shape[2:])
    index = rows.index
    taken = flat.index_select(0, index.clamp(min=0))
    return taken.masked_fill((index < 0).view(-1, *[1] * (taken.dim() - 1)), 1)[None]
