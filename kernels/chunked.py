"""The recurrence in chunks of C tokens: matrix products inside a chunk, one state per chunk between them.

With the decay products of `chunk_decay` (head_r from the chunk's start to row r, tail_r from after r to its end):

    T = strict lower pairs(e,k), A = lower pairs(q,k), X = (I + T)^-1
    R = X (z - (head*e) S)               what each token really writes
    o = (head*q) S + A R;   S' = whole*S + (tail*k)^T R

A, X, U = X z and W = X (head*e) are formed for all chunks at once; only R = U - W S and S' go from chunk to chunk. The
backward pass is written by hand: one saved state per chunk, one reverse sweep, everything else again for all chunks at once.
Source: Kimi Linear, arXiv 2510.26692, equations 6 to 9; Gated DeltaNet-2, arXiv 2605.22791, equations 19 to 25.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mnemolab.kernels.chunk_decay import decay_of, through_states, times
from mnemolab.kernels.chunk_inverse import unit_lower_inverse
from mnemolab.kernels.chunk_tiles import Tiles
from mnemolab.kernels.derivatives import once_differentiable
from mnemolab.kernels.loop import step
from mnemolab.kernels.operands import Operands, State, with_denominator

__all__ = ["default_chunk_size", "scan", "step", "supports"]


# elements of one operand that are worked on at once on a CPU: about 20 such tensors are alive
_ELEMENTS_TOGETHER = 1 << 18


def supports(operands: Operands) -> str | None:
    """None: every operand that passed the boundary, on every device."""
    return None


def default_chunk_size(T: int, K: int, V: int) -> int:
    """The fastest chunk on a CPU; a sequence shorter than that is one chunk."""
    chunk = 16 if max(K, V) <= 32 else 32 if max(K, V) <= 64 else 64
    while chunk > 1 and chunk // 2 >= T:
        chunk //= 2
    return chunk


def scan(operands: Operands, chunk_size: int | None = None) -> tuple[Tensor, State]:
    """Outputs (B,T,H,V) in v.dtype and the final state, with gradients for every operand and the initial state."""
    if operands.normalize:
        return with_denominator(operands, lambda plain: _scan(plain, chunk_size))
    return _scan(operands, chunk_size)


def _scan(operands: Operands, chunk_size: int | None) -> tuple[Tensor, Tensor]:
    B, T, H, K, V = operands.sizes
    C = chunk_size or default_chunk_size(T, K, V)
    tensors = (
        operands.q, operands.k, operands.v, operands.log_decay, operands.erase, operands.write, operands.first_state(),
    )  # fmt: skip
    # sequences are independent: on a CPU a few at a time stay in the cache
    together = B if operands.device.type != "cpu" else _ELEMENTS_TOGETHER // max(1, T * H * max(K, V))
    return _Chunked.apply(*tensors, operands.scale, C, max(1, together))  # type: ignore[return-value]


class _Chunked(torch.autograd.Function):
    """q, k, v, log_decay, erase, write, state (B,H,K,V) -> o, final state."""

    @staticmethod
    def forward(ctx: Any, q, k, v, log_decay, erase, write, state, scale: float, C: int, together: int):
        inputs = (q, k, v, log_decay, erase, write, state)
        ctx.parts = [slice(b, min(b + together, q.shape[0])) for b in range(0, q.shape[0], together)]
        ctx.tiles = [Tiles(part.stop - part.start, q.shape[1], q.shape[2], C, state.dtype) for part in ctx.parts]
        ctx.scale, ctx.device, ctx.inputs = scale, q.device, [None if x is None else (x.shape, x.dtype) for x in inputs]
        o, final = torch.empty(v.shape, dtype=v.dtype, device=v.device), torch.empty_like(state)
        kept: list[Tensor | None] = []
        with torch.autocast(q.device.type, enabled=False):
            for part, tiles in zip(ctx.parts, ctx.tiles, strict=True):
                kept += _forward(tiles, _cut(inputs, part), scale, o[part], final[part])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*kept)
        return o, final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do, dstate):
        grads = [
            torch.empty(meta[0], dtype=meta[1], device=ctx.device) if meta is not None and needed else None
            for meta, needed in zip(ctx.inputs, ctx.needs_input_grad, strict=False)
        ]
        saved = iter(ctx.saved_tensors)
        with torch.autocast(ctx.device.type, enabled=False):
            for part, tiles in zip(ctx.parts, ctx.tiles, strict=True):
                kept = [next(saved) for _ in range(_KEPT)]
                _backward(tiles, kept, _cut((do, dstate), part), ctx.scale, _cut(grads, part))
        return (*grads, None, None, None)


def _cut(tensors: Sequence[Tensor | None], part: slice) -> list[Tensor | None]:
    return [None if x is None else x[part] for x in tensors]


# how many tensors `_forward` keeps for `_backward`
_KEPT = 13


def _forward(tiles: Tiles, inputs: Sequence, scale: float, o: Tensor, final: Tensor) -> tuple:
    """Writes o and the final state; returns what the backward pass needs."""
    q, k, v, log_decay, erase, write, state = inputs
    qt, kt, vt = tiles.of(q, scale), tiles.of(k), tiles.of(v)
    lt, bt, wt = (None if x is None else tiles.of(x) for x in (log_decay, erase, write))
    et, zt = None if bt is None else kt * bt, times(vt, wt)
    decay = decay_of(lt, kt)
    A, blocks = decay.pairs(qt, et, kt)
    ends = tiles.by_chunk(times(kt, decay.tail).mT)
    whole = None if decay.whole is None else tiles.by_chunk(decay.whole.unsqueeze(-1))
    states = state.new_empty(tiles.NC + 1, tiles.N, *state.shape[2:])
    states[0] = state.reshape(states.shape[1:])
    X = W = None
    if et is None:
        R = zt
        writes = torch.bmm(ends.flatten(0, 1), R)
        for c, written in enumerate(tiles.by_chunk(writes)):
            _decayed(states, c, whole).add_(written)
    else:
        X = unit_lower_inverse(blocks, kt)
        W, R = torch.bmm(X, times(et, decay.head)), torch.bmm(X, zt)
        for c, (erased, found) in enumerate(zip(tiles.by_chunk(W), tiles.by_chunk(R), strict=True)):
            found.baddbmm_(erased, states[c], alpha=-1)
            _decayed(states, c, whole).baddbmm_(ends[c], found)
    read = torch.bmm(times(qt, decay.head), states[:-1].flatten(0, 1)).baddbmm_(A, R)
    tiles.back(read, o)
    final.copy_(states[-1].view(final.shape))
    # a scalar decay is cheaper to form again than to keep
    head, tail = (None, None) if lt is None or lt.shape[-1] == 1 else (decay.head, decay.tail)
    return qt, kt, vt, lt, bt, wt, A, X, W, R, states, head, tail


def _decayed(states: Tensor, c: int, whole: Tensor | None) -> Tensor:
    """states[c+1], filled with the decayed states[c]."""
    return states[c + 1].copy_(states[c]) if whole is None else torch.mul(states[c], whole[c], out=states[c + 1])


def _backward(tiles: Tiles, kept: Sequence, cotangents: Sequence, scale: float, grads: Sequence[Tensor | None]) -> None:
    """Writes the gradients of q, k, v, log_decay, erase, write and the initial state, those that are not None."""
    qt, kt, vt, lt, bt, wt, A, X, W, R, states, head, tail = kept
    do, dstate = cotangents
    et, decay = None if bt is None else kt * bt, decay_of(lt, kt, head, tail)
    Qd, Kend = times(qt, decay.head), times(kt, decay.tail)
    whole = None if decay.whole is None else tiles.by_chunk(decay.whole.unsqueeze(-1))
    dO = torch.zeros_like(vt) if do is None else tiles.of(do)
    # what the outputs ask of the states and of R; the sweep adds what later chunks ask
    reads, dR = tiles.by_chunk(torch.bmm(Qd.mT, dO)), torch.bmm(A.mT, dO)
    dS = states.new_zeros(states.shape[1:]) if dstate is None else dstate.reshape(states.shape[1:])
    dstates = torch.empty_like(states[1:])
    for c in reversed(range(tiles.NC)):
        dstates[c] = dS
        dS = reads[c] + dS if whole is None else torch.addcmul(reads[c], dS, whole[c])
        if W is not None:
            dRc = tiles.by_chunk(dR)[c].baddbmm_(tiles.by_chunk(Kend)[c], dstates[c])
            dS.baddbmm_(tiles.by_chunk(W)[c].mT, dRc, alpha=-1)
    starts, ends = states[:-1].flatten(0, 1), dstates.flatten(0, 1)
    dz = dR.baddbmm_(Kend, ends) if X is None else torch.bmm(X.mT, dR)
    # first the parts that pass through a state: the chunk's first for the reads, its last for the write
    dq, dk = torch.bmm(dO, starts.mT), torch.bmm(R, ends.mT)
    de = None if X is None else torch.bmm(dz, starts.mT).neg_()
    dl = None
    if decay.head is not None and decay.tail is not None and decay.whole is not None:
        rows = dq * Qd
        dq.mul_(decay.head)
        if et is not None and de is not None:
            de.mul_(decay.head)
            rows.addcmul_(de, et)
        dl = through_states(decay.whole, rows, dk * Kend, starts, ends)
        dk.mul_(decay.tail)
    inside = decay.pairs_grad(qt, et, kt, (A, dO, dz, R), (dq, de, dk))
    if dl is not None and inside is not None:
        dl.add_(inside)
    db = dw = None
    if de is not None and bt is not None:
        db = _gate_grad(de, kt, bt)
        dk.addcmul_(de, bt)
    if wt is not None:
        dw = _gate_grad(dz, vt, wt)
        dz = dz * wt
    for found, wanted, factor in zip((dq, dk, dz, dl, db, dw), grads, (scale, 1, 1, 1, 1, 1), strict=False):
        if found is not None and wanted is not None:
            tiles.back(found, wanted, factor)
    if grads[-1] is not None:
        grads[-1].copy_(dS.view(grads[-1].shape))


def _gate_grad(d: Tensor, x: Tensor, gate: Tensor) -> Tensor:
    """The cotangent of a gate (M,C,1 or D) that multiplied x (M,C,D)."""
    grad = d * x
    return grad if gate.shape[-1] == x.shape[-1] else grad.sum(-1, keepdim=True)
