"""On a GPU a rehearsal changes nothing, and leaves no kernel of a step to be compiled when it is launched."""

import threading

import pytest
import torch

from mnemolab.trainers import RunConfig
from mnemolab.trainers.graph import GraphSteps
from mnemolab.trainers.steps import make_optimiser

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize(("stage", "depth"), [("gpt2", 2), ("deltanet", 2), ("kda", 2), ("kimi_k3", 4)])
def test_a_step_compiles_nothing_that_was_rehearsed(stage, depth, monkeypatch):
    from triton import knobs

    from mnemolab.kernels.triton.ahead import background
    from mnemolab.trainers import graph

    # a width of no other test: its kernels are new to this process
    made = {"name": stage, "width": 48, "depth": depth, "heads": 3, "head_dim": 16}
    budget = {"steps": 20, "batch_size": 32}
    run = RunConfig.from_dict(
        {"task": {"name": "key_overwrite"}, "model": made, "budget": budget, "precision": "bf16", "device": "cuda"}
    )
    device = torch.device("cuda", torch.cuda.current_device())
    model = run.make_model().to(device).train()
    steps = GraphSteps(model, make_optimiser(model, run, device), run.make_task(), run, device)
    at_launch: list[str] = []
    rehearsals: list[bool] = []

    def compiled(src, metadata, metadata_group, times, cache_hit):
        if not threading.current_thread().name.startswith("compile"):
            at_launch.append(src.name)

    def rehearse_step(model, step, device):
        before = {name: value.clone() for name, value in (*model.named_parameters(), *model.named_buffers())}
        numbers = torch.cuda.get_rng_state(device)
        rehearse(model, step, device)
        assert torch.equal(torch.cuda.get_rng_state(device), numbers)
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            assert torch.equal(value, before[name]), name
        rehearsals.append(True)

    rehearse = graph.rehearse_step
    monkeypatch.setattr(graph, "rehearse_step", rehearse_step)
    monkeypatch.setattr(knobs.compilation, "listener", compiled)
    steps.advance(1)
    steps.drain()
    assert rehearsals and not background().rehearses()
    assert set(at_launch) <= {"philox_kernel"}  # examples are made before the step
