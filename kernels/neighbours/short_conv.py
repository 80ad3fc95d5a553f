"""Depthwise causal convolution over the last W tokens, with the cache that decoding needs.

Source: section 2 of Mamba-2 (arXiv 2405.21060) and Kimi Linear (arXiv 2510.26692): kernel 4, then SiLU.
"""

import torch
from torch import Tensor
from torch.nn.functional import silu

from mnemolab.errors import BadRequest, unknown
from mnemolab.kernels.neighbours.dispatch import check_floating, check_writable, fused
from mnemolab.kernels.neighbours.norms import l2_norm

__all__ = ["short_conv", "short_conv_qkv", "short_conv_step"]

# of the fused form: taps that it keeps in registers, channels of a head that it can bring to unit length
MAX_TAPS, MAX_UNIT = 4, 256


def short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    cache: Tensor | None = None,
    activation: str | None = "silu",
) -> tuple[Tensor, Tensor]:
    """y[t] = act(bias + sum_w weight[:, w] x[t - W + 1 + w]): the last tap meets the current token.

    x (B,T,D), T >= 0; weight (D,W); bias (D); cache (B,W-1,D) holds the last W-1 inputs before x, zeros if None.
    activation None | "silu". Returns y (B,T,D) in x.dtype, and the next cache (B,W-1,D). Sums run in float32 at least.
    Raises BadRequest for shapes that do not fit.
    """
    _check(x, weight, bias, cache)
    B, T, D = x.shape
    W = weight.shape[1]
    if W <= MAX_TAPS and activation in (None, "silu") and fused(x, weight, bias, cache):
        from mnemolab.kernels.triton import short_conv as form

        return form.short_conv(x, weight, bias, cache, activation == "silu")
    cache = x.new_zeros(B, W - 1, D) if cache is None else cache.to(x.dtype)
    padded = torch.cat([cache, x], 1)
    wide = torch.promote_types(x.dtype, torch.float32)
    taps, inputs = weight.to(wide), padded.to(wide)
    y = inputs[:, W - 1 :] * taps[:, W - 1]
    for w in range(W - 1):
        y = torch.addcmul(y, inputs[:, w : w + T], taps[:, w])
    if bias is not None:
        y = y + bias.to(wide)
    # a slice would keep the whole padded input alive
    return _activate(y, activation).to(x.dtype), padded[:, T:].clone()


def short_conv_qkv(
    mixed: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    sizes: tuple[int, int, int],
    cache: Tensor | None = None,
    silu: tuple[bool, bool, bool] = (True, True, True),
    unit: int = 0,
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Everything between a fused projection and a memory: convolve, activate, bring keys to unit length, split.

    mixed (B,T,M) holds q, k and v, `sizes` = (Q,K,V) channels wide, and behind them whatever else was projected. weight
    (Q+K+V,W), bias (Q+K+V) and cache (B,W-1,Q+K+V) are those of `short_conv`; `silu` says which of q, k and v it is
    applied to. unit > 0: q and k are divided by their L2 norm over heads of that many channels, with `eps` as in `l2_norm`.
    Returns q (B,T,Q), k (B,T,K), v (B,T,V), the rest of mixed (B,T,M-Q-K-V) as a view, and the next cache.
    Raises BadRequest for shapes that do not fit.
    """
    check_floating(mixed=mixed)
    channels = sum(sizes)
    if mixed.dim() != 3 or mixed.shape[2] < channels:
        raise BadRequest(f"mixed has shape {tuple(mixed.shape)}; it must be (B,T,M) with M >= sum(sizes)={channels}")
    if len(sizes) != 3 or min(sizes) < 1:
        raise BadRequest(f"sizes={tuple(sizes)}; give the channels of q, k and v, each at least 1")
    if unit < 0 or (unit and (sizes[0] % unit or sizes[1] % unit)):
        raise BadRequest(
            f"unit={unit} does not divide the {sizes[0]} and {sizes[1]} channels of q and k; give a divisor"
        )
    qkv, rest = mixed.split((channels, mixed.shape[2] - channels), -1)
    _check(qkv, weight, bias, cache)
    if weight.shape[1] <= MAX_TAPS and unit <= MAX_UNIT and fused(mixed, weight, bias, cache):
        from mnemolab.kernels.triton import short_conv as form

        return form.short_conv_qkv(mixed, weight, bias, cache, sizes, silu, unit, eps)
    y, following = short_conv(qkv, weight, bias, cache=cache, activation="silu" if all(silu) else None)
    q, k, v = y.split(sizes, -1)
    if not all(silu):
        q, k, v = (_activate(u, "silu" if on else None) for u, on in zip((q, k, v), silu, strict=True))
    if unit:
        q, k = (l2_norm(u.unflatten(-1, (-1, unit)), eps).flatten(2) for u in (q, k))
    return q, k, v, rest, following


def short_conv_step(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cache: Tensor, activation: str | None = "silu"
) -> Tensor:
    """One token: x (B,D) -> y (B,D). `cache` (B,W-1,D) is updated in place; zeros begin a sequence."""
    check_floating(x=x, cache=cache)
    if cache is None:
        raise BadRequest("cache is None; give the (B,W-1,D) tensor to be updated, zeros to begin a sequence")
    check_writable("cache", cache)
    if x.dim() != 2:
        raise BadRequest(f"x has shape {tuple(x.shape)}; for one token it must be (B,D)")
    y, new = short_conv(x.unsqueeze(1), weight, bias, cache=cache, activation=activation)
    cache.copy_(new)
    return y.squeeze(1)


def _activate(y: Tensor, activation: str | None) -> Tensor:
    if activation is None:
        return y
    if activation != "silu":
        raise unknown("activation", activation, ("silu",))
    return silu(y)


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, cache: Tensor | None) -> None:
    check_floating(x=x, weight=weight, bias=bias, cache=cache)
    if x.dim() != 3:
        raise BadRequest(f"x has shape {tuple(x.shape)}; it must be (B,T,D)")
    B, _, D = x.shape
    if weight.dim() != 2 or weight.shape[0] != D or weight.shape[1] < 1:
        raise BadRequest(f"weight has shape {tuple(weight.shape)}; with D={D} it must be (D,W)=({D}, W >= 1)")
    if bias is not None and tuple(bias.shape) != (D,):
        raise BadRequest(f"bias has shape {tuple(bias.shape)}; it must be (D,)=({D},)")
    wanted = (B, weight.shape[1] - 1, D)
    if cache is not None and tuple(cache.shape) != wanted:
        raise BadRequest(f"cache has shape {tuple(cache.shape)}; it must be (B,W-1,D)={wanted}")
