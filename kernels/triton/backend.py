"""What `kernels/scan.py` asks of a backend: may it run these operands, and the scan and the step themselves."""

import torch

from mnemolab.kernels.operands import Operands
from mnemolab.kernels.triton.scan import scan
from mnemolab.kernels.triton.table import interpreted

__all__ = ["scan", "supports"]


def supports(operands: Operands) -> str | None:
    """None when Triton can run them, else the reason in a few words."""
    for name, value in operands.named().items():
        if value.dtype == torch.float64:
            return f"{name} is float64, and the Triton kernels compute in float32"
    if operands.device.type != "cuda" and not interpreted():
        return f"the tensors are on {operands.device.type}, and the Triton kernels need a CUDA device"
    return None
