"""The learning rate of every step, known before the first one."""

import math

from mnemolab.trainers.config import Optimiser

__all__ = ["learning_rates"]


def learning_rates(optimiser: Optimiser, steps: int) -> list[float]:
    """The rate of steps 0 to `steps - 1`.

    Linear warm-up over the first `warmup * steps` steps, which ends at the peak; then cosine to `floor * peak`
    (Loshchilov and Hutter 2017), or the peak until the last `decay * steps` steps and a straight line to `floor * peak`
    (warmup-stable-decay, Hu et al. 2024), or the peak.
    """
    warm = math.ceil(optimiser.warmup * steps)
    fall = max(1, math.ceil(optimiser.decay * steps))

    def share(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        if optimiser.schedule == "cosine":
            done = (step - warm) / max(1, steps - warm)
            return optimiser.floor + (1 - optimiser.floor) * 0.5 * (1 + math.cos(math.pi * done))
        if optimiser.schedule == "wsd":
            left = min(1.0, (steps - step) / fall)
            return optimiser.floor + (1 - optimiser.floor) * left
        return 1.0

    return [optimiser.learning_rate * share(step) for step in range(steps)]
