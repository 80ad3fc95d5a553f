"""The recurrence in chunks of C tokens: matrix products inside a chunk, one state per chunk between them.

With the decay products of `chunk_decay` (head_r from the chunk's start to row r, tail_r from after r to its end):

    T = strict lower pairs(e,k), A = lower pairs(q,k), X = (I + T)^-1
    R = X (z - (head*e) S)               what each token really writes
    o = (head*q) S + A R;   S' = whole*S + (tail*k)^T R

A, X, U = X z and W = X (head*e) are formed for all chunks at once; only R = U - W S and S' go from chunk to chunk. The
backward pass is written by hand: one saved state per chunk, one reverse sweep, everything else again for all chunks at once.
Source: Kimi Linear, arXiv 2510.26692, equations 6 to 9; Gated DeltaNet-2, arXiv 2605.22791, equations 19 to 25.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mnemolab.kernels.chunk_decay import decay_of, through_states
from mnemolab.kernels.chunk_inverse import unit_lower_inverse
from mnemolab.kernels.chunk_tiles import Tiles
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
    together = max(1, _ELEMENTS_TOGETHER // max(1, T * H * max(K, V)))
    if operands.device.type != "cpu" or together >= B:
        return _Chunked.apply(*tensors, operands.scale, C)  # type: ignore[return-value]
    # sequences are independent: a few at a time stay in the cache
    size = -(-B // -(-B // together))
    parts = zip(*([None] * -(-B // size) if x is None else x.split(size) for x in tensors), strict=True)
    results = [_Chunked.apply(*part, operands.scale, C) for part in parts]
    o, states = zip(*results, strict=True)  # type: ignore[arg-type]
    return torch.cat(o), torch.cat(states)


class _Chunked(torch.autograd.Function):
    """q, k, v, log_decay, erase, write, state (B,H,K,V) -> o, final state."""

    @staticmethod
    def forward(ctx: Any, q, k, v, log_decay, erase, write, state, scale: float, C: int):
        with torch.autocast(q.device.type, enabled=False):
            return _forward(ctx, q, k, v, log_decay, erase, write, state, scale, C)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do, dstate):
        with torch.autocast(ctx.saved_tensors[0].device.type, enabled=False):
            return (*_backward(ctx, do, dstate), None, None)


def _times(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else x * factor


def _forward(ctx: Any, q, k, v, log_decay, erase, write, state, scale: float, C: int) -> tuple[Tensor, Tensor]:
    tiles = Tiles(q.shape, C, state.dtype)
    qt, kt, vt = tiles.of(q).mul_(scale), tiles.of(k), tiles.of(v)
    lt, bt, wt = (None if x is None else tiles.of(x) for x in (log_decay, erase, write))
    et, zt = None if bt is None else kt * bt, _times(vt, wt)
    decay = decay_of(lt, kt)
    A, blocks = decay.pairs(qt, et, kt)
    ends = tiles.by_chunk(_times(kt, decay.tail).mT)
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
        W, R = torch.bmm(X, _times(et, decay.head)), torch.bmm(X, zt)
        for c, (erased, found) in enumerate(zip(tiles.by_chunk(W), tiles.by_chunk(R), strict=True)):
            found.baddbmm_(erased, states[c], alpha=-1)
            _decayed(states, c, whole).baddbmm_(ends[c], found)
    o = torch.bmm(_times(qt, decay.head), states[:-1].flatten(0, 1)).baddbmm_(A, R)
    ctx.tiles, ctx.scale, ctx.state_shape = tiles, scale, state.shape
    ctx.inputs = [None if x is None else (x.shape, x.dtype) for x in (q, k, v, log_decay, erase, write)]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(qt, kt, vt, lt, bt, wt, A, X, W, R, states)
    return tiles.back(o, v.shape, v.dtype), states[-1].reshape(state.shape).clone()


def _decayed(states: Tensor, c: int, whole: Tensor | None) -> Tensor:
    """states[c+1], filled with the decayed states[c]."""
    return states[c + 1].copy_(states[c]) if whole is None else torch.mul(states[c], whole[c], out=states[c + 1])


def _backward(ctx: Any, do: Tensor | None, dstate: Tensor | None) -> list[Tensor | None]:
    qt, kt, vt, lt, bt, wt, A, X, W, R, states = ctx.saved_tensors
    tiles: Tiles = ctx.tiles
    et, decay = None if bt is None else kt * bt, decay_of(lt, kt)
    Qd, Kend = _times(qt, decay.head), _times(kt, decay.tail)
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
    dE = None if X is None else dz.neg()
    # first the parts that pass through a state: the chunk's first for the reads, its last for the write
    dq, dk = torch.bmm(dO, starts.mT), torch.bmm(R, ends.mT)
    de = None if dE is None else torch.bmm(dE, starts.mT)
    dl = None
    if decay.head is not None and decay.tail is not None and decay.whole is not None:
        rows = dq * Qd
        dq.mul_(decay.head)
        if et is not None and de is not None:
            de.mul_(decay.head)
            rows.addcmul_(de, et)
        dl = through_states(decay.whole, rows, dk * Kend, starts, ends)
        dk.mul_(decay.tail)
    inside = decay.pairs_grad(qt, et, kt, (A, dO, dE, R), (dq, de, dk))
    if dl is not None and inside is not None:
        dl.add_(inside)
    db = dw = None
    if de is not None and bt is not None:
        db = _gate_grad(de, kt, bt)
        dk.addcmul_(de, bt)
    if wt is not None:
        dw = _gate_grad(dz, vt, wt)
        dz = dz * wt
    grads = (dq.mul_(ctx.scale), dk, dz, dl, db, dw)
    given = [
        tiles.back(grad, *meta) if grad is not None and needed else None
        for grad, meta, needed in zip(grads, ctx.inputs, ctx.needs_input_grad, strict=False)
    ]
    return [*given, dS.reshape(ctx.state_shape)]


def _gate_grad(d: Tensor, x: Tensor, gate: Tensor) -> Tensor:
    """The cotangent of a gate (M,C,1 or D) that multiplied x (M,C,D)."""
    grad = d * x
    return grad if gate.shape[-1] == x.shape[-1] else grad.sum(-1, keepdim=True)
