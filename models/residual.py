"""Residual rules: what a sub-layer reads, and what becomes of its output.

Sources: plain sum; Attention Residuals (2603.15031) and its block form in Kimi K3 (2607.24653).
"""

import torch
from torch import Tensor, nn

from mnemolab.kernels.neighbours.attention_residual import attention_residual
from mnemolab.kernels.neighbours.rows import Rows, take_rows
from mnemolab.models.norms import add_norm
from mnemolab.models.precision import KeepsFp32

__all__ = ["AttentionResidual", "AttentionStream", "SumResidual", "SumStream", "residual_block"]


class SumStream:
    """h grows by every output, which is added when the stream is next read: the sum and its norm are one operation."""

    def __init__(self, h: Tensor):
        self.h, self.last = h, None

    def read(self, norm: nn.Module) -> Tensor:
        """What the next sub-layer gets: `norm` of all that was written."""
        self.h, x = add_norm(norm, self.h, self.last)
        self.last = None
        return x

    def keep(self, rows: Rows) -> None:
        """Go on with `rows` of the positions alone, as a batch of one; see `take_rows`."""
        self.h = take_rows(self.h, rows)
        self.last = None if self.last is None else take_rows(self.last, rows)

    def write(self, y: Tensor) -> None:
        self.h = self.h if self.last is None else self.h + self.last
        self.last = y


class SumResidual(nn.Module):
    """The usual residual stream."""

    def open(self, h: Tensor) -> SumStream:
        return SumStream(h)


class AttentionStream:
    """Finished blocks, beginning with the embedding, and the sum of the block under way.

    Site i mixes them all. The output of the first sub-layer of a block starts a new sum; the old one is finished then.
    """

    def __init__(self, rule: "AttentionResidual", h: Tensor):
        self.rule, self.finished, self.partial = rule, [h], None
        self.sites = self.outputs = 0

    @property
    def sources(self) -> list[Tensor]:
        return self.finished if self.partial is None else [*self.finished, self.partial]

    def read(self, norm: nn.Module) -> Tensor:
        site, self.sites = self.sites, self.sites + 1
        return norm(attention_residual(self.sources, self.rule.query[site], self.rule.gain[site], eps=self.rule.eps))

    def keep(self, rows: Rows) -> None:
        self.finished = [take_rows(source, rows) for source in self.finished]
        self.partial = None if self.partial is None else take_rows(self.partial, rows)

    def write(self, y: Tensor) -> None:
        if self.partial is None:
            self.partial = y
        elif self.outputs % self.rule.block == 0:
            self.finished.append(self.partial)
            self.partial = y
        else:
            self.partial = self.partial + y
        self.outputs += 1


class AttentionResidual(KeepsFp32):
    """A pseudo-query and a key gain per site: the input of every sub-layer, and one site before the final norm.

    query, gain (sites,D). Queries start at zero, which makes the network equal to a plain residual one up to the norms'
    epsilon; the paper asks for it. `block` is in sub-layers; 1 is the full form.
    """

    def __init__(self, width: int, sites: int, block: int, eps: float):
        super().__init__()
        self.block, self.eps = block, eps
        self.query = nn.Parameter(torch.zeros(sites, width))
        self.gain = nn.Parameter(torch.ones(sites, width))

    def open(self, h: Tensor) -> AttentionStream:
        return AttentionStream(self, h)

    def no_decay(self) -> set[str]:
        return {"query", "gain"}


def residual_block(depth: int, sublayers: int) -> int:
    """Sub-layers per block that give about eight blocks: 6 for Kimi Linear's 27 layers of 2, 24 for Kimi K3's 93."""
    return sublayers * max(1, round(depth / 8))
