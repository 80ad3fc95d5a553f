"""Embedding lookup whose gradient does not suffer from a token that fills half of the positions."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.kernels.neighbours.dispatch import check_floating, fused

__all__ = ["TokenOrder", "embedding", "sorts", "token_order"]

# with fewer, as in decoding, the gathering is nothing and the launch is all: torch's costs the host less
_FEW = 4096


class TokenOrder(NamedTuple):
    """The M positions of a batch sorted by token, stably: `keys` (M,), the tokens in order, narrow, -1 for one that is none;
    `order` (M,) int32, where they stood."""

    keys: Tensor
    order: Tensor


def sorts(count: int, weight: Tensor) -> bool:
    """Whether the gradient of a lookup of `count` tokens sorts them, and `embedding` would use their order."""
    return count >= _FEW and fused(weight)


def token_order(tokens: Tensor, N: int) -> TokenOrder:
    """The orders of tokens (S,M), row by row, for a table of N rows; needs Triton. One sort for all rows."""
    from mnemolab.kernels.triton.embedding import key_dtype

    S, M = tokens.shape
    row = torch.arange(S, device=tokens.device)[:, None]
    # a row's tokens come behind those of the rows before, a token that is none before the others of its row
    first = row * (N + 1)
    key = first + torch.where((tokens >= 0) & (tokens < N), tokens + 1, 0)
    wide = torch.int32 if S * (N + 1) <= torch.iinfo(torch.int32).max else torch.int64
    found, order = torch.sort(key.flatten().to(wide), stable=True)
    return TokenOrder((found.view(S, M) - first - 1).to(key_dtype(N)), (order.view(S, M) - row * M).to(torch.int32))


def embedding(tokens: Tensor, weight: Tensor, order: TokenOrder | None = None) -> Tensor:
    """weight[tokens]: tokens (B,T) int64 or int32, weight (N,D) -> (B,T,D) in weight.dtype.

    The gradient of weight is summed in float32 in a fixed order; on CUDA too it has the same bits each time. `order`, that of
    these very tokens, spares it a sort; where none is needed, nobody looks at it.
    A token outside 0 to N - 1 is an IndexError on the CPU. On CUDA nobody waits for the tokens: the Triton form gives a row of
    NaN, which shows in the loss, and stops at an assertion under TRITON_DEBUG=1; torch's form, for few tokens, always stops
    at an assertion. Raises BadRequest for a weight that is no matrix, TypeError for dtypes.
    """
    check_floating(weight=weight)
    if tokens.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"tokens has dtype {tokens.dtype}; it must be int64 or int32")
    if weight.dim() != 2:
        raise BadRequest(f"weight has shape {tuple(weight.shape)}; it must be (N,D)")
    if tokens.device == weight.device and sorts(tokens.numel(), weight):
        from mnemolab.kernels.triton import embedding as form

        return form.embedding(tokens, weight) if order is None else form.embedding(tokens, weight, *order)
    return F.embedding(tokens, weight)
