"""What follows the backward pass of a graph step: the norm, clipping, the guard, the rate, AdamW, the log, the counters.

Two forms of the same: torch's operations, some forty launches; and three Triton kernels over all tensors at once.
"""

import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import AdamW

from mnemolab.trainers.narrow import NarrowWeights

__all__ = ["Board", "FusedUpdate", "PlainUpdate", "make_update"]


class Board(NamedTuple):
    """What steps keep on the device: the rate of every step (steps,) float32; `cursor` () int64, the step; `slot` () int64, its
    place in its block of examples; `bad` () float32, 1 once loss or norm was not finite; `ring` (rows,2) float32, their log."""

    rates: Tensor
    cursor: Tensor
    slot: Tensor
    bad: Tensor
    ring: Tensor


class PlainUpdate:
    """Called with losses (R,), whose sum is the step's loss, when gradients are made. `clip` 0 clips nothing."""

    def __init__(self, optimiser: AdamW, board: Board, narrow: NarrowWeights | None, clip: float, block: int):
        self.optimiser, self.board, self.narrow = optimiser, board, narrow
        self.clip, self.block = clip if clip > 0 else math.inf, block
        self.parameters: list[Tensor] = [p for group in optimiser.param_groups for p in group["params"]]

    def ready(self) -> None:
        """Between the capture of a step and its first replay."""

    def __call__(self, losses: Tensor) -> None:
        own = self.board
        if self.narrow is not None:
            self.narrow.hand_on()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.clip, foreach=True)
        row = torch.stack((losses.sum().float(), norm.detach().float()))
        own.bad.copy_(torch.maximum(own.bad, 1.0 - torch.isfinite(row).all().float()))
        self.optimiser.found_inf = own.bad  # pyright: ignore[reportAttributeAccessIssue]  (the fused kernel asks for it)
        rate = own.rates.index_select(0, own.cursor.view(1))[0]
        for group in self.optimiser.param_groups:
            group["lr"].copy_(rate)
        self.optimiser.step()
        own.ring.index_copy_(0, (own.cursor % own.ring.shape[0]).view(1), row[None])
        own.cursor.add_(1)
        own.slot.copy_(own.cursor % self.block)


class FusedUpdate(PlainUpdate):
    """The same on AdamW's own state, in three launches. Gradients of cast matrices are taken as they are, and the casts of the
    next step are written with the matrices.

    While a graph is captured the addresses of its gradients are only noted; `ready` brings them to the device.
    """

    def __init__(self, optimiser: AdamW, board: Board, narrow: NarrowWeights | None, clip: float, block: int):
        from mnemolab.kernels.triton.adamw import Chunks

        super().__init__(optimiser, board, narrow, clip, block)
        device = board.cursor.device
        first = optimiser.param_groups[0]
        (self.beta1, self.beta2), self.eps = first["betas"], first["eps"]
        decay = [group["weight_decay"] for group in optimiser.param_groups for _ in group["params"]]
        self._decay = torch.tensor(decay, dtype=torch.float32, device=device)
        log_betas = [math.log(beta) if beta > 0 else -math.inf for beta in (self.beta1, self.beta2)]
        self._log_betas = torch.tensor(log_betas, dtype=torch.float64, device=device)
        self._chunks = Chunks([p.numel() for p in self.parameters], device)
        self._sums = torch.zeros(self._chunks.chunks, device=device)
        self._factors = torch.zeros(len(decay), 3, device=device)
        self._scale = torch.ones((), device=device)
        self._kept: Sequence[Any] = ()  # the tensors that the table of addresses speaks of
        self._noted: Tensor | None = None
        if narrow is not None:
            narrow.kept = True

    def ready(self) -> None:
        if self._noted is not None:
            self._chunks.point(self._noted)
            self._noted = None

    def __call__(self, losses: Tensor) -> None:
        from mnemolab.kernels.triton.adamw import adamw, settle, squares

        chunks, factors, scale = self._chunks, self._factors, self._scale
        self._kept = [self._taken(p) for p in self.parameters]
        noted = chunks.noted(self._kept)
        if noted.device != self._sums.device and torch.cuda.is_current_stream_capturing():
            self._noted = noted  # a copy from the host would be captured too, and read what lies there later
        else:
            chunks.point(noted)
        squares(chunks, self._sums)
        settle(
            chunks, self._sums, losses.float(), self._decay, self._log_betas, factors, scale, *self.board,
            clip=self.clip, slots=self.block,
        )  # fmt: skip
        adamw(chunks, factors, scale, self.board.bad, beta1=self.beta1, beta2=self.beta2, eps=self.eps)

    def _taken(self, parameter: Tensor) -> Any:
        from mnemolab.kernels.triton.adamw import Taken

        gradient, copy = parameter.grad, None
        if self.narrow is not None:
            copy = self.narrow.copy_of(parameter)
            if copy is not None and copy.grad is not None:
                gradient = copy.grad
        if gradient is None:
            return None
        if not gradient.is_contiguous() or gradient.data_ptr() % 16:
            gradient = gradient.clone(memory_format=torch.contiguous_format)
        state = self.optimiser.state[parameter]
        if not state:  # as AdamW makes it
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter, requires_grad=False)
            state["exp_avg_sq"] = torch.zeros_like(parameter, requires_grad=False)
        return Taken(parameter, gradient, state["exp_avg"], state["exp_avg_sq"], state["step"], copy)


def make_update(
    optimiser: AdamW, board: Board, narrow: NarrowWeights | None, clip: float, block: int
) -> PlainUpdate:  # fmt: skip
    """The fused form where its kernels take these parameters, else the plain one."""
    kind = FusedUpdate if _fusable(optimiser, board.cursor.device) else PlainUpdate
    return kind(optimiser, board, narrow, clip, block)


def _fusable(optimiser: AdamW, device: torch.device) -> bool:
    """Whether Triton runs where the parameters are, and they are float32, dense, aligned, and of one set of betas."""
    if device.type != "cuda" or find_spec("triton") is None or device.index != torch.cuda.current_device():
        return False
    groups = optimiser.param_groups
    parameters: list[Tensor] = [p for group in groups for p in group["params"]]
    alike = all(group["betas"] == groups[0]["betas"] and group["eps"] == groups[0]["eps"] for group in groups)
    plain = not any(group["amsgrad"] or group["maximize"] for group in groups)
    fit = (
        p.device == device and p.dtype == torch.float32 and p.is_contiguous() and not p.data_ptr() % 16
        for p in parameters
    )
    return alike and plain and all(fit)
