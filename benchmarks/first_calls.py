"""Seconds until the first result of each operation, as a user meets them: a fresh process, nothing compiled before."""

import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from tempfile import TemporaryDirectory

__all__ = ["first_calls"]

# B, T, H, D of the call; compilation does not depend on B
SHAPE = (2, 64, 2, 64)


def first_calls(ops: tuple[str, ...]) -> dict[str, float]:
    """Operation -> seconds of its first forward+backward, compilation included, imports and CUDA's own start not.

    Every operation has a process and an empty Triton cache of its own; the processes run one after the other, so that each
    has all cores. A server that has the imports done starts them, since forking after CUDA has begun is not possible.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__, "mnemolab.benchmarks.kernels_gpu", "mnemolab.kernels.triton.scan"])
    found = {}
    for op in ops:
        with TemporaryDirectory() as cache, ProcessPoolExecutor(1, mp_context=context) as pool:
            found[op] = pool.submit(_first_call, op, cache).result()
    return found


def _first_call(op: str, cache: str) -> float:
    os.environ["TRITON_CACHE_DIR"] = cache
    import torch

    from mnemolab.benchmarks.kernels_gpu import operands, ours

    x = {name: value.requires_grad_() for name, value in operands(op, SHAPE).items()}
    # PyTorch's own lazy start (cuBLAS, autograd's thread) is no part of the operation
    torch.autograd.grad((x["q"] @ x["q"].mT).sum(), x["q"])
    torch.cuda.synchronize()
    start = time.perf_counter()
    torch.autograd.grad(ours(op, x).sum(), list(x.values()))
    torch.cuda.synchronize()
    return time.perf_counter() - start
