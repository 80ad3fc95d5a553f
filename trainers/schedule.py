"""The learning rate of every step, known before the first one."""

import math

import torch

from mnemolab.trainers.config import Optimiser

__all__ = ["learning_rates"]


def learning_rates(optimiser: Optimiser, steps: int) -> list[float]:
    """The rate of steps 0 to `steps - 1`, all computed at once: a million take some 50 ms.

    Linear warm-up over the first `warmup * steps` steps, which ends at the peak; then cosine to `floor * peak`
    (Loshchilov and Hutter 2017), or the peak until the last `decay * steps` steps and a straight line to `floor * peak`
    (warmup-stable-decay, Hu et al. 2024), or the peak.
    """
    warm = math.ceil(optimiser.warmup * steps)
    fall = max(1, math.ceil(optimiser.decay * steps))
    step = torch.arange(steps, dtype=torch.float64)
    if optimiser.schedule == "cosine":
        left = 0.5 * (1 + torch.cos(math.pi * (step - warm) / max(1, steps - warm)))
    elif optimiser.schedule == "wsd":
        left = ((steps - step) / fall).clamp(max=1.0)
    else:
        left = torch.ones_like(step)
    share = left if optimiser.schedule == "constant" else optimiser.floor + (1 - optimiser.floor) * left
    share = torch.where(step < warm, (step + 1) / max(1, warm), share)
    return (optimiser.learning_rate * share).tolist()
