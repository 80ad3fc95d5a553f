"""Two linear maps of one input, the second into a few channels: a memory's projections and the strengths of its gates."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from mnemolab.errors import BadRequest
from mnemolab.kernels.neighbours.dispatch import check_floating, fused

__all__ = ["linear_pair"]

# library products take a map into 2 channels for one into 64; beyond 16 that is no loss any more
_MOST, _WIDEST, _FEW = 16, 512, 4096


def linear_pair(x: Tensor, weight: Tensor, few: Tensor) -> tuple[Tensor, Tensor]:
    """x weight^T and x few^T: x (B,T,D), weight (M,D), few (J,D) -> (B,T,M), (B,T,J), under autocast in its dtype.

    Raises BadRequest for shapes that do not fit, TypeError for dtypes.
    """
    check_floating(x=x, weight=weight, few=few)
    for name, matrix in (("weight", weight), ("few", few)):
        if matrix.dim() != 2 or matrix.shape[1] != x.shape[-1]:
            raise BadRequest(f"{name} has shape {tuple(matrix.shape)}; it must be (outputs,D) with D={x.shape[-1]}")
    kind = x.device.type
    if not fused(x, weight, few) or not (
        few.shape[0] <= _MOST and x.shape[-1] <= _WIDEST and x.numel() >= _FEW * x.shape[-1]
    ):
        return linear(x, weight), linear(x, few)
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        x, weight, few = x.to(dtype), weight.to(dtype), few.to(dtype)
    from mnemolab.kernels.triton import linear_pair as form

    return form.linear_pair(x, weight, few)
