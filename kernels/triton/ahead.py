"""Kernels compiled side by side before they are asked for: a first training step waits for compilers, not for the GPU.

The compilers run outside Python's lock (LLVM in the process, ptxas and Triton 3.6's C compiler beside it), so threads
overlap. What they make lies in Triton's own cache, where the launch that needs it finds it.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

__all__ = ["Background", "Plan", "background", "outline"]


class Background:
    """Compilations in threads that end with their job."""

    def __init__(self) -> None:
        self._jobs: dict[Any, list[Future]] = {}

    def begin(self, jobs: list[tuple[Any, Callable[[], Any]]]) -> None:
        """Start every (kernel, what compiles it)."""
        threads = ThreadPoolExecutor(max_workers=len(jobs), thread_name_prefix="compile")
        for kernel, work in jobs:
            self._jobs.setdefault(kernel, []).append(threads.submit(work))
        threads.shutdown(wait=False)

    def wait(self, kernel: Any) -> None:
        """Until nothing compiles `kernel` any more. A failure is left alone: it comes again to whoever needs the kernel."""
        for job in self._jobs.pop(kernel, ()):
            job.exception()


@lru_cache(maxsize=1)
def background() -> Background:
    """The one of this process, as Triton's cache of kernels is."""
    return Background()


class Plan(dict[Any, Any]):
    """Stands in a launch where compiled kernels are kept, and notes the launches instead of running them."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[tuple] = []

    def begin(self, compiles: Callable[..., Any], device: int) -> None:
        """Start `compiles(kernel, programs, args, constants, warps, stages)` for every launch noted; `device` is the CUDA
        device's number."""
        from triton.runtime import cache
        from triton.runtime.driver import driver

        # what every compilation begins with and keeps: done here once, not by each thread
        driver.active.get_current_device()
        cache.triton_key()

        def work(launch: tuple) -> None:
            with torch.cuda.device(device):
                compiled = compiles(*launch)
                # Triton 3.6 has a C compiler build every signature's launcher; loading is left to the first launch
                driver.active.launcher_cls(compiled.src, compiled.metadata)

        background().begin([(launch[0], partial(work, launch)) for launch in self.launches])


def outline(x: Tensor) -> Tensor:
    """A tensor of x's shape, strides and dtype without memory; to the compiler an aligned one."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
