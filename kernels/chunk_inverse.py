"""The inverse of I + T for strictly lower T, by blocks: [[P,0],[T,Q]]^-1 = [[P^-1,0],[-Q^-1 T P^-1,Q^-1]]."""

import torch
from torch import Tensor

__all__ = ["unit_lower_inverse"]


def unit_lower_inverse(blocks: list[Tensor], like: Tensor) -> Tensor:
    """(M,C,C) inverse of I + T; `like` (M,C,·) gives sizes and dtype.

    blocks[n] (M*C/(2h),h,h), h = 2^n, are the blocks of T just below the diagonal. Merging from 1x1 up stays accurate on
    near-collinear keys, where a Neumann series over the whole chunk loses every digit.
    """
    M, C, _ = like.shape
    inverse = like.new_ones(M * C, 1, 1)
    for below in blocks:
        h = below.shape[-1]
        first, second = inverse.view(M * C // (2 * h), 2, h, h).unbind(1)
        inverse = like.new_zeros(first.shape[0], 2 * h, 2 * h)
        inverse[:, :h, :h] = first
        inverse[:, h:, h:] = second
        inverse[:, h:, :h] = -below if h == 1 else torch.bmm(torch.bmm(second, below), first).neg_()
    return inverse.view(M, C, C)
