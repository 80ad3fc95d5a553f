"""Backward passes written by hand have no derivative of their own; asking for one is an error, never a zero."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

__all__ = ["once_differentiable"]


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Refuses to run with create_graph=True, which is when autograd leaves gradients on during a backward pass.

    torch's own decorator marks the gradients instead, and `autograd.grad(..., inputs)` (Hessians, gradient penalties) never
    meets the mark: the second derivative would silently lack this term.
    """

    @wraps(backward)
    def checked(ctx: Any, *cotangents: Any) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError("this backend cannot be differentiated twice (create_graph=True); use backend='loop'")
        return backward(ctx, *cotangents)

    return checked
