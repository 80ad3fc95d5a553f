"""A training step, first rehearsed and then taken, on a driver that is not there: print as JSON what was compiled, and what ran.

Run as a program, `python ahead_step.py STAGE`, with TRITON_INTERPRET unset and an empty TRITON_CACHE_DIR. CPU tensors say
that they are on a GPU, and compiled kernels do nothing.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from ahead_scan import Driver, events, note
from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime.driver import driver

from mnemolab.kernels import operands
from mnemolab.kernels import scan as entrance
from mnemolab.kernels.triton import launch
from mnemolab.kernels.triton.ahead import rehearse
from mnemolab.trainers import RunConfig, update
from mnemolab.trainers.graph import GraphSteps
from mnemolab.trainers.steps import make_optimiser

TASK = {
    "name": "associative_recall", "length": 256, "pairs": 64, "layout": "mqar", "key_vocabulary": 1024,
    "value_vocabulary": 1024, "filler_vocabulary": 1,
}  # fmt: skip
CPU = torch.device("cpu")


class Steps(GraphSteps):
    """Whose warm-up needs no stream."""

    def _warm_up(self, body: Callable[[], None]) -> None:
        body()


class Ready:
    """In place of `launch.Ready`."""

    def __init__(self, compiled: Any, constants: tuple):
        self.compiled = compiled

    def __call__(self, programs: int, args: tuple) -> None:
        note("run", self.compiled.metadata.name, self.compiled.hash)


def compiled(src: Any, metadata: Any, metadata_group: Any, times: Any, cache_hit: bool) -> None:
    note("found" if cache_hit else "compiled", src.name, metadata["hash"])


def load(self: CompiledKernel) -> None:
    self._run = lambda *args: note("run", self.metadata.name, self.hash)


def widened(product: Callable[..., Any]) -> Callable[..., Any]:
    """A product whose operands may be narrower than its result, which the CPU has not."""

    def call(*operands: torch.Tensor, out_dtype: torch.dtype | None = None, **how: Any) -> Any:
        return product(*(x if out_dtype is None else x.to(out_dtype) for x in operands), **how)

    return call


def pretend() -> None:
    driver.set_active(Driver())  # pyright: ignore[reportArgumentType] (what a compilation asks of it)
    knobs.compilation.listener = compiled
    CompiledKernel._init_handles = load
    launch.Ready = Ready
    torch.Tensor.is_cuda = property(lambda x: True)  # pyright: ignore[reportAttributeAccessIssue]
    torch.cuda.current_device = lambda: -1
    torch.cuda.is_current_stream_capturing = lambda: False
    entrance._choose = lambda *words: entrance.Choice("triton", {})
    operands._nonpositive = lambda log_decay: None  # of values that no kernel has written
    torch.mm, torch.addmm = widened(torch.mm), widened(torch.addmm)


def make_steps(stage: str) -> Steps:
    depth = 4 if stage.startswith("kimi") else 1
    made = {"name": stage, "width": 64, "depth": depth, "heads": 2, "head_dim": 32}
    budget = {"steps": 10, "batch_size": 32}
    config = RunConfig.from_dict({"task": TASK, "model": made, "budget": budget, "precision": "bf16", "device": "cpu"})
    model = config.make_model().train()
    optimiser = make_optimiser(model, config, CPU)
    for group in optimiser.param_groups:
        group["lr"] = torch.tensor(group["lr"])
    update._fusable = lambda optimiser, device: True
    return Steps(model, optimiser, config.make_task(), config, CPU)


def main(stage: str) -> None:
    steps = make_steps(stage)
    steps._block_body()
    pretend()
    rehearse(steps._step_body)
    rehearsed = len([x for x in events if x["what"] == "run"])
    steps._step_body()
    print(json.dumps({"events": events, "rehearsed": rehearsed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
