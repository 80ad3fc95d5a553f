"""Embedding lookup whose gradient does not suffer from a token that fills half of the positions."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.kernels.neighbours.dispatch import check_floating, fused

__all__ = ["embedding"]

# with fewer, as in decoding, the gathering is nothing and the launch is all: torch's costs the host less
_FEW = 4096


def embedding(tokens: Tensor, weight: Tensor) -> Tensor:
    """weight[tokens]: tokens (B,T) int64 or int32, weight (N,D) -> (B,T,D) in weight.dtype.

    The gradient of weight is summed in float32 in a fixed order; on CUDA too it has the same bits each time.
    A token outside 0 to N - 1 is an IndexError on the CPU. On CUDA nobody waits for the tokens: the Triton form gives a row of
    NaN, which shows in the loss, and stops at an assertion under TRITON_DEBUG=1; torch's form, for few tokens, always stops
    at an assertion. Raises BadRequest for a weight that is no matrix, TypeError for dtypes.
    """
    check_floating(weight=weight)
    if tokens.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"tokens has dtype {tokens.dtype}; it must be int64 or int32")
    if weight.dim() != 2:
        raise BadRequest(f"weight has shape {tuple(weight.shape)}; it must be (N,D)")
    if tokens.numel() >= _FEW and tokens.device == weight.device and fused(weight):
        from mnemolab.kernels.triton import embedding as form

        return form.embedding(tokens, weight)
    return F.embedding(tokens, weight)
