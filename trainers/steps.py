"""Optimiser steps: forward at scored positions, backward, clipping, fused AdamW; one at a time, or as a CUDA graph.

Both kinds keep their own step counter, write each step's loss and gradient norm to a log on the device, and are read back
rarely. A step whose loss or gradient is not finite changes no parameter and is reported by `drain`.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mnemolab.models.backbone import Backbone
from mnemolab.tasks.base import Task
from mnemolab.trainers.config import RunConfig
from mnemolab.trainers.data import Feed
from mnemolab.trainers.schedule import learning_rates
from mnemolab.trainers.stops import NotFinite

__all__ = ["EagerSteps", "Steps", "check_moments", "make_optimiser", "resume_optimiser"]

# Longest stretch of steps between two `drain` calls; the size of the log on the device.
LOG_STEPS = 4096


def check_moments(model: Backbone, saved: dict[str, Any]) -> None:
    """Raise ValueError or KeyError for an optimiser state that is not one of this model's parameters."""
    count = sum(len(group["params"]) for group in saved["param_groups"])
    shapes = Counter(tuple(p.shape) for p in model.parameters() if p.requires_grad)
    held = Counter(tuple(entry["exp_avg"].shape) for entry in saved["state"].values())
    # a parameter that has had no gradient has no moments
    if count != shapes.total() or not held or held - shapes:
        raise ValueError(f"the optimiser's moments are of {held.total()} parameters, the model has {shapes.total()}")


def make_optimiser(model: Backbone, config: RunConfig, device: torch.device) -> torch.optim.AdamW:
    """Fused AdamW over the model's parameter groups; on CUDA the rate is a tensor, so that a graph can change it."""
    own = config.optimiser
    cuda = device.type == "cuda"
    return torch.optim.AdamW(
        model.parameter_groups(own.weight_decay),
        lr=torch.tensor(own.learning_rate, device=device) if cuda else own.learning_rate,
        betas=(own.beta1, own.beta2),
        fused=True,
        capturable=cuda,
    )


def resume_optimiser(optimiser: torch.optim.AdamW, saved: dict[str, Any]) -> None:
    """Take moments and counts from a checkpoint. How the rate is held stays as this device wants it: a run of device `auto`
    may have begun on another, and a plain number cannot be changed by a graph."""
    own = [{name: group[name] for name in ("lr", "capturable")} for group in optimiser.param_groups]
    optimiser.load_state_dict(saved)
    for group, kept in zip(optimiser.param_groups, own, strict=True):
        group.update(kept)


class Steps:
    """What eager and graph stepping share. `advance(n)` takes n steps; `drain()` reads back what they logged."""

    how = "eager"

    def __init__(
        self,
        model: Backbone,
        optimiser: torch.optim.AdamW,
        task: Task,
        config: RunConfig,
        device: torch.device,
        *,
        rank: int = 0,
        world: int = 1,
        backward: Callable[[Tensor], Any] = Tensor.backward,
    ):
        self.model, self.optimiser, self.config, self.device = model, optimiser, config, device
        self.parameters = [p for group in optimiser.param_groups for p in group["params"]]
        self.feed = Feed(task, config.budget.batch_size, config.seed, device, rank, world)
        self.rates = learning_rates(config.optimiser, config.budget.steps)
        self.backward = backward
        self.step = 0

    def advance(self, count: int) -> None:
        raise NotImplementedError

    def drain(self) -> list[tuple[int, float, float]]:
        """(step, loss, gradient norm) of every step since the last call; steps count from 1. Raises NotFinite."""
        raise NotImplementedError

    def _loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        # autocast is entered anew each step: its cache of cast weights must not outlive an update
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.config.precision == "bf16"):
            return self.model.loss(inputs, targets)

    def _clip(self) -> Tensor:
        clip = self.config.optimiser.clip
        return torch.nn.utils.clip_grad_norm_(self.parameters, clip if clip > 0 else float("inf"), foreach=True)


class EagerSteps(Steps):
    """One step after the other, on any device."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._log: list[tuple[int, Tensor, Tensor]] = []

    def advance(self, count: int) -> None:
        for _ in range(count):
            self.optimiser.zero_grad(set_to_none=True)
            loss = self._loss(*self.feed(self.step))
            self.backward(loss)
            norm = self._clip()
            self._log.append((self.step + 1, loss.detach(), norm.detach()))
            if self.device.type == "cpu":
                self._check(self._log[-1])
                for group in self.optimiser.param_groups:
                    group["lr"] = self.rates[self.step]
            else:
                for group in self.optimiser.param_groups:
                    group["lr"].fill_(self.rates[self.step])
                # the fused kernel changes nothing while this is 1, and the next `drain` raises
                bad = (~torch.isfinite(loss.detach() + norm)).float()
                held = getattr(self.optimiser, "found_inf", None)
                self.optimiser.found_inf = bad if held is None else torch.maximum(held, bad)
            self.optimiser.step()
            self.step += 1

    def drain(self) -> list[tuple[int, float, float]]:
        rows = [self._check(entry) for entry in self._log]
        self._log.clear()
        return rows

    def _check(self, entry: tuple[int, Tensor, Tensor]) -> tuple[int, float, float]:
        step, loss, norm = entry[0], float(entry[1]), float(entry[2])
        if not math.isfinite(loss + norm):
            raise NotFinite(step, loss, norm)
        return step, loss, norm
