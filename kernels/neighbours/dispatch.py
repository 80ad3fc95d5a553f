"""What all neighbours ask first: whether the operands will do, and whether the Triton form runs or plain PyTorch."""

from importlib.util import find_spec

import torch
from torch import Tensor

from mnemolab.errors import BadRequest

__all__ = ["check_floating", "check_writable", "fused"]

_INSTALLED = find_spec("triton") is not None
# wider rows would not stay in one program's registers
_MAX_WIDTH = 4096


def check_floating(**tensors: Tensor | None) -> None:
    """TypeError for what is no floating-point tensor; None passes."""
    for name, value in tensors.items():
        if value is not None and not (isinstance(value, Tensor) and value.dtype.is_floating_point):
            found = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"{name} is {found}; it must be a floating-point torch.Tensor")


def check_writable(name: str, held: Tensor) -> None:
    """BadRequest for a tensor that cannot be updated in place."""
    if torch.is_grad_enabled() and held.requires_grad and held.is_leaf:
        raise BadRequest(f"{name} is a leaf that requires grad and would be updated in place; give {name}.clone()")
    if any(stride == 0 and size > 1 for stride, size in zip(held.stride(), held.shape, strict=True)):
        raise BadRequest(f"{name} is expanded, so that its elements share memory; give {name}.contiguous()")


def fused(x: Tensor, *others: Tensor | None) -> bool:
    """True on the current CUDA device, in float32 or less, for a non-empty x (...,D) with D at most 4096.

    Under torch.compile the plain form runs: the compiler fuses it with what stands around it.
    """
    if not x.is_cuda or not _INSTALLED or torch.compiler.is_compiling():
        return False
    # Triton launches on the current device, whatever the tensors are on
    if x.numel() == 0 or x.shape[-1] > _MAX_WIDTH or x.get_device() != torch.cuda.current_device():
        return False
    return all(y is None or (y.is_cuda and y.dtype != torch.float64) for y in (x, *others))
