"""All that follows a backward pass, in three launches over every tensor at once: squares, bookkeeping, AdamW.

Programs take chunks of tensors and find them by addresses in a table. Gradients are read as they are, bfloat16 ones too, and
clipped as they are read; the copies that the next forward pass multiplies by are written beside the parameters. With torch's
operations the same takes some forty launches and moves the gradients four times.

Per step with gradient g, rate r and weight decay w (Loshchilov and Hutter 2019), t the tensor's own count of steps:

    g <- g min(1, c / (|all g| + 1e-6))
    m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2
    p <- p - r w p - r / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
"""

# Triton gives these operators their meaning: pyright reads plain Python
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mnemolab.kernels.triton.launch import run

__all__ = ["BLOCK", "Chunks", "Taken", "adamw", "settle", "squares"]

BLOCK = 2048  # elements of a chunk
# a chunk's row: addresses of parameter, gradient, moments and copy (0 for none), elements, tensor, whether g is bfloat16
COLUMNS = tl.constexpr(8)
FACTORS = tl.constexpr(3)  # a tensor's r / (1 - b1^t), sqrt(1 - b2^t) and r w


@triton.jit
def _gradient(row, i, inside):
    """The chunk's gradient in float32; `inside` None where the chunk is full, so that loads are vectors."""
    at = tl.load(row + 1)
    g = tl.zeros(i.shape, tl.float32)
    if tl.load(row + 7) > 0:
        g = tl.load(tl.multiple_of(at.to(tl.pointer_type(tl.bfloat16)), 16) + i, mask=inside).to(tl.float32)
    else:
        g = tl.load(tl.multiple_of(at.to(tl.pointer_type(tl.float32)), 16) + i, mask=inside)
    return g


@triton.jit
def squares_kernel(table_ptr, sum_ptr, BLOCK: tl.constexpr):
    """The sum of squares of every chunk's gradient."""
    chunk = tl.program_id(0)
    row = table_ptr + chunk * COLUMNS
    count = tl.load(row + 5)
    i = tl.arange(0, BLOCK)
    if count == BLOCK:
        g = _gradient(row, i, None)
        tl.store(sum_ptr + chunk, tl.sum(g * g, axis=0))
    else:
        g = tl.where(i < count, _gradient(row, i, i < count), 0.0)
        tl.store(sum_ptr + chunk, tl.sum(g * g, axis=0))


@triton.jit
def _total(x_ptr, N, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + i, mask=i < N, other=0.0)
    return tl.sum(total, axis=0)


