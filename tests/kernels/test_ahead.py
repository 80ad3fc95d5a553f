"""Kernels compiled in the background are the ones that launches find, and nothing of the background outlives its job."""

import re
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)

from mnemolab.kernels.triton import ahead
from mnemolab.kernels.triton import launch as launches
from mnemolab.kernels.triton.ahead import Background, Outline, Plan, outline, rehearse, specialised
from mnemolab.kernels.triton.launch import launch, run
from tests.kernels.programs import told_by

KERNELS = ("prepare_kernel", "forward_kernel", "backward_kernel", "gradient_kernel")


def test_every_kernel_is_compiled_once_and_in_the_background(tmp_path):
    (told,) = told_by("ahead_scan.py", TRITON_CACHE_DIR=str(tmp_path))
    by = {
        what: [x for x in told["events"] if x["what"] == what] for what in ("compiled", "found", "launcher", "run")
    }  # fmt: skip
    # a launch that differed from its plan in any type, stride or constant would compile a second time
    for what in ("compiled", "launcher"):
        assert sorted(x["kernel"] for x in by[what]) == sorted(KERNELS), what
        assert all(x["thread"].startswith("compile") for x in by[what]), what
    assert not by["found"] and [x["kernel"] for x in by["run"]] == list(KERNELS)
    assert all(x["thread"] == "MainThread" for x in by["run"])
    assert not told["busy"] and not told["waiting"]
    # three seconds of a first call on a slow disk
    assert not told["sympy"]


def check_step(told):
    """Every kernel that a step launches was compiled once, in the background, and nothing else was."""
    events = told["events"]
    compiled = [x["mark"] for x in events if x["what"] == "compiled"]
    assert len(compiled) == len(set(compiled)) and not [x for x in events if x["what"] == "found"]
    assert all(x["thread"].startswith("compile") for x in events if x["what"] in ("compiled", "launcher"))
    assert len([x for x in events if x["what"] == "launcher"]) == len(compiled)
    run = [x for x in events if x["what"] == "run"]
    assert {x["mark"] for x in run} == set(compiled) and all(x["thread"] == "MainThread" for x in run)
    assert told["rehearsed"] == 0
    return {x["kernel"] for x in run}


def test_a_rehearsed_step_leaves_nothing_to_the_launch(tmp_path):
    (told,) = told_by("ahead_step.py", "deltanet", TRITON_CACHE_DIR=str(tmp_path))
    # the memory, what stands around it, what the loss is made of, what follows
    some = {"conv_backward_kernel", "column_sums_kernel", "embedding_runs_kernel", "row_loss_kernel", "adamw_kernel"}
    assert check_step(told) > {*KERNELS, *some}


@pytest.mark.slow
@pytest.mark.parametrize("stage", ("gpt2", "linear_attention", "mamba2", "kda", "gated_deltanet2", "kimi_k3"))
def test_of_every_kind_of_stage(stage, tmp_path):
    (told,) = told_by("ahead_step.py", stage, TRITON_CACHE_DIR=str(tmp_path))
    check_step(told)


def joined():
    for thread in threading.enumerate():
        if thread.name.startswith("compile"):
            thread.join(30)


def test_waiting_is_for_one_kernel_and_its_threads_end():
    gate, done = threading.Event(), []
    jobs = Background()
    before = threading.active_count()

    def slow():
        assert gate.wait(30)
        done.append("slow")

    jobs.begin([("slow", 1, slow), ("quick", 2, lambda: done.append("quick"))])
    assert jobs.busy
    jobs.wait("quick")
    jobs.wait("another")
    assert done == ["quick"]
    gate.set()
    jobs.wait("slow")
    assert done == ["quick", "slow"]
    joined()
    assert threading.active_count() == before and not jobs.busy


def test_what_was_begun_is_not_begun_again():
    jobs, done = Background(), []
    for _ in range(2):
        jobs.begin([("kernel", key, lambda key=key: done.append(key)) for key in ("one", "two", "one")])
    jobs.wait("kernel")
    assert sorted(done) == ["one", "two"]


def test_a_failure_in_the_background_is_left_to_the_foreground():
    jobs = Background()

    def fails():
        raise RuntimeError("no such instruction")

    jobs.begin([("kernel", 1, fails)])
    jobs.wait("kernel")
    joined()
    assert not jobs.busy


class Kernel:
    """Counts its launches."""

    params: tuple = ()
    ran = 0

    def run(self, *args, grid, warmup, **options):
        assert not warmup
        self.ran += 1


