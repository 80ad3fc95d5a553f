"""The training half of a run: put model, optimiser, stepper and callbacks together, and hand them to Lightning."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mnemolab.errors import RunFailed
from mnemolab.models.backbone import Backbone
from mnemolab.trainers import folder as places
from mnemolab.trainers.callbacks import Metrics, Resume, Watch
from mnemolab.trainers.checkpoint import put_aside, read_resume, save_bytes
from mnemolab.trainers.config import RunConfig
from mnemolab.trainers.ddp import fit_ranks
from mnemolab.trainers.folder import keep_metrics
from mnemolab.trainers.graph import best_steps
from mnemolab.trainers.module import RunModule, fit
from mnemolab.trainers.pace import Pace
from mnemolab.trainers.state import TrainState
from mnemolab.trainers.steps import Steps, check_moments, make_optimiser, resume_optimiser
from mnemolab.trainers.stops import NotFinite, NotFiniteRun

__all__ = ["Fitted", "fit_run"]

TRAIN_ROWS = 200  # rows of training metrics in a run, at most; never more often than every 10 steps


@dataclass(frozen=True)
class Fitted:
    """A trained model, where its run stands, and how its steps were taken."""

    model: Backbone
    state: TrainState
    how: str


def fit_run(
    config: RunConfig,
    folder: Path,
    device: torch.device,
    loggers: list[Any],
    devices: int = 1,
    tell: Callable[[TrainState], None] | None = None,
    stop: Callable[[], bool] | None = None,
    rank: int | None = None,
    plugins: Sequence[str] = (),
) -> Fitted:
    """Train until the budget is used or the run stops itself. Raises NotFiniteRun, Stopped.

    With several devices and no `rank`, the ranks are started and waited for; with a `rank`, this process is one of them.
    """
    if devices > 1 and rank is None:
        before = read_resume(folder, config.to_dict())
        how = fit_ranks(config, folder, device.type, devices, loggers, tell, stop, plugins)
        done = fit_run(config, folder, device, loggers)  # the folder holds the end of the run
        done.state.resumed -= 1  # which was read back, not gone on with
        done.state.wall = before["state"].wall if before else 0.0
        return replace(done, how=how)
    began = time.monotonic()
    task, model = config.make_task(), config.make_model()
    saved = read_resume(folder, config.to_dict())
    state = TrainState()
    if saved is not None:
        try:
            model.load_state_dict(saved["state_dict"])
            check_moments(model, saved["optimiser"])
            state = saved["state"]
            state.resumed += 1
        except (RuntimeError, KeyError, TypeError, AttributeError, ValueError) as error:
            if not rank:
                put_aside(folder / places.RESUME, error)
            saved, model = None, config.make_model()  # some of its parameters may have been written
    if not rank:
        keep_metrics(folder, state.step)
    if state.stopped or state.step >= config.budget.steps:  # killed between its last step and result.json
        return Fitted(model.to(device), state, "eager")
    model.to(device).train()
    if device.type == "cuda":  # a warm worker has other runs behind it
        torch.cuda.reset_peak_memory_stats(device)
    log_every = max(10, config.budget.steps // TRAIN_ROWS)
    pace = Pace(config.budget.steps, config.budget.evaluate_every, log_every, fixed=devices > 1)

    def make_steps(module: RunModule) -> Steps:
        steps = _choose(module, config, task, device)
        if saved is not None:
            resume_optimiser(steps.optimiser, saved["optimiser"])
            steps.step = state.step
        return steps

    module = RunModule(model, make_steps, state, pace)

    def save(own: RunModule) -> None:
        save_bytes(
            folder / places.RESUME,
            {
                "state_dict": own.model.state_dict(),
                "optimiser": own.steps.optimiser.state_dict(),
                "state": {**own.state.to_dict(), "wall": own.state.wall + time.monotonic() - began},
                "config": config.to_dict(),
            },
        )

    callbacks: list[Any] = [Metrics(folder, config, task, log_every), Resume(save, stop)]
    if tell is not None:
        callbacks.append(Watch(tell))
    try:
        fit(module, device, callbacks, loggers, devices)
        how = module.steps.how
    except NotFinite as error:
        raise _explain(error, config, model) from error
    finally:
        # Lightning's objects hold each other, and with them the graphs, until Python's collector comes by. What graphs that are
        # gone had is free from the next capture on, before which torch empties its cache
        module.drop_steps()
    return Fitted(model.to(device), module.state, how)


def _choose(module: RunModule, config: RunConfig, task: Any, device: torch.device) -> Steps:
    optimiser = make_optimiser(module.model, config, device)
    trainer = module.trainer
    world, rank = trainer.world_size, trainer.global_rank
    backward = module.manual_backward if world > 1 else torch.Tensor.backward
    return best_steps(module.model, optimiser, task, config, device, rank=rank, world=world, backward=backward)


def _explain(error: NotFinite, config: RunConfig, model: Backbone) -> RunFailed:
    size = config.budget.batch_size
    norms = {name: float(p.detach().norm()) for name, p in model.named_parameters()}
    details = {
        "step": error.step,
        "loss": str(error.loss),
        "grad_norm": str(error.grad_norm),
        "batch_indices": [(error.step - 1) * size, error.step * size],
        "parameter_norms": {name: norm if math.isfinite(norm) else str(norm) for name, norm in norms.items()},
    }
    return NotFiniteRun(f"{error}; lower learning_rate or clip", details)