@triton.jit(do_not_specialize=["C", "R", "N", "last", "clip"])
def settle_kernel(
    sum_ptr, loss_ptr, step_ptr, decay_ptr, beta_ptr, rate_ptr, cursor_ptr, slot_ptr, bad_ptr, ring_ptr, factor_ptr, scale_ptr,
    C, R, N, last, clip, SLOTS: tl.constexpr, LOG: tl.constexpr, BN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: loss and norm into the log, whether anything is not finite, the clip's factor, every tensor's step count
    and factors, the counters one further. Counts stand still once something was not finite."""
    cursor = tl.load(cursor_ptr)
    bad = tl.load(bad_ptr)
    rate = tl.load(rate_ptr + tl.minimum(cursor, last))
    j = tl.arange(0, BN)
    address = tl.load(step_ptr + j, mask=j < N, other=0)
    counts = address.to(tl.pointer_type(tl.float32))
    there = address != 0
    before = tl.load(counts, mask=there, other=0.0)
    norm = tl.sqrt_rn(_total(sum_ptr, C, BLOCK))
    loss = _total(loss_ptr, R, BLOCK)
    finite = (tl.abs(norm) < float("inf")) & (tl.abs(loss) < float("inf"))
    bad = tl.where(finite, bad, 1.0)
    count = before + 1.0
    # in float64, as torch has them: 1 - b2^t is small at first
    decayed = count.to(tl.float64)
    one = 1.0 - tl.exp(decayed * tl.load(beta_ptr))
    two = 1.0 - tl.exp(decayed * tl.load(beta_ptr + 1))
    decay = tl.load(decay_ptr + j, mask=j < N, other=0.0)
    tl.debug_barrier()  # what every thread has read is written by one of them
    tl.store(factor_ptr + j * FACTORS, (rate / one).to(tl.float32), mask=there)
    tl.store(factor_ptr + j * FACTORS + 1, tl.sqrt(two).to(tl.float32), mask=there)
    tl.store(factor_ptr + j * FACTORS + 2, rate * decay, mask=there)
    tl.store(counts, tl.where(bad > 0.0, before, count), mask=there)
    tl.store(scale_ptr, tl.minimum(clip / (norm + 1e-6), 1.0))
    tl.store(bad_ptr, bad)
    tl.store(ring_ptr + 2 * (cursor % LOG), loss)
    tl.store(ring_ptr + 2 * (cursor % LOG) + 1, norm)
    tl.store(cursor_ptr, cursor + 1)
    tl.store(slot_ptr, (cursor + 1) % SLOTS)


@triton.jit
def _change(row, i, inside, factor_ptr, scale_ptr, b1, rest1, b2, rest2, eps):
    p_ptr = tl.multiple_of(tl.load(row).to(tl.pointer_type(tl.float32)), 16) + i
    m_ptr = tl.multiple_of(tl.load(row + 2).to(tl.pointer_type(tl.float32)), 16) + i
    v_ptr = tl.multiple_of(tl.load(row + 3).to(tl.pointer_type(tl.float32)), 16) + i
    copy = tl.load(row + 4)
    factors = factor_ptr + tl.load(row + 6) * FACTORS
    g = _gradient(row, i, inside) * tl.load(scale_ptr)
    p, m, v = tl.load(p_ptr, mask=inside), tl.load(m_ptr, mask=inside), tl.load(v_ptr, mask=inside)
    m = b1 * m + rest1 * g
    v = b2 * v + rest2 * g * g
    p -= tl.load(factors + 2) * p
    p -= tl.load(factors) * m / (tl.sqrt(v) / tl.load(factors + 1) + eps)
    tl.store(p_ptr, p, mask=inside)
    tl.store(m_ptr, m, mask=inside)
    tl.store(v_ptr, v, mask=inside)
    if copy != 0:
        tl.store(tl.multiple_of(copy.to(tl.pointer_type(tl.bfloat16)), 16) + i, p.to(tl.bfloat16), mask=inside)


@triton.jit(do_not_specialize=["b1", "rest1", "b2", "rest2", "eps"])
def adamw_kernel(
    table_ptr, factor_ptr, scale_ptr, bad_ptr, b1, rest1, b2, rest2, eps, BLOCK: tl.constexpr
):  # fmt: skip
    """A chunk of the update; none once something was not finite."""
    row = table_ptr + tl.program_id(0) * COLUMNS
    count = tl.load(row + 5)
    i = tl.arange(0, BLOCK)
    if tl.load(bad_ptr) == 0.0:
        if count == BLOCK:
            _change(row, i, None, factor_ptr, scale_ptr, b1, rest1, b2, rest2, eps)
        else:
            _change(row, i, i < count, factor_ptr, scale_ptr, b1, rest1, b2, rest2, eps)


class Taken(NamedTuple):
    """One parameter's tensors, contiguous and 16-byte aligned: parameter, moments and count of steps in float32, gradient in
    float32 or bfloat16, copy in bfloat16 or none. A parameter without gradient is None in its place."""

    parameter: Tensor
    gradient: Tensor
    first: Tensor
    second: Tensor
    step: Tensor
    copy: Tensor | None


class Chunks:
    """The table of chunks of tensors with `sizes` elements on a device, and the addresses of their counts of steps.

    It holds addresses: whoever fills it keeps the tensors. `noted` works them out on the host; `point` writes them.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device):
        parts = [(t, first) for t, size in enumerate(sizes) for first in range(0, size, BLOCK)]
        self.tensor = torch.tensor([t for t, _ in parts], dtype=torch.int64)
        self.first = torch.tensor([first for _, first in parts], dtype=torch.int64)
        self.tensors, self.chunks = len(sizes), len(parts)
        counts = torch.tensor(list(sizes), dtype=torch.int64)[self.tensor] - self.first
        self.count = counts.clamp(max=BLOCK)
        self._at = torch.zeros(self.chunks * COLUMNS.value + self.tensors, dtype=torch.int64, device=device)
        self._held: Tensor | None = None

    @property
    def table(self) -> Tensor:
        return self._at[: self.chunks * COLUMNS.value]

    @property
    def steps(self) -> Tensor:
        return self._at[self.chunks * COLUMNS.value :]

    def noted(self, taken: Sequence[Taken | None]) -> Tensor:
        """What the table says when these tensors are taken, on the host. Raises ValueError for one that kernels cannot take."""
        rows = torch.zeros(self.tensors, COLUMNS.value, dtype=torch.int64)
        steps = torch.zeros(self.tensors, dtype=torch.int64)
        width = torch.zeros(self.tensors, COLUMNS.value, dtype=torch.int64)  # bytes an element, of what is an address
        for t, one in enumerate(taken):
            if one is None:
                continue
            tensors = (one.parameter, one.gradient, one.first, one.second, one.copy)
            rows[t, :5] = torch.tensor([_address(x) for x in tensors])
            rows[t, 7] = one.gradient.dtype == torch.bfloat16
            width[t, :5] = torch.tensor([0 if x is None else x.element_size() for x in tensors])
            steps[t] = one.step.data_ptr()
        table = rows[self.tensor] + width[self.tensor] * self.first[:, None]
        taken_there = (rows[self.tensor, 0] != 0).long()
        table[:, 5], table[:, 6] = self.count * taken_there, self.tensor
        return torch.cat((table.flatten(), steps))

    def point(self, noted: Tensor) -> None:
        if self._held is None or not torch.equal(self._held, noted):
            self._at.copy_(noted)
            self._held = noted


