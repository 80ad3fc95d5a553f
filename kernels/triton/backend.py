"""What `kernels/scan.py` asks of a backend: may it run these operands, and the scan and the step themselves.

Triton itself is imported when something runs, so that a machine without it can ask.
"""

from importlib.util import find_spec

import torch
from torch import Tensor

from mnemolab.kernels.operands import Operands, State
from mnemolab.kernels.triton.table import interpreted

__all__ = ["scan", "step", "supports"]

_INSTALLED = find_spec("triton") is not None


def supports(operands: Operands) -> str | None:
    """None when Triton can run them, else the reason in a few words."""
    if operands.device.type != "cuda" and not interpreted():
        return f"the tensors are on {operands.device.type}, and the Triton kernels need a CUDA device"
    x = operands
    given = (x.q, x.k, x.v, x.log_decay, x.erase, x.write, x.state0, x.norm0)
    if any(value is not None and value.dtype == torch.float64 for value in given):
        name = next(name for name, value in x.named().items() if value.dtype == torch.float64)
        return f"{name} is float64, and the Triton kernels compute in float32"
    if not _INSTALLED:
        return "Triton is not installed"
    return None


def scan(operands: Operands, chunk_size: int | None = None) -> tuple[Tensor, State]:
    from mnemolab.kernels.triton import scan as fused

    return fused.scan(operands, chunk_size)


def step(operands: Operands) -> tuple[Tensor, State]:
    from mnemolab.kernels.triton import step as fused

    return fused.step(operands)
