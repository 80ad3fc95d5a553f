"""Graph steps without a GPU: their bookkeeping with replays that simply run again, and that nothing waits for the host."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mnemolab.kernels.triton.table import interpreted
from mnemolab.models import STAGES, make_model
from mnemolab.trainers import graph as graph_module
from mnemolab.trainers.data import sample_range
from mnemolab.trainers.graph import GraphSteps, best_steps
from mnemolab.trainers.query_loss import ask, query_loss
from mnemolab.trainers.steps import EagerSteps, make_optimiser, resume_optimiser
from mnemolab.trainers.stops import NotFinite

CPU = torch.device("cpu")


class Replayed(GraphSteps):
    """On the CPU: a capture records the function and a replay calls it."""

    def _captured(self, body, what):
        return body

    def _warm_up(self, body):
        body()


@pytest.fixture
def replayed(monkeypatch):
    """`replayed(config)`: a graph stepper on the CPU; `fused` ones update, `sorted` ones look tokens up, by Triton kernels."""

    def make(config, block=2, fused=False, sorted=False):
        if fused and not interpreted():
            pytest.skip("needs TRITON_INTERPRET=1")
        monkeypatch.setattr(graph_module, "BLOCK_STEPS", block)
        monkeypatch.setattr("mnemolab.trainers.update._fusable", lambda optimiser, device: fused)
        monkeypatch.setattr("mnemolab.kernels.neighbours.embedding.sorts", lambda count, weight: sorted)
        monkeypatch.setattr("mnemolab.trainers.block.sorts", lambda count, weight: sorted)
        model = config.make_model()
        optimiser = make_optimiser(model, config, CPU)
        for group in optimiser.param_groups:
            group["lr"] = torch.tensor(group["lr"])
        return Replayed(model, optimiser, config.make_task(), config, CPU)

    return make


def eager(config):
    model = config.make_model()
    return EagerSteps(model, make_optimiser(model, config, CPU), config.make_task(), config, CPU)


@pytest.mark.parametrize(("block", "kernels"), [(1, False), (2, False), (5, False), (2, True)])
def test_the_same_steps_as_one_after_the_other(tiny, replayed, block, kernels):
    config = tiny(**{"budget.steps": 12})
    plain, graph = eager(config), replayed(config, block, fused=kernels, sorted=kernels)
    for count in (1, 2, 1) if kernels else (1, 4, 7):
        plain.advance(count)
        graph.advance(count)
        expected, found = plain.drain(), graph.drain()
        assert [row[0] for row in found] == [row[0] for row in expected]
        for a, b in zip(found, expected, strict=True):
            assert a[1:] == pytest.approx(b[1:], rel=1e-4)
    for a, b in zip(plain.parameters, graph.parameters, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def test_examples_of_a_small_space_are_not_captured(tiny, replayed, monkeypatch):
    """How many are drawn is known to the host alone: a capture would fail, and say no more than that it did."""
    whole, small = replayed(tiny()), replayed(tiny(task={"name": "associative_recall", "pairs": 2, "length": 16}))
    assert small.feed.task.split_by_content and not whole.feed.task.split_by_content
    captured = []
    monkeypatch.setattr(Replayed, "_captured", lambda self, body, what: captured.append((self is small, what)) or body)
    for steps in (whole, small):
        steps.advance(6)
    assert captured == [(False, "making examples"), (False, "steps"), (True, "steps")]
    assert "making examples eagerly" in small.how and whole.how == "CUDA graph"


@pytest.mark.parametrize(
    ("stage", "recipe"),
    [
        ("gru", "published"),
        ("gpt2", "published"),
        ("mamba2", "published"),
        ("kda", "matched"),
        ("kimi_k3", "published"),
    ],
)
def test_stages_of_every_build_update_by_three_kernels(tiny, replayed, stage, recipe):
    """Untied heads, experts, residual queries, gates: whatever has a gradient gets its step."""
    depth = 5 if stage == "kimi_k3" else 1
    config = tiny(**{"model.name": stage, "model.recipe": recipe, "model.depth": depth})
    plain, graph = eager(config), replayed(config, fused=True)
    plain.advance(3)
    graph.advance(3)
    for a, b in zip(graph.drain(), plain.drain(), strict=True):
        assert a[1:] == pytest.approx(b[1:], rel=1e-5)
    assert len(graph.optimiser.state) == len(plain.optimiser.state) > 0


@pytest.mark.parametrize("fused", [False, True])
def test_a_resumed_stepper_goes_on_where_it_was(tiny, replayed, fused):
    config = tiny(**{"budget.steps": 9})
    whole, first, second = (replayed(config, fused=fused) for _ in range(3))
    whole.advance(9)
    first.advance(5)
    second.model.load_state_dict(first.model.state_dict())
    second.optimiser.load_state_dict(first.optimiser.state_dict())
    second.step = 5
    second.advance(4)
    assert second.drain() == whole.drain()[5:]


@pytest.mark.parametrize("fused", [False, True])
def test_a_run_that_began_on_a_cpu_goes_on_with_graphs_and_the_other_way(tiny, replayed, fused):
    """There the rate is a number, here a tensor, which a replay must be able to change."""
    config = tiny(**{"budget.steps": 9})
    whole, first, second, third = eager(config), eager(config), replayed(config, fused=fused), eager(config)
    whole.advance(9)
    for one, other, count in ((None, first, 3), (first, second, 3), (second, third, 3)):
        if one is not None:
            other.model.load_state_dict(one.model.state_dict())
            resume_optimiser(other.optimiser, one.optimiser.state_dict())
            other.step = one.step
        other.advance(count)
    for a, b in zip(whole.parameters, third.parameters, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)
    assert isinstance(second.optimiser.param_groups[0]["lr"], torch.Tensor)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_is_not_finite_and_all_after_it_change_nothing(tiny, replayed, monkeypatch, fused):
    config = tiny(**{"budget.steps": 9})
    steps, calls = replayed(config, fused=fused), []

    def loss(*args, **more):
        calls.append(1)
        found = query_loss(*args, **more)
        return found._replace(losses=found.losses * (float("nan") if len(calls) == 3 else 1.0))

    monkeypatch.setattr(graph_module, "query_loss", loss)
    steps.advance(2)
    before = [p.detach().clone() for p in steps.parameters]
    steps.advance(4)
    assert all(torch.equal(a, b) for a, b in zip(before, steps.parameters, strict=True))
    with pytest.raises(NotFinite) as error:
        steps.drain()
    assert error.value.step == 3


@pytest.mark.parametrize("fused", [False, True])
def test_narrow_steps_are_narrow_steps_one_after_the_other(tiny, replayed, fused):
    """bfloat16 on the CPU, where the interpreter cuts the copies off; and a change between two calls reaches them."""
    config = tiny(**{"precision": "bf16", "budget.steps": 12})
    plain, graph = eager(config), replayed(config, fused=fused)
    for _ in range(2):
        plain.advance(2)
        graph.advance(2)
        for a, b in zip(graph.drain(), plain.drain(), strict=True):
            assert a[1:] == pytest.approx(b[1:], rel=3e-2)
        for steps in (plain, graph):
            with torch.no_grad():
                for p in steps.parameters:
                    p.mul_(0.5)


@pytest.mark.parametrize("form", ["plain", "softmax in place", "whole"])
@pytest.mark.parametrize("pieces", [False, True])
def test_query_loss_is_the_loss_of_the_model(tiny, monkeypatch, pieces, form):
    if form != "plain" and not interpreted():
        pytest.skip("needs TRITON_INTERPRET=1")
    monkeypatch.setattr("mnemolab.trainers.query_loss._fused", lambda rows: form != "plain")
    monkeypatch.setattr("mnemolab.trainers.query_loss._whole", lambda x, weight: form == "whole")
    if pieces:
        monkeypatch.setattr("mnemolab.trainers.query_loss.LOGITS_AT_ONCE", 200)
    config = tiny()
    batch = sample_range(config.make_task(), 0, 4, "train", 0, CPU)
    position = batch.queries["position"]
    position[1, 2:] = -1  # an example with fewer queries
    targets = torch.full_like(batch.targets, -100)
    wanted = torch.where(position >= 0, batch.targets.gather(1, position.clamp(min=0)), -100)
    targets.scatter_(1, position.clamp(min=0), wanted)
    targets[1, 0] = -100  # where the unused slots pointed
    one, two = config.make_model(), config.make_model()
    asked = ask(position, wanted, batch.inputs.shape[1])
    first, second = one.loss(batch.inputs, targets), query_loss(two, batch.inputs, asked)
    assert second.losses.sum().item() == pytest.approx(first.item(), rel=1e-5)
    first.backward()
    second.backward()
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-4)


def test_unused_slots_do_no_harm_without_an_epsilon():
    """A row that is none goes through the norms like any other; at epsilon 0 a row of zeros would come out as NaN."""
    model = make_model("gated_deltanet", vocab_size=11, width=16, depth=1, heads=2, head_dim=8, norm_eps=0.0)
    positions, wanted = torch.tensor([[3, -1], [2, 4]]), torch.tensor([[1, -100], [2, 3]])
    inputs = torch.arange(12).view(2, 6) % 11
    loss = query_loss(model, inputs, ask(positions, wanted, 6))
    loss.backward()
    targets = torch.full((2, 6), -100)
    targets[0, 3], targets[1, 2], targets[1, 4] = 1, 2, 3
    assert loss.losses.sum().item() == pytest.approx(model.loss(inputs, targets).item(), rel=1e-5)
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


class NoWaiting(TorchDispatchMode):
    """Raises on operations whose result has a shape that depends on data, or that read a value back to the host."""

    FORBIDDEN = ("nonzero", "_local_scalar_dense", "masked_select", "unique", "bincount", "equal")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        masks = name.startswith("index") and any(
            isinstance(i, torch.Tensor) and i.dtype == torch.bool
            for i in (args[1] if isinstance(args[1], (list, tuple)) else ())
        )
        if name in self.FORBIDDEN or masks:
            raise AssertionError(f"{func} waits for the host: a CUDA graph cannot hold it")
        return func(*args, **(kwargs or {}))


def test_the_watch_for_waiting_sees_the_masked_loss(tiny):
    config = tiny()
    batch = sample_range(config.make_task(), 0, 4, "train", 0, CPU)
    with pytest.raises(AssertionError, match="waits for the host"), NoWaiting():
        config.make_model().loss(batch.inputs, batch.targets)


@pytest.mark.parametrize("stage", ["gpt2", "linear_attention", "deltanet", "gated_deltanet", "kda", "lstm"])
def test_a_step_never_waits_for_the_host(tiny, replayed, stage, monkeypatch):
    """Values are checked on the CPU alone, so that check is left out here."""
    if stage not in STAGES:
        pytest.skip(f"no stage {stage}")
    monkeypatch.setattr("mnemolab.kernels.operands._nonpositive", lambda log_decay: None)
    steps = replayed(tiny(**{"model.name": stage}))
    steps.advance(1)
    with NoWaiting():
        steps._step_body()


def test_graphs_are_for_one_cuda_device(tiny):
    config = tiny()
    model = config.make_model()
    optimiser = make_optimiser(model, config, CPU)
    steps = best_steps(model, optimiser, config.make_task(), config, CPU, world=1)
    assert (type(steps), steps.how) == (EagerSteps, "eager")
    steps = best_steps(model, optimiser, config.make_task(), config, CPU, rank=0, world=2)
    assert steps.how == "eager: 2 devices share the run"


@pytest.mark.skipif(not interpreted(), reason="needs TRITON_INTERPRET=1")
@pytest.mark.parametrize(("columns", "block"), [(5, 4096), (64, 64), (300, 128)])
def test_softmax_error_against_autograd(columns, block, monkeypatch):
    from mnemolab.kernels.triton import softmax_error

    monkeypatch.setattr(softmax_error, "BLOCK", block)
    source = torch.Generator().manual_seed(columns)
    logits = 4 * torch.randn(7, columns, generator=source)
    wanted = torch.randint(0, columns, (7,), generator=source)
    share = torch.rand(7, generator=source)
    wanted[2], share[2] = -100, 0.0
    leaf = logits.clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(leaf, wanted, reduction="none", ignore_index=-100) * share
    expected.sum().backward()
    losses = torch.empty(7)
    softmax_error.softmax_error_(logits, wanted, share, losses)
    torch.testing.assert_close(losses, expected.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits, leaf.grad, atol=1e-5, rtol=1e-5)
