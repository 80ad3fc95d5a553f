"""Several matrices that read the same input, kept as one."""

from collections.abc import Iterable

from torch import nn

__all__ = ["Fused"]


class Fused(nn.Linear):
    """A linear map whose outputs are those of several, `parts` wide, one after the other.

    A start that looks at a matrix's outputs (Xavier) must see each of them, not their sum.
    """

    def __init__(self, width: int, parts: Iterable[int], bias: bool = False):
        self.parts = tuple(part for part in parts if part)
        super().__init__(width, sum(self.parts), bias=bias)
