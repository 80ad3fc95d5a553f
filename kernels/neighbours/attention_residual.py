"""Attention residuals: a site's input is a softmax mix of earlier outputs, by a learned pseudo-query.

Source: Attention Residuals, arXiv 2603.15031; Kimi K3, arXiv 2607.24653.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.kernels.neighbours.dispatch import check_floating, fused

__all__ = ["attention_residual"]


def attention_residual(sources: Sequence[Tensor] | Tensor, query: Tensor, gain: Tensor, *, eps: float = 1e-5) -> Tensor:
    """h = sum_j a_j v_j with a = softmax_j(query . (gain * rms(v_j))); the values are not normalised.

    sources: N tensors (B,T,D), or one (N,B,T,D); query, gain (D). Returns (B,T,D) in the sources' dtype; the softmax
    runs in float32 at least. A query of zeros gives the plain mean.
    """
    values = list(sources.unbind(0)) if isinstance(sources, Tensor) else list(sources)
    if not values:
        raise BadRequest("sources is empty; attention_residual needs at least one")
    check_floating(query=query, gain=gain, **{f"sources[{j}]": value for j, value in enumerate(values)})
    D = values[0].shape[-1]
    for j, value in enumerate(values):
        if value.shape != values[0].shape:
            raise BadRequest(f"sources[{j}] has shape {tuple(value.shape)}; it must be {tuple(values[0].shape)}")
    for name, vector in (("query", query), ("gain", gain)):
        if tuple(vector.shape) != (D,):
            raise BadRequest(f"{name} has shape {tuple(vector.shape)}; it must be (D,)=({D},)")
    if len(values) <= 16 and all(fused(value, query, gain) for value in values):
        from mnemolab.kernels.triton import attention_residual as form

        return form.attention_residual(values, query, gain, eps)
    dtype = values[0].dtype
    wide = torch.promote_types(dtype, torch.float32)
    probe = query.to(wide) * gain.to(wide)
    values = [value.to(wide) for value in values]
    scores = [(value * probe).sum(-1) * torch.rsqrt(value.square().mean(-1) + eps) for value in values]
    weights = torch.stack(scores).softmax(0)
    mixed = weights[0].unsqueeze(-1) * values[0]
    for weight, value in zip(weights[1:], values[1:], strict=True):
        mixed = torch.addcmul(mixed, weight.unsqueeze(-1), value)
    return mixed.to(dtype)
