"""Lightning at the edge: a module that takes segments of our own steps, and the trainer that drives it.

Lightning starts the devices, places the model, calls the callbacks and feeds the loggers. Its optimiser wrapper and loops
are bypassed: they would cost more than a small step, and our own counter drives schedule, stopping and checkpoints.
"""

import itertools
import logging
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from torch.utils.data import DataLoader, IterableDataset

from mnemolab.models.backbone import Backbone
from mnemolab.trainers.pace import Pace
from mnemolab.trainers.state import TrainState
from mnemolab.trainers.steps import Steps

__all__ = ["RunModule", "fit"]


class _Endless(IterableDataset):
    """Counts, for a loop that wants batches: the data are made inside the step."""

    def __iter__(self) -> Iterator[int]:
        return itertools.count()


class RunModule(lightning.LightningModule):
    """The model, its stepper and the state of the run. One `training_step` is a segment of several optimiser steps."""

    def __init__(self, model: Backbone, make_steps: Callable[["RunModule"], Steps], state: TrainState, pace: Pace):
        super().__init__()
        self.automatic_optimization = False
        self.model, self.state, self.pace = model, state, pace
        self._make_steps = make_steps
        self._steps: Steps | None = None

    @property
    def steps(self) -> Steps:
        if self._steps is None:
            self._steps = self._make_steps(self)
        return self._steps

    def drop_steps(self) -> None:
        """Let go of the stepper, its optimiser and its graphs."""
        self._steps = None

    def configure_optimizers(self) -> None:
        """None: the stepper owns the optimiser."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        count = self.pace.next(self.state.step)
        self.steps.advance(count)
        self.state.take(self.steps.drain(), self.pace.done(count))


def fit(
    module: lightning.LightningModule,
    device: torch.device,
    callbacks: Sequence[Callback],
    loggers: Iterable[Logger] = (),
    devices: int = 1,
) -> None:
    """Run `module` until a callback says stop. More than one device: this process is one rank of Lightning's DDP."""
    chosen: Any = devices if device.index is None or devices > 1 else [device.index]
    with _quiet():
        trainer = lightning.Trainer(
            accelerator="gpu" if device.type == "cuda" else "cpu",
            devices=chosen,
            strategy="ddp" if devices > 1 else "auto",
            max_epochs=1,
            logger=list(loggers) or False,
            callbacks=[_OwnSignals(), *callbacks],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        )
        trainer.fit(module, DataLoader(_Endless(), batch_size=None))


class _OwnSignals(Callback):
    """Keeps the caller's handler of SIGTERM while Lightning trains.

    Lightning puts its own beside it, which leaves the loop between two of our callbacks, before the run is saved.
    """

    def __init__(self) -> None:
        self.handler = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if threading.current_thread() is threading.main_thread() and self.handler is not None:
            signal.signal(signal.SIGTERM, self.handler)


@contextmanager
def _quiet() -> Iterator[None]:
    """Lightning's notes on hardware and its tips stay out of the output of a sweep of small runs."""
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*LeafSpec.*")
            warnings.filterwarnings("ignore", message=".*configure_optimizers.*")
            warnings.filterwarnings("ignore", message=".*does not have many workers.*")
            warnings.filterwarnings("ignore", message=".*GPU available but not used.*")
            yield
    finally:
        log.setLevel(level)
