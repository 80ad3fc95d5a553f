"""Parameters that stay in fp32 whatever the model is cast to."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["KeepsFp32"]


class KeepsFp32(nn.Module):
    """Its own parameters and buffers, and their gradients, never go below fp32; its children follow every cast.

    For what bf16 would lose: decay rates near 1, a router's bias that moves by 0.001, scores of a softmax.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        if recurse:
            for child in self.children():
                child._apply(fn)
        return super()._apply(lambda tensor: _kept(tensor, fn(tensor)), recurse=False)


def _kept(before: Tensor, after: Tensor) -> Tensor:
    """`after`, or, where that has lost precision, `before` on its device."""
    if after.dtype not in (torch.bfloat16, torch.float16):
        return after
    return before.to(after.device, torch.promote_types(before.dtype, torch.float32))
