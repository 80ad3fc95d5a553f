"""Whether a neighbour runs as its Triton form or as plain PyTorch."""

from importlib.util import find_spec

import torch
from torch import Tensor

__all__ = ["check_floating", "fused"]

_INSTALLED = find_spec("triton") is not None
# wider rows would not stay in one program's registers
_MAX_WIDTH = 4096


def check_floating(**tensors: Tensor | None) -> None:
    """TypeError for what is no floating-point tensor; None passes."""
    for name, value in tensors.items():
        if value is not None and not (isinstance(value, Tensor) and value.dtype.is_floating_point):
            found = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"{name} is {found}; it must be a floating-point torch.Tensor")


def fused(x: Tensor, *others: Tensor | None) -> bool:
    """True on CUDA, in float32 or less, for a non-empty x (...,D) with D at most 4096.

    Under torch.compile the plain form runs: the compiler fuses it with what stands around it.
    """
    if not x.is_cuda or not _INSTALLED or torch.compiler.is_compiling():
        return False
    if x.numel() == 0 or x.shape[-1] > _MAX_WIDTH:
        return False
    return all(y is None or (y.is_cuda and y.dtype != torch.float64) for y in (x, *others))
