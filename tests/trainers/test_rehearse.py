"""A rehearsal leaves a model as it was, whatever happened in it."""

import pytest
import torch
from torch import nn

from mnemolab.trainers import graph
from mnemolab.trainers import rehearse as module
from mnemolab.trainers.rehearse import rehearse_step
from mnemolab.trainers.steps import make_optimiser
from mnemolab.trainers.update import PlainUpdate

CUDA = torch.device("cuda", 0)


@pytest.fixture
def rehearsed(monkeypatch):
    """On the CPU: what was rehearsed, and the state of a generator that stands for the GPU's."""
    seen, generator = [], torch.Generator().manual_seed(0)

    def rehearse(step):
        seen.append(step)
        step()

    monkeypatch.setattr(module, "rehearse", rehearse)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: generator.get_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: generator.set_state(state))
    return seen, generator


class Counting(nn.BatchNorm1d):
    __module__ = "mnemolab.models.counting"


@pytest.mark.parametrize("fails", [False, True])
def test_buffers_and_random_numbers_are_put_back(rehearsed, fails):
    seen, generator = rehearsed
    model = nn.Sequential(nn.Linear(3, 3), Counting(3)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = torch.rand(2, generator=torch.Generator().manual_seed(0))

    def step():
        model(torch.rand(4, 3, generator=generator) + 5).sum().backward()
        if fails:
            raise RuntimeError("out of memory")

    rehearse_step(model, step, CUDA)
    assert len(seen) == 1
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(torch.rand(2, generator=generator), drawn)


def test_what_might_do_more_than_compute_is_not_rehearsed(rehearsed):
    class Theirs(nn.Linear):
        pass

    hooked, known = nn.Linear(2, 2), nn.Linear(2, 2)
    hooked.register_forward_hook(lambda module, args, y: None)
    for model, device in (
        (nn.Sequential(Theirs(2, 2)), CUDA), (nn.Sequential(hooked), CUDA), (known, torch.device("cpu")),
    ):  # fmt: skip
        rehearse_step(model, lambda: pytest.fail("it ran"), device)
    rehearse_step(known, lambda: None, CUDA)
    assert len(rehearsed[0]) == 1


@pytest.mark.parametrize("fused", [False, True])
def test_graph_steps_rehearse_before_their_first_step_and_never_a_plain_update(tiny, monkeypatch, fused):
    class Steps(graph.GraphSteps):
        def _take_step(self):
            told.append("step")
            self._warm += 1

    told: list[str] = []
    monkeypatch.setattr(graph, "rehearse_step", lambda model, step, device: told.append(step.__name__))
    if fused:
        monkeypatch.setattr(graph, "FusedUpdate", PlainUpdate)
    config, device = tiny(), torch.device("cpu")
    model = config.make_model()
    steps = Steps(model, make_optimiser(model, config, device), config.make_task(), config, device)
    for count in (1, 2):
        steps.advance(count)
    assert told == ["_step_body"] * fused + ["step"] * 3
