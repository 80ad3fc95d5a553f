"""Some of the positions of a batch."""

from torch import Tensor

__all__ = ["take"]


def take(x: Tensor, rows: Tensor) -> Tensor:
    """x (B,T,...) at `rows` (R,) of its B*T positions, row-major: (1,R,...), which is still batch, time and the rest."""
    return x.flatten(0, 1).index_select(0, rows)[None]
