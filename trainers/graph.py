"""Whole optimiser steps as CUDA graphs: the host replays recorded work and reads the log back rarely.

Two graphs: one makes the examples of a block of steps, one takes a step with its slice of the block. Making a block at
once keeps the many small integer kernels of a task off the step's clock.
"""

import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.optim import AdamW

from mnemolab.models.backbone import Backbone
from mnemolab.tasks.base import Task
from mnemolab.trainers.block import Block
from mnemolab.trainers.config import RunConfig
from mnemolab.trainers.narrow import NarrowWeights
from mnemolab.trainers.query_loss import query_loss
from mnemolab.trainers.rehearse import rehearse_step
from mnemolab.trainers.steps import LOG_STEPS, EagerSteps, Steps
from mnemolab.trainers.stops import NotFinite
from mnemolab.trainers.update import Board, FusedUpdate, make_update

__all__ = ["GraphSteps", "best_steps"]

WARM_STEPS = 3  # taken eagerly first: kernels compile and the optimiser makes its moments
BLOCK_TOKENS = 1 << 20  # tokens made at once
BLOCK_STEPS = 32

log = logging.getLogger(__name__)


def best_steps(
    model: Backbone, optimiser: AdamW, task: Task, config: RunConfig, device: torch.device, *, world: int, **rest: Any
) -> Steps:
    """Graph steps where they are possible: one CUDA device. Else eager ones; `how` says why."""
    if device.type == "cuda" and world == 1:
        return GraphSteps(model, optimiser, task, config, device, **rest)
    steps = EagerSteps(model, optimiser, task, config, device, world=world, **rest)
    steps.how = "eager" if world == 1 else f"eager: {world} devices share the run"
    return steps


class GraphSteps(Steps):
    """Steps on one CUDA device. `how` says what is replayed, and why not more when something cannot be captured.

    Loss and gradient norm go to a ring of LOG_STEPS rows on the device; `drain` must be called at least that often.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        feed, device = self.feed, self.device
        length: int = feed.task.length  # type: ignore[attr-defined]
        self.block = max(1, min(BLOCK_STEPS, BLOCK_TOKENS // (feed.batch_size * length)))
        self.how = "CUDA graph"
        self._on_host = feed.task.split_by_content
        if self._on_host:
            self.how += "; making examples eagerly: so few are possible that their content decides which are drawn"
        self._at_block = torch.zeros((), dtype=torch.int64, device=device)
        self._examples = Block(feed.task, feed.batch_size, self.block, feed.seed, self.model.embedding.weight)
        self._cast = NarrowWeights(self.model) if self.config.precision == "bf16" else None
        rates = torch.tensor(self.rates, dtype=torch.float32, device=device)
        zero = torch.zeros((), dtype=torch.int64, device=device)
        ring, bad = torch.zeros(LOG_STEPS, 2, device=device), torch.zeros((), device=device)
        self._board = Board(rates, cursor=zero, slot=zero.clone(), bad=bad, ring=ring)
        self._update = make_update(self.optimiser, self._board, self._cast, self.config.optimiser.clip, self.block)
        self._held: int | None = None  # the block that lies in _examples
        self._drained = 0
        self._warm = 0
        self._side: torch.cuda.Stream | None = None
        self._replay_step: Callable[[], None] | None = None
        self._replay_block: Callable[[], None] | None = None

    def advance(self, count: int) -> None:
        if self._warm == 0:
            self._board.cursor.fill_(self.step)
            self._board.slot.fill_(self.step % self.block)
            self._drained = self.step
            if isinstance(self._update, FusedUpdate):  # the plain one would change the parameters
                rehearse_step(self.model, self._step_body, self.device)
        if self._cast is not None:
            self._cast.refresh()  # whatever changed the matrices since
        for _ in range(count):
            self._make_block(self.step // self.block)
            self._take_step()
            self.step += 1

    def drain(self) -> list[tuple[int, float, float]]:
        first, self._drained = self._drained, self.step
        if self.step - first > LOG_STEPS:
            raise RuntimeError(f"{self.step - first} steps since the last drain; the log holds {LOG_STEPS}")
        rows = self._board.ring.cpu().tolist()
        found = [(step + 1, *rows[step % LOG_STEPS]) for step in range(first, self.step)]
        for step, loss, norm in found:
            if not (abs(loss) < float("inf") and abs(norm) < float("inf")):
                raise NotFinite(step, loss, norm)
        return found

    def _take_step(self) -> None:
        if self._replay_step is not None:
            self._replay_step()
        elif self._warm < WARM_STEPS:
            self._warm_up(self._step_body)
            self._warm += 1
        else:
            self._replay_step = self._captured(self._step_body, "steps")
            self._update.ready()
            self._replay_step()

    def _make_block(self, number: int) -> None:
        if number == self._held:
            return
        self._at_block.fill_(number)
        if self._replay_block is not None:
            self._replay_block()
        elif self._on_host or self._held is None:  # the first block also warms the task up
            self._block_body()
        else:
            self._replay_block = self._captured(self._block_body, "making examples")
            self._replay_block()
        self._held = number

    def _warm_up(self, body: Callable[[], None]) -> None:
        """Run `body` on another stream: what is captured later must not depend on the default stream's past."""
        # one for all: memory that a stream has freed serves that stream alone
        self._side = side = self._side or torch.cuda.Stream(self.device)
        here = torch.cuda.current_stream(self.device)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            body()
        here.wait_stream(side)

    def _captured(self, body: Callable[[], None], what: str) -> Callable[[], None]:
        """A replay of `body`, or `body` itself where it cannot be captured."""
        graph = torch.cuda.CUDAGraph()
        self.optimiser.zero_grad(set_to_none=True)  # gradients of the graph live in the graph's own memory
        torch.cuda.synchronize(self.device)
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                body()
        except Exception as error:  # noqa: BLE001  (whatever forbids capture, running eagerly is right)
            torch.cuda.synchronize(self.device)
            _release_generator(self.device)
            self.optimiser.zero_grad(set_to_none=True)
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            self.how += f"; {what} eagerly: {reason}"
            log.warning("%s cannot be captured as a CUDA graph and run eagerly: %s", what, reason)
            return body
        return graph.replay

    def _block_body(self) -> None:
        self._examples.make(self._at_block)

    def _step_body(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        examples = self._examples.take(self._board.slot)
        autocast = torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.config.precision == "bf16")
        with autocast, self._cast or nullcontext():
            loss = query_loss(self.model, *examples, head=self._cast and self._cast.head)
        loss.backward()
        self._update(loss.losses)


def _release_generator(device: torch.device) -> None:
    """After a capture that failed PyTorch's default generator of `device` still counts as capturing, and refuses to draw
    ("Offset increment outside graph capture"): give it a copy of its state, which does not. Seed and offset stay."""
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    generator.graphsafe_set_state(generator.clone_state())
