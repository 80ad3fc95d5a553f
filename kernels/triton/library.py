"""The scan as operators of torch.library, so that torch.compile(fullgraph=True) takes it as a whole.

`scan.py` calls them only while compiling: eagerly, an autograd function costs a third of an operator's dispatch. Sequences are not
cut into segments here: into how many would be a guard on a length left open, with one compilation each, and an error where it
has bounds of its own.
A tensor that a scan does not have is an empty one here, since an operator's results are tensors without exception.
"""

from typing import Any

import torch
from torch import Tensor

from mnemolab.kernels.triton.scan import flat, geometry, rows, run_backward, run_forward

__all__ = ["compiled_scan"]


@torch.library.custom_op("mnemolab::scan_forward", mutates_args=())
def scan_forward(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, erase: Tensor | None, write: Tensor | None,
    state0: Tensor | None, norm0: Tensor | None, normalize: bool, scale: float,
) -> list[Tensor]:  # fmt: skip
    """o, state, norm, the workspace."""
    geo = geometry(q, v, log_decay, erase, write, normalize, scale, whole=True)
    gates = [flat(x) for x in (log_decay, erase, write, state0, norm0)]
    with torch.cuda.device_of(q):
        o, state, norm, work = run_forward(geo, rows(q), rows(k), rows(v), *gates, save=True)
    return [o, state, q.new_empty(0) if norm is None else norm, work]


@scan_forward.register_fake
def _(q, k, v, log_decay, erase, write, state0, norm0, normalize, scale):
    geo = geometry(q, v, log_decay, erase, write, normalize, scale, whole=True)
    state = q.new_empty(geo.B, geo.H, geo.K, geo.V, dtype=torch.float32)
    norm = q.new_empty(geo.B, geo.H, geo.K, dtype=torch.float32) if normalize else q.new_empty(0)
    o = torch.empty((geo.B, geo.T, geo.H, geo.V), dtype=v.dtype, device=v.device)
    return [o, state, norm, geo.layout("saved").empty(q.device)]


@torch.library.custom_op("mnemolab::scan_backward", mutates_args=())
def scan_backward(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, erase: Tensor | None, write: Tensor | None,
    state0: Tensor | None, norm0: Tensor | None, normalize: bool, scale: float,
    work: Tensor, o: Tensor, do: Tensor | None, dstate: Tensor | None, dnorm: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    """Gradients of q, k, v, log_decay, erase, write, state0, norm0."""
    geo = geometry(q, v, log_decay, erase, write, normalize, scale, whole=True)
    do = torch.zeros(v.shape, dtype=v.dtype, device=v.device) if do is None else do.contiguous()
    dtypes = (None if state0 is None else state0.dtype, None if norm0 is None else norm0.dtype)
    with torch.cuda.device_of(q):
        gradients = run_backward(
            geo, rows(q), rows(k), rows(v), flat(log_decay), flat(erase), flat(write), work, o, do, flat(dstate),
            flat(dnorm), dtypes,
        )  # fmt: skip
    return [q.new_empty(0) if x is None else x for x in gradients]


@scan_backward.register_fake
def _(q, k, v, log_decay, erase, write, state0, norm0, normalize, scale, work, o, do, dstate, dnorm):
    operands = (q, k, v, log_decay, erase, write, state0, norm0)
    return [q.new_empty(0) if x is None else torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in operands]


def _setup(ctx: Any, inputs: tuple, output: list[Tensor]) -> None:
    *operands, ctx.normalize, ctx.scale = inputs
    o, _, _, work = output
    ctx.save_for_backward(*operands, o, work)


def _backward(ctx: Any, gradients: list[Tensor | None]) -> tuple[Tensor | None, ...]:
    *saved, o, work = ctx.saved_tensors
    do, dstate, dnorm = gradients[:3]
    found = scan_backward(*saved, ctx.normalize, ctx.scale, work, o, do, dstate, dnorm if ctx.normalize else None)
    return *(None if x is None else g for x, g in zip(saved, found, strict=True)), None, None


scan_forward.register_autograd(_backward, setup_context=_setup)


def compiled_scan(*operands: Any) -> tuple[Tensor, Tensor, Tensor]:
    """o, the final state and the denominator's (without meaning unless `normalize`)."""
    o, state, norm, *_ = scan_forward(*operands)
    return o, state, norm
