"""Why a run stopped before its end."""

from typing import Any

from mnemolab.errors import RunFailed

__all__ = ["Busy", "NotFinite", "NotFiniteRun", "Stopped"]


class Busy(RunFailed):
    """Another process is at this run right now."""


class Stopped(Exception):
    """Somebody asked the run to stop; its `resume.ckpt` is written and it can go on later."""


class NotFinite(Exception):
    """Loss or gradient of one step, or the `validation` loss after it, is NaN or infinite. Steps count from 1."""

    def __init__(self, step: int, loss: float, grad_norm: float, *, validation: bool = False):
        text = f"validation loss {loss} after it" if validation else f"loss {loss}, gradient norm {grad_norm}"
        super().__init__(f"not finite at step {step}: {text}")
        self.validation = validation
        self.step, self.loss, self.grad_norm = step, loss, grad_norm


class NotFiniteRun(RunFailed):
    """The error of a run that met NotFinite. `details`: the step, its batch indices and the norms of all parameters."""

    def __init__(self, message: str, details: dict[str, Any]):
        super().__init__(message)
        self.details = details
