"""A function captured as a CUDA graph, for the tests of what must be capturable."""

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["captured"]


def captured(step: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """The graph of `step`, run once before on another stream so that its kernels are compiled, and what a replay writes.

    `step` makes its own leaves: those of another stream cannot be captured.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = step()
    return graph, held
