"""Rotary positions: pairs of channels turned by an angle that grows with the position (Su et al., 2104.09864)."""

import torch
from torch import Tensor

__all__ = ["rotate"]


def rotate(x: Tensor, start: Tensor, base: float = 10_000.0) -> Tensor:
    """Turn x (B,T,H,K) at positions start (B,) + 0..T-1; channel i is paired with channel i + K/2."""
    half = x.shape[-1] // 2
    rate = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    position = start[:, None] + torch.arange(x.shape[1], device=x.device)
    angle = (position[..., None] * rate)[:, :, None].to(torch.promote_types(x.dtype, torch.float32))
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
