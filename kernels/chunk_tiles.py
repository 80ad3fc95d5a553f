"""Time cut into chunks: the layout in which every chunk of every sequence is one entry of a batch of matrices."""

import torch
from torch import Tensor

__all__ = ["Tiles"]


class Tiles:
    """Time cut into NC chunks of C tokens: (B,T,H,D) <-> (NC*B*H,C,D), padded with tokens that leave the state alone."""

    def __init__(self, B: int, T: int, H: int, C: int, dtype: torch.dtype):
        self.B, self.T, self.H, self.C, self.dtype = B, T, H, C, dtype
        self.NC = -(-self.T // C)
        self.N = self.B * self.H
        self.M = self.NC * self.N

    def of(self, x: Tensor, factor: float = 1.0) -> Tensor:
        """factor * (B,T,H[,D]) -> (M,C,D or 1), in the state's dtype; the padding is 0."""
        x = x if x.dim() == 4 else x.unsqueeze(-1)
        D = x.shape[-1]
        tiles = torch.empty(self.NC, self.B, self.H, self.C, D, dtype=self.dtype, device=x.device)
        for held, times in self._pieces(tiles, x):
            _scaled_copy(times, factor, held)
        rest = self.T % self.C
        if rest:
            tiles[-1, :, :, rest:] = 0
        return tiles.view(self.M, self.C, D)

    def back(self, tiles: Tensor, x: Tensor, factor: float = 1.0) -> None:
        """Write factor * (M,C,D) to x (B,T,H[,D]), which may have another dtype."""
        wide = x if x.dim() == 4 else x.unsqueeze(-1)
        for held, times in self._pieces(tiles.view(self.NC, self.B, self.H, self.C, tiles.shape[-1]), wide):
            _scaled_copy(held, factor, times)

    def _pieces(self, tiles: Tensor, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Matching views (NC,B,H,C,D) of the full chunks and of the last, shorter one."""
        full, rest = divmod(self.T, self.C)
        pieces = []
        if full:
            cut = x[:, : full * self.C].unflatten(1, (full, self.C)).permute(1, 0, 3, 2, 4)
            pieces.append((tiles[:full], cut))
        if rest:
            pieces.append((tiles[full, :, :, :rest], x[:, full * self.C :].transpose(1, 2)))
        return pieces

    def by_chunk(self, x: Tensor) -> Tensor:
        """(M,...) -> view (NC,N,...)."""
        return x.view(self.NC, self.N, *x.shape[1:])


def _scaled_copy(source: Tensor, factor: float, target: Tensor) -> None:
    if factor == 1.0:
        target.copy_(source)
    elif source.dtype == target.dtype:
        torch.mul(source, factor, out=target)
    else:  # the factor applies at the wider of the two precisions
        wide = torch.promote_types(source.dtype, target.dtype)
        target.copy_(source.to(wide) * factor)
