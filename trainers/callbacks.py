"""What happens between segments of steps: rows of metrics, looks at the validation stream, checkpoints, progress, stops."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback

from mnemolab.files import append_line
from mnemolab.tasks.base import Task
from mnemolab.trainers.config import RunConfig
from mnemolab.trainers.data import sample_range
from mnemolab.trainers.folder import METRICS
from mnemolab.trainers.module import RunModule
from mnemolab.trainers.scoring import evaluate
from mnemolab.trainers.stops import NotFinite, Stopped

__all__ = ["Metrics", "Resume", "Watch"]

RESUME_SECONDS = 5.0
PROGRESS_SECONDS = 0.2


class Metrics(Callback):
    """Train rows every `log_every` steps, validation rows every `evaluate_every`; decides when a run has seen enough."""

    def __init__(self, folder: Any, config: RunConfig, task: Task, log_every: int):
        self.folder, self.config, self.task, self.log_every = folder, config, task, log_every
        self._validation = self._chance = None
        self._norm = 0.0

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        module: RunModule = pl_module
        state, budget = module.state, self.config.budget
        last = state.step >= budget.steps
        if last or state.step % self.log_every == 0 or state.step % budget.evaluate_every == 0:
            count = max(1, len(state.losses))
            row = {"loss": _mean(trainer, sum(state.losses) / count), "grad_norm": sum(state.norms) / count}
            row["learning_rate"] = module.steps.rates[state.step - 1]
            self._write(trainer, state.step, "train", row)
            self._norm = row["grad_norm"]
            state.losses.clear()
            state.norms.clear()
        if last or state.step % budget.evaluate_every == 0:
            self._look(trainer, module)
        if _agreed(trainer, last or state.stopped is not None):
            trainer.should_stop = True

    def _look(self, trainer: Trainer, module: RunModule) -> None:
        state, budget = module.state, self.config.budget
        if self._validation is None:
            batch = sample_range(
                self.task, 0, budget.validation_examples, "validation", self.config.seed, module.steps.device
            )
            used = batch.queries["position"] >= 0
            self._validation, self._chance = batch, self.task.chance(batch)[used].mean().item()
        assert self._chance is not None
        found = evaluate(module.model, self._validation, self.task, self.config.precision)
        if not math.isfinite(found["loss"]):  # no step may follow the last one, which would have met it
            raise NotFinite(state.step, found["loss"], self._norm, validation=True)
        self._write(trainer, state.step, "validation", found)
        state.validation = found
        state.best_accuracy = max(state.best_accuracy, found["accuracy"])
        if found["accuracy"] >= budget.solved_at and state.steps_to_solved is None:
            state.steps_to_solved = state.step
        if budget.stop_solved and state.steps_to_solved is not None:
            state.stopped = "solved"
        elif 0 < budget.stop_hopeless <= state.step and state.best_accuracy < self._chance + budget.hope:
            state.stopped = "hopeless"

    def _write(self, trainer: Trainer, step: int, split: str, row: dict[str, float]) -> None:
        if not trainer.is_global_zero:
            return
        append_line(self.folder / METRICS, {"step": step, "split": split, **row})
        for logger in trainer.loggers:
            logger.log_metrics({f"{split}/{name}": value for name, value in row.items()}, step)


def _agreed(trainer: Trainer, wish: bool) -> bool:
    """Whether any rank wishes it: ranks must stop after the same segment, or they wait for each other for ever."""
    return trainer.strategy.reduce_boolean_decision(wish, all=False) if trainer.world_size > 1 else wish


def _mean(trainer: Trainer, value: float) -> float:
    """Over ranks: each sees the loss of its own share of the batch."""
    if trainer.world_size == 1:
        return value
    shared = torch.tensor(value, dtype=torch.float64, device=trainer.strategy.root_device)
    return float(trainer.strategy.reduce(shared, reduce_op="mean"))


class Resume(Callback):
    """Save every few seconds of training, at the end, and when asked to stop. Runs after `Metrics`: rows come first."""

    def __init__(self, save: Callable[[RunModule], None], stop: Callable[[], bool] | None = None):
        self.save, self.stop = save, stop or (lambda: False)
        self._last = time.monotonic()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        stop = _agreed(trainer, self.stop())
        if stop or trainer.should_stop or time.monotonic() - self._last >= RESUME_SECONDS:
            if trainer.is_global_zero:
                self.save(pl_module)
            self._last = time.monotonic()
        if stop and not trainer.should_stop:
            raise Stopped


class Watch(Callback):
    """Calls `tell(state)` a few times a second, for progress bars and sweeps."""

    def __init__(self, tell: Callable[[Any], None]):
        self.tell = tell
        self._last = 0.0

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        now = time.monotonic()
        if trainer.is_global_zero and (trainer.should_stop or now - self._last >= PROGRESS_SECONDS):
            self._last = now
            self.tell(pl_module.state)
