"""The last matrix of a sub-layer."""

from torch import nn

__all__ = ["Outward"]


class Outward(nn.Linear):
    """A linear map into the residual stream: some initialisations start it smaller, the deeper the model."""