def test_every_launch_asks_here_first():
    """A kernel that is launched by Triton's own brackets would run in a rehearsal, on what no kernel has written."""
    folder = Path(launches.__file__).parent
    bare = {path.name for path in folder.glob("*.py") if re.search(r"_kernel\[", path.read_text())}
    own = {path.name for path in folder.glob("*.py") if re.search(r"\b(run|launch)\(", path.read_text())}
    assert not bare and len(own) > 15


@pytest.fixture
def noted(monkeypatch):
    """A background of this test alone, and what launches tell it to begin."""
    jobs, noted = Background(), []
    monkeypatch.setattr(ahead, "background", lambda: jobs)
    monkeypatch.setattr(ahead, "interpreted", lambda: False)
    monkeypatch.setattr("mnemolab.kernels.triton.launch.background", lambda: jobs)
    monkeypatch.setattr("mnemolab.kernels.triton.launch.begin", lambda launches, device: noted.extend(launches))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return noted


def test_a_rehearsal_runs_nothing_of_its_own_thread_and_stops_no_other(noted):
    kernel, other = Kernel(), Kernel()

    def compiled(programs, args):
        raise AssertionError("a rehearsal ran a kernel")

    made: dict[Any, Any] = {kernel: compiled}

    def step():
        run(kernel, (1,), 1, num_warps=4)
        launch(made, kernel, 1, (), dict, 4, 1)
        thread = threading.Thread(target=run, args=(other, (1,)))
        thread.start()
        thread.join()

    rehearse(step)
    assert (kernel.ran, other.ran) == (0, 1)
    assert [(launch[0], launch[1], launch[2]) for launch in noted] == [(kernel, (1,), {"num_warps": 4})]
    run(kernel, (1,), 1)
    assert kernel.ran == 1 and len(noted) == 1


def test_a_rehearsal_that_breaks_off_leaves_no_trace(noted):
    kernel = Kernel()
    with pytest.raises(RuntimeError, match="broken"):
        rehearse(lambda: (_ for _ in ()).throw(RuntimeError("broken")))
    run(kernel, (1,))
    assert kernel.ran == 1 and not ahead.background().busy


def test_the_backward_pass_of_a_rehearsal_stays_on_its_thread(noted):
    seen = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, dy):
            seen.append((ahead.background().rehearses(), torch._C._is_multithreading_enabled()))
            return 2 * dy

    rehearse(lambda: Twice.apply(torch.ones(2, requires_grad=True)).sum().backward())
    # on the CPU it would stay there anyway; on a GPU only without autograd's threads
    assert seen == [(True, False)]


def test_what_one_compilation_serves_has_one_key():
    class Parameter:
        def __init__(self, plain=False):
            self.do_not_specialize = plain

    kernel = Kernel()
    kernel.params = (Parameter(), Parameter(), Parameter(plain=True), Parameter())
    x = torch.zeros(64)

    def key(*args, **options):
        return specialised(kernel, args, options)

    one = key(x, 32, 5, 0.5, D=4, num_warps=4)
    assert one == key(outline(x), 48, 1, 0.1, num_warps=4, D=4) == key(Outline(x[4:]), 32, 16, 2.0, D=4, num_warps=4)
    assert one == key(x[4:], 64, 7, 1.0, D=4, num_warps=4)
    for other in (
        key(x[1:], 32, 5, 0.5, D=4, num_warps=4), key(x.bfloat16(), 32, 5, 0.5, D=4, num_warps=4),
        key(x, 1, 5, 0.5, D=4, num_warps=4), key(x, 33, 5, 0.5, D=4, num_warps=4),
        key(x, 1 << 40, 5, 0.5, D=4, num_warps=4), key(x, 32, 1 << 40, 0.5, D=4, num_warps=4),
        key(None, 32, 5, 0.5, D=4, num_warps=4), key(x, 32, 5, 0.5, D=5, num_warps=4),
        key((x,), 32, 5, 0.5, D=4, num_warps=4), key(x, 32, 5, 0.5, D=4, num_warps=8),
    ):  # fmt: skip
        assert other != one


def test_a_plan_notes_launches_and_runs_none():
    plan = Plan()
    kernel = object()
    launch(plan, kernel, 3, (1, 2), lambda: {"K": 4}, 2, 1)
    assert [noted[:3] for noted in plan.launches] == [(kernel, (1, 2), {"K": 4, "num_warps": 2, "num_stages": 1})]
    assert not plan


def test_an_outline_has_everything_but_memory():
    x = torch.zeros(2, 3, 4, dtype=torch.bfloat16).transpose(1, 2)
    y = outline(x)
    assert (y.shape, y.stride(), y.dtype) == (x.shape, x.stride(), x.dtype) and y.data_ptr() == 0
