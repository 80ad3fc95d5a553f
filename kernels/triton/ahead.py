"""Kernels compiled side by side before they are asked for: a first training step waits for compilers, not for the GPU.

The compilers run outside Python's lock (LLVM in the process, ptxas and Triton 3.6's C compiler beside it), so threads
overlap. What they make lies in Triton's own cache, where the launch that needs it finds it. Which kernels a step needs is
learnt from a rehearsal: the step runs, and its launches (`launch.py`) are noted and compiled in place of run.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from threading import Lock, get_ident
from typing import Any

import torch
from torch import Tensor

from mnemolab.kernels.triton.table import interpreted

__all__ = ["Background", "Outline", "Plan", "background", "begin", "outline", "rehearse", "specialised"]

THREADS = 16  # at most; and not more than there are processors


class Background:
    """Compilations in threads that end with their jobs. Each is begun once in a process: what failed comes again, and what
    did not is known to Triton."""

    def __init__(self) -> None:
        self.busy = False  # whether a launch has anything to ask here
        self._rehearsing: int | None = None  # the thread of the rehearsal
        self._threads: ThreadPoolExecutor | None = None  # of the rehearsal
        self._jobs: dict[Any, list[Future]] = {}  # not yet done, by kernel
        self._begun: set[Any] = set()
        self._lock = Lock()

    def begin(self, jobs: Iterable[tuple[Any, Any, Callable[[], Any]]]) -> None:
        """Start every (kernel, key, what compiles it) whose key is new."""
        with self._lock:
            new = {key: (kernel, work) for kernel, key, work in jobs if key not in self._begun}
            if not new:
                return
            self._begun |= new.keys()
            threads = self._threads or _threads(len(new))
            begun = [(kernel, threads.submit(work)) for kernel, work in new.values()]
            for kernel, job in begun:
                self._jobs.setdefault(kernel, []).append(job)
            self.busy = True
            if threads is not self._threads:
                threads.shutdown(wait=False)
        for kernel, job in begun:
            job.add_done_callback(partial(self._ended, kernel))

    def wait(self, kernel: Any) -> None:
        """Until nothing compiles `kernel` any more. A failure is left alone: it comes again to whoever needs the kernel."""
        with self._lock:
            jobs = list(self._jobs.get(kernel, ()))
        for job in jobs:
            with suppress(CancelledError):
                job.exception()

    def rehearses(self) -> bool:
        """Whether the calling thread is in a rehearsal, so that its launches are to be noted only."""
        return self._rehearsing == get_ident()

    def open(self) -> bool:
        """Begin a rehearsal on the calling thread; False when there is one."""
        with self._lock:
            if self._rehearsing is not None:
                return False
            self._rehearsing, self._threads, self.busy = get_ident(), _threads(THREADS), True
            return True

    def close(self, cancel: bool) -> None:
        """End the rehearsal; with `cancel` what waits for a thread is given up."""
        with self._lock:
            threads, self._threads, self._rehearsing = self._threads, None, None
            self.busy = bool(self._jobs)
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=cancel)

    def _ended(self, kernel: Any, job: Future) -> None:
        with self._lock:
            self._jobs[kernel].remove(job)
            if not self._jobs[kernel]:
                del self._jobs[kernel]
            self.busy = bool(self._jobs) or self._rehearsing is not None


def _threads(jobs: int) -> ThreadPoolExecutor:
    # two even on one processor: one of them often waits for a process
    most = max(2, min(THREADS, len(os.sched_getaffinity(0))))
    return ThreadPoolExecutor(max_workers=min(jobs, most), thread_name_prefix="compile")


@lru_cache(maxsize=1)
def background() -> Background:
    """The one of this process, as Triton's cache of kernels is."""
    return Background()


def rehearse(step: Callable[[], Any]) -> None:
    """Run `step` with every launch of this thread noted and compiled in the background instead of run.

    What our kernels would have written is left as it was allocated, so nothing that `step` computes has a meaning. Autograd
    stays on this thread within it; launches of other threads run. Nothing happens when another thread rehearses, or where
    Triton's interpreter runs, which compiles nothing.
    """
    jobs = background()
    if interpreted() or jobs.rehearses():
        return
    cancel = True
    try:  # before it opens: Ctrl-C may come in between
        if jobs.open():
            with torch.autograd.set_multithreading_enabled(False):
                step()
        cancel = False
    finally:
        if jobs.rehearses():
            jobs.close(cancel)


class Outline:
    """Stands for a tensor in a compilation, which asks for no more than this; holds no memory."""

    __slots__ = ("_address", "dtype")

    def __init__(self, x: Tensor):
        self.dtype, self._address = x.dtype, x.data_ptr() % 16

    def data_ptr(self) -> int:
        return self._address


def _outlined(x: Any) -> Any:
    if isinstance(x, tuple | list):
        return type(x)(map(_outlined, x))
    return Outline(x) if isinstance(x, Tensor) else x


def _kind(x: Any, plain: bool) -> Any:
    """All that Triton looks at in an argument; `plain` is one whose value it is told not to look at."""
    if isinstance(x, tuple | list):
        return tuple([_kind(part, plain) for part in x])
    if hasattr(x, "data_ptr"):
        return x.dtype, x.data_ptr() % 16 == 0
    if type(x) is int:
        return -(1 << 31) <= x < 1 << 31, not plain and x == 1, not plain and x % 16 == 0
    return type(x) if isinstance(x, float | bool) else x


def specialised(kernel: Any, args: tuple, options: dict[str, Any]) -> tuple:
    """A key that two launches of `kernel` on one device share exactly when one compilation serves both; `options` are
    constants and compiler options."""
    kinds = [_kind(x, p.do_not_specialize) for x, p in zip(args, kernel.params, strict=False)]
    return kernel, *kinds, *sorted(options.items())


def begin(launches: list[tuple[Any, tuple, dict[str, Any], Callable[[tuple], Any]]], device: int) -> None:
    """Have every (kernel, args, options, what compiles it, given outlined args) compiled in the background, launcher and
    all; `device` is the CUDA device's number."""
    from triton.runtime import cache
    from triton.runtime.driver import driver

    # what every compilation begins with and keeps: done here once, not by each thread. The table of a kernel's compiled forms
    # is made at its first use, and of two threads that make it one would lose its own
    made_for = driver.active.get_current_device()
    cache.triton_key()
    for kernel, *_ in launches:
        kernel.device_caches[made_for]

    def work(compiles: Callable[[tuple], Any], args: tuple) -> None:
        with torch.cuda.device(device):
            compiled = compiles(args)
            # Triton 3.6 has a C compiler build every signature's launcher; loading is left to the first launch
            driver.active.launcher_cls(compiled.src, compiled.metadata)

    background().begin([
        (kernel, (device, specialised(kernel, args, options)), partial(work, compiles, _outlined(args)))
        for kernel, args, options, compiles in launches
    ])  # fmt: skip


class Plan(dict[Any, Any]):
    """Stands in a launch where compiled kernels are kept, and notes the launches instead of running them."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[tuple[Any, tuple, dict[str, Any], Callable[[tuple], Any]]] = []

    def begin(self, device: int) -> None:
        """Start the compilation of every launch noted; `device` is the CUDA device's number."""
        begin(self.launches, device)


def outline(x: Tensor) -> Tensor:
    """A tensor of x's shape, strides and dtype without memory; to the compiler an aligned one."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
