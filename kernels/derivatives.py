"""Backward passes written by hand have no derivative of their own; asking for one is an error, never a zero."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable as refused_where_a_cotangent_requires_grad

__all__ = ["once_differentiable"]


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """torch's decorator, and also where the cotangents are constants (`o.sum()`), whose second derivative would be 0."""
    once = refused_where_a_cotangent_requires_grad(backward)

    def checked(ctx: Any, *cotangents: Tensor | None) -> Any:
        if torch.is_grad_enabled():  # create_graph=True
            cotangents = tuple(x if x is None or x.requires_grad else x.detach().requires_grad_() for x in cotangents)
        return once(ctx, *cotangents)

    return checked
