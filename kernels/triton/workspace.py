"""The tensors that pass from one launch of a scan to the next, as parts of one allocation.

Eagerly, an allocation and a saved tensor cost the host some microseconds each, and a scan has up to ten such tensors.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

__all__ = ["Layout"]

ALIGNED = 128  # bytes: every part starts as an allocation of its own would, so kernels see the same alignment


class Layout:
    """Where each named part, given as (shape, dtype), lies. Parts that are asked for and not there are None."""

    def __init__(self, parts: Mapping[str, tuple[tuple[int, ...], torch.dtype]]):
        self.parts = dict(parts)
        self.offsets: dict[str, int] = {}
        self.bytes = 0
        for name, (shape, dtype) in self.parts.items():
            self.offsets[name] = self.bytes
            self.bytes = self.bytes + (prod(shape) * dtype.itemsize + ALIGNED - 1) // ALIGNED * ALIGNED

    def empty(self, device: torch.device) -> Tensor:
        """The allocation (bytes,) uint8."""
        return torch.empty(self.bytes, dtype=torch.uint8, device=device)

    def views(self, work: Tensor) -> "Parts":
        found = Parts()
        for name, (shape, dtype) in self.parts.items():
            first = self.offsets[name]
            found[name] = work[first : first + prod(shape) * dtype.itemsize].view(dtype).view(shape)
        return found

    def addresses(self, base: int) -> "Parts":
        return Parts({name: base + offset for name, offset in self.offsets.items()})


class Parts(dict[str, Any]):
    """By name; None for a part that is not there."""

    def __missing__(self, name: str) -> None:
        return None
