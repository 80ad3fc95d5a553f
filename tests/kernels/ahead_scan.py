"""One scan, forward and backward, on a driver that is not there: print as JSON what was compiled, and what ran.

Run as a program, `python ahead_scan.py`, with TRITON_INTERPRET unset and an empty TRITON_CACHE_DIR.
"""

import json
import sys
import threading
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from mnemolab.kernels.triton import launch, scan
from mnemolab.kernels.triton.ahead import background

events: list[dict[str, Any]] = []


def note(what, name, mark=""):
    events.append({"what": what, "kernel": name, "mark": mark, "thread": threading.current_thread().name})


class Driver:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def launcher_cls(self, src, metadata):
        note("launcher", src.name)


class Ready:
    def __init__(self, compiled, constants):
        self.name = compiled.metadata.name

    def __call__(self, programs, args):
        note("run", self.name)


def compiled(src, metadata, metadata_group, times, cache_hit):
    note("found" if cache_hit else "compiled", src.name)


if __name__ == "__main__":
    driver.set_active(Driver())  # pyright: ignore[reportArgumentType] (what a compilation asks of it)
    launch.Ready = Ready
    knobs.compilation.listener = compiled
    B, T, H, D = 2, 40, 2, 16
    packed = torch.zeros(B, T, 3 * H, D, dtype=torch.bfloat16)
    q, k, v = packed[:, :, :H], packed[:, :, H : 2 * H], packed[:, :, 2 * H :]
    gates = (torch.zeros(B, T, H), torch.zeros(B, T, H), None)
    geo = scan.geometry(q, v, *gates, False, 0.5)
    scan.compile_ahead(geo, q, k, v, *gates, None, None, save=True)
    symbolic = "sympy" in sys.modules
    o, _, _, work = scan.run_forward(geo, q, k, v, *gates, None, None, save=True)
    scan.run_backward(geo, q, k, v, *gates, work, None, torch.zeros_like(o), None, None, (None, None))
    for thread in threading.enumerate():
        if thread.name.startswith("compile"):
            thread.join()
    jobs = background()
    print(json.dumps({"events": events, "busy": jobs.busy, "waiting": len(jobs._jobs), "sympy": symbolic}))
