"""A memory's gates of one number a head, all in one launch a direction. The plain form is `neighbours/scalar_gates.py`.

As tensor operations the strength of the delta rule alone is seven kernels, a decay beside it some ten more: hardly any work, and
2 us each. Backward all columns of the gradient are written where they belong, those that only passed by too.
"""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mnemolab.kernels.derivatives import once_differentiable
from mnemolab.kernels.triton.decay_gate import gate, gate_gradient, rate_of, softplus
from mnemolab.kernels.triton.launch import run
from mnemolab.kernels.triton.norms import PROGRAMS
from mnemolab.kernels.triton.sums import column_sums

__all__ = ["scalar_gates"]

TILE, WIDE_TILE = 1024, 4096  # numbers of a program's tile, of one whose gradient has columns that pass by


@triton.jit(do_not_specialize=["N", "beta_max"])
def scalar_gates_forward_kernel(
    u_ptr, bias_ptr, a_ptr, decay_ptr, step_ptr, beta_ptr, N, beta_max,
    J: tl.constexpr, P: tl.constexpr, H: tl.constexpr, KIND: tl.constexpr, R: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    h = tl.arange(0, BH)
    n = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    mask = (n < N)[:, None] & (h < H)[None, :]
    from_ptr = u_ptr + n[:, None] * J + P + h[None, :]
    at = n[:, None] * H + h[None, :]
    if decay_ptr is not None:
        bias = tl.load(bias_ptr + h, mask=h < H, other=0.0)[None, :]
        z = tl.load(from_ptr, mask=mask, other=0.0).to(tl.float32) + bias
        tl.store(decay_ptr + at, gate(z, rate_of(a_ptr, h, h < H, KIND)[None, :], KIND), mask=mask)
        if step_ptr is not None:
            size, _slope = softplus(z)
            tl.store(step_ptr + at, size, mask=mask)
        from_ptr += H
    if beta_ptr is not None:
        u = tl.load(from_ptr, mask=mask, other=0.0).to(tl.float32)
        tl.store(beta_ptr + at, tl.sigmoid(u) * beta_max, mask=mask)


@triton.jit
def _given(ptr, at, mask):
    """A gradient's tile in float32; zeros where there is none."""
    if ptr is None:
        return tl.zeros(at.shape, tl.float32)
    else:
        return tl.load(ptr + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["N", "beta_max"])
def scalar_gates_backward_kernel(
    u_ptr, bias_ptr, a_ptr, dpassed_ptr, ddecay_ptr, dstep_ptr, dbeta_ptr, du_ptr, sums_ptr, N, beta_max,
    J: tl.constexpr, P: tl.constexpr, H: tl.constexpr, KIND: tl.constexpr, BETA: tl.constexpr,
    R: tl.constexpr, BH: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """sums (programs,2,H): what a program adds to the gradients of bias and A_log."""
    h = tl.arange(0, BH)
    bias = tl.zeros((1, BH), tl.float32)
    rate = bias
    if sums_ptr is not None:
        bias = tl.load(bias_ptr + h, mask=h < H, other=0.0)[None, :]
        rate = rate_of(a_ptr, h, h < H, KIND)[None, :]
    db = tl.zeros((BH,), tl.float32)
    da = tl.zeros((BH,), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(N, R), tl.num_programs(0)):
        n = tl.zeros((R,), tl.int64) + block * R + tl.arange(0, R)
        mask = (n < N)[:, None] & (h < H)[None, :]
        at = n[:, None] * H + h[None, :]
        column = n[:, None] * J + P + h[None, :]
        if P > 0:
            p = tl.arange(0, BP)
            by = (n < N)[:, None] & (p < P)[None, :]
            tl.store(
                du_ptr + n[:, None] * J + p[None, :], _given(dpassed_ptr, n[:, None] * P + p[None, :], by), mask=by
            )
        if sums_ptr is not None:
            z = tl.load(u_ptr + column, mask=mask, other=0.0).to(tl.float32) + bias
            dz, dlog = gate_gradient(z, rate, _given(ddecay_ptr, at, mask), KIND)
            if dstep_ptr is not None:
                _size, slope = softplus(z)
                dz += slope * _given(dstep_ptr, at, mask)
            db += tl.sum(dz, axis=0)
            da += tl.sum(dlog, axis=0)
            tl.store(du_ptr + column, dz, mask=mask)
            column += H
        if BETA:
            u = tl.load(u_ptr + column, mask=mask, other=0.0).to(tl.float32)
            # 1 - sigmoid from the other side: at either end one of the two is small
            slope = tl.sigmoid(u) * tl.sigmoid(-u) * beta_max
            tl.store(du_ptr + column, slope * _given(dbeta_ptr, at, mask), mask=mask)
    if sums_ptr is not None:
        row = tl.program_id(0).to(tl.int64) * 2 * H
        tl.store(sums_ptr + row + h, db, mask=h < H)
        tl.store(sums_ptr + row + H + h, da, mask=h < H)


def _power(columns: int) -> int:
    return 1 << (columns - 1).bit_length()


class _ScalarGates(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, told: Tensor, heads: int, passed: int, kind: int | None, bias: Tensor | None, A_log: Tensor | None,
        step: bool, beta_max: float | None,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        told = told.contiguous()
        bias, A_log = (None if x is None else x.contiguous() for x in (bias, A_log))
        B, T, J = told.shape
        BH = _power(heads)
        tiles = {"J": J, "P": passed, "H": heads, "KIND": 2 if kind is None else kind, "BH": BH}

        def made(there: bool) -> Tensor | None:
            return torch.empty(B, T, heads, dtype=torch.float32, device=told.device) if there else None

        log_decay, size, beta = made(kind is not None), made(step), made(beta_max is not None)
        R = max(1, TILE // BH)
        run(
            scalar_gates_forward_kernel, (triton.cdiv(B * T, R),),
            told, bias, A_log, log_decay, size, beta, B * T, float(beta_max or 0.0), **tiles, R=R, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(told, bias, A_log)
        ctx.options = beta_max, tiles
        ctx.set_materialize_grads(False)
        return told[..., :passed] if passed else None, log_decay, size, beta

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        told, bias, A_log = ctx.saved_tensors
        beta_max, tiles = ctx.options
        dpassed, ddecay, dstep, dbeta = (None if d is None else d.contiguous() for d in gradients)
        N, H, BP = told.numel() // tiles["J"], tiles["H"], _power(max(1, tiles["P"]))
        R = max(1, (WIDE_TILE if tiles["P"] else TILE) // max(BP, tiles["BH"]))
        programs = min(PROGRAMS, triton.cdiv(N, R))
        dtold = torch.empty_like(told)
        partial = None if bias is None else torch.empty(programs, 2, H, dtype=torch.float32, device=told.device)
        run(
            scalar_gates_backward_kernel, (programs,),
            told, bias, A_log, dpassed, ddecay, dstep, dbeta, dtold, partial, N, float(beta_max or 0.0),
            **tiles, BETA=beta_max is not None, R=R, BP=BP, num_warps=4,
        )  # fmt: skip
        dbias, dlog = (None, None) if partial is None else column_sums(partial, torch.float32)
        return dtold, None, None, None, dbias, None if A_log is None else dlog, None, None


def scalar_gates(
    told: Tensor, heads: int, passed: int, kind: int | None, bias: Tensor | None, A_log: Tensor | None, step: bool,
    beta_max: float | None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """As the plain form: told not empty, bias and A_log float32; kind is the place in GATES."""
    return _ScalarGates.apply(told, heads, passed, kind, bias, A_log, step, beta_max)  # type: ignore[return-value]
