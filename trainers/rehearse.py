"""A training step's kernels compiled side by side before the first step, which would compile one after the other."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mnemolab.kernels.triton.ahead import rehearse

__all__ = ["rehearse_step"]

# whose modules compute and do nothing else
OURS = ("mnemolab", "torch")

log = logging.getLogger(__name__)


def rehearse_step(model: nn.Module, step: Callable[[], Any], device: torch.device) -> None:
    """Have all that `step` launches compiled in the background, by running it without our own kernels.

    `step` runs a forward and a backward pass of `model` and changes nothing but gradients, which the next step clears, and
    the model's buffers, which are put back, as are the random numbers. What it computes has no meaning: so a model with
    modules of others or with hooks, which might do something with it, is not rehearsed. A failure is left to the real step.
    """
    if device.type != "cuda" or not all(map(_computes_only, model.modules())):
        return
    buffers = [(held, held.clone()) for held in model.buffers()]
    numbers = torch.cuda.get_rng_state(device)
    try:
        rehearse(step)
    except Exception as error:  # noqa: BLE001  (it comes again, to somebody who handles it)
        log.debug("the rehearsal of a training step broke off: %s", error)
    finally:
        torch.cuda.set_rng_state(numbers, device)
        with torch.no_grad():
            for held, before in buffers:
                held.copy_(before)


def _computes_only(module: nn.Module) -> bool:
    hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return not hooked and type(module).__module__.split(".")[0] in OURS
