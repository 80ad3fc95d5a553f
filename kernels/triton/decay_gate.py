"""The gates of the per-channel stages, forward and backward, one launch each. The plain form is `neighbours/decay_gate.py`.

As tensor operations they are ten passes over float32 tensors of the size of all keys, and two slow sums: half a millisecond of a 3.3 ms step of KDA.
"""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mnemolab.kernels.derivatives import once_differentiable
from mnemolab.kernels.neighbours.decay_gate import BOUND, TEMPERATURE
from mnemolab.kernels.triton.launch import run
from mnemolab.kernels.triton.norms import PROGRAMS
from mnemolab.kernels.triton.sums import column_sums
from mnemolab.kernels.triton.table import padded

__all__ = ["decay_gate", "gate", "gate_gradient", "rate_of", "softplus"]

TILE = 4096
_BOUND, _SHARE = tl.constexpr(BOUND), tl.constexpr(1.0 / TEMPERATURE)


@triton.jit
def softplus(z):
    """log(1 + exp z) and sigmoid z. Where exp z is small, which is where memories last, by its series: the logarithm cancels."""
    e = tl.exp(-tl.abs(z))
    series = 1.0 / 11.0 * e
    for n in tl.static_range(10, 0, -1):
        series = e * (1.0 / n - series)
    tail = tl.where(e < 0.25, series, tl.log(1.0 + e))
    sigmoid = tl.where(z > 0, 1.0, e) / (1.0 + e)
    return tl.maximum(z, 0.0) + tail, sigmoid


@triton.jit
def gate(z, rate, KIND: tl.constexpr):
    """The log-decay of u + bias = z, its A being `rate`. KIND: the place in GATES."""
    if KIND == 0:
        y, _ = softplus(z)
        return -rate * y
    elif KIND == 1:
        return tl.sigmoid(rate * z) * _BOUND
    else:
        y, _ = softplus(-z)
        return y * -_SHARE


@triton.jit
def gate_gradient(z, rate, dy, KIND: tl.constexpr):
    """The gradients of z and of the logarithm of `rate`."""
    if KIND == 0:
        y, s = softplus(z)
        return -rate * s * dy, -rate * y * dy
    elif KIND == 1:
        # 1 - sigmoid from the other side: at either end one of the two is small
        dz = tl.sigmoid(rate * z) * tl.sigmoid(-rate * z) * _BOUND * rate * dy
        return dz, dz * z
    else:
        _, s = softplus(-z)
        return s * _SHARE * dy, tl.zeros_like(z)


@triton.jit
def rate_of(a_ptr, head, inside, KIND: tl.constexpr):
    """A of each head in `head`, 1 for the gate that has none."""
    if KIND == 2:
        return tl.zeros(head.shape, tl.float32) + 1.0
    else:
        return tl.exp(tl.load(a_ptr + head, mask=inside, other=0.0))


@triton.jit
def _place(N, M: tl.constexpr, R: tl.constexpr, BM: tl.constexpr, block):
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    n = tl.zeros((R,), tl.int64) + block * R + tl.arange(0, R)
    return n[:, None] * M + m[None, :], m, (n < N)[:, None] & (m < M)[None, :]


@triton.jit(do_not_specialize=["N"])
def decay_gate_forward_kernel(
    u_ptr, b_ptr, a_ptr, y_ptr, N,
    M: tl.constexpr, K: tl.constexpr, KIND: tl.constexpr, R: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    at, m, mask = _place(N, M, R, BM, tl.program_id(0))
    z = tl.load(u_ptr + at, mask=mask, other=0.0).to(tl.float32) + tl.load(b_ptr + m, mask=m < M, other=0.0)[None, :]
    y = gate(z, rate_of(a_ptr, m // K, m < M, KIND)[None, :], KIND)
    tl.store(y_ptr + at, y, mask=mask)


@triton.jit(do_not_specialize=["N"])
def decay_gate_backward_kernel(
    u_ptr, b_ptr, a_ptr, dy_ptr, du_ptr, sums_ptr, N,
    M: tl.constexpr, K: tl.constexpr, KIND: tl.constexpr, R: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """sums (programs,2,M): what a program adds to the gradients of bias and, channel by channel, of A_log."""
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    bias = tl.load(b_ptr + m, mask=m < M, other=0.0)[None, :]
    rate = rate_of(a_ptr, m // K, m < M, KIND)[None, :]
    db = tl.zeros((BM,), tl.float32)
    da = tl.zeros((BM,), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(N, R), tl.num_programs(0)):
        at, _, mask = _place(N, M, R, BM, block)
        z = tl.load(u_ptr + at, mask=mask, other=0.0).to(tl.float32) + bias
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0)
        dz, dlog = gate_gradient(z, rate, dy, KIND)
        da += tl.sum(dlog, axis=0)
        db += tl.sum(dz, axis=0)
        tl.store(du_ptr + at, dz, mask=mask)
    row = tl.program_id(0).to(tl.int64) * 2 * M
    tl.store(sums_ptr + row + m, db, mask=m < M)
    tl.store(sums_ptr + row + M + m, da, mask=m < M)


def _tiles(M: int) -> dict[str, int]:
    BM = min(padded(M), 128)
    return {"BM": BM, "R": TILE // BM}


class _DecayGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, bias: Tensor, A_log: Tensor | None, kind: int, heads: int) -> Tensor:
        u, bias = u.contiguous(), bias.contiguous()
        A_log = None if A_log is None else A_log.contiguous()
        *shape, M = u.shape
        N, tiles = u.numel() // M, _tiles(M)
        y = torch.empty((*shape, heads, M // heads), dtype=torch.float32, device=u.device)
        grid = (triton.cdiv(N, tiles["R"]), triton.cdiv(M, tiles["BM"]))
        run(decay_gate_forward_kernel, grid, u, bias, A_log, y, N, M=M, K=M // heads, KIND=kind, **tiles, num_warps=4)
        ctx.save_for_backward(u, bias, A_log)
        ctx.options = kind, heads
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        u, bias, A_log = ctx.saved_tensors
        kind, heads = ctx.options
        M = u.shape[-1]
        N, tiles = u.numel() // M, _tiles(M)
        programs = min(PROGRAMS, triton.cdiv(N, tiles["R"]))
        du = torch.empty_like(u)
        partial = torch.empty(programs, 2, M, dtype=torch.float32, device=u.device)
        grid = (programs, triton.cdiv(M, tiles["BM"]))
        run(
            decay_gate_backward_kernel, grid,
            u, bias, A_log, dy.contiguous(), du, partial, N, M=M, K=M // heads, KIND=kind, **tiles, num_warps=4,
        )  # fmt: skip
        dbias, channels = column_sums(partial, torch.float32)
        return du, dbias, None if A_log is None else channels.view(heads, -1).sum(-1), None, None


def decay_gate(u: Tensor, bias: Tensor, A_log: Tensor | None, kind: int, heads: int) -> Tensor:
    """As the plain form: u (B,T,H*K) not empty, bias and A_log float32; kind is the place in GATES."""
    return _DecayGate.apply(u, bias, A_log, kind, heads)  # type: ignore[return-value]