def _address(x: Tensor | None) -> int:
    if x is None:
        return 0
    if not x.is_contiguous() or x.data_ptr() % 16 or x.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(
            f"a tensor of shape {tuple(x.shape)} and dtype {x.dtype} is strided, unaligned or of another dtype"
        )
    return x.data_ptr()


def squares(chunks: Chunks, sums: Tensor) -> None:
    """sums (chunks,) float32 of the squared gradients."""
    run(squares_kernel, (chunks.chunks,), chunks.table, sums, BLOCK=BLOCK, num_warps=4)


def settle(
    chunks: Chunks, sums: Tensor, losses: Tensor, decay: Tensor, log_betas: Tensor, factors: Tensor, scale: Tensor,
    rates: Tensor, cursor: Tensor, slot: Tensor, bad: Tensor, ring: Tensor, *, clip: float, slots: int,
) -> None:  # fmt: skip
    """The bookkeeping of one step: losses (R,) float32 whose sum is the loss; decay (tensors,) float32; log_betas (2,) float64;
    writes factors (tensors,3) and scale () for `adamw`. `clip` may be infinite.

    Kept on the device from step to step: rates (steps,) float32, the last for all steps after; cursor () int64 the step, slot
    () int64 the step within its block of `slots`, bad () float32 1 once something was not finite, ring (rows,2) float32 of
    losses and norms.
    """
    run(
        settle_kernel, (1,),
        sums, losses, chunks.steps, decay, log_betas, rates, cursor, slot, bad, ring, factors, scale,
        chunks.chunks, losses.numel(), chunks.tensors, rates.numel() - 1, clip,
        SLOTS=slots, LOG=ring.shape[0], BN=triton.next_power_of_2(max(chunks.tensors, 16)), BLOCK=8192, num_warps=16,
    )  # fmt: skip


def adamw(
    chunks: Chunks, factors: Tensor, scale: Tensor, bad: Tensor, *, beta1: float, beta2: float, eps: float
) -> None:  # fmt: skip
    """The update itself."""
    run(
        adamw_kernel, (chunks.chunks,),
        chunks.table, factors, scale, bad, beta1, 1 - beta1, beta2, 1 - beta2, eps, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
