"""Kernels compiled in the background are the ones that launches find, and nothing of the background outlives its job."""

import threading
from importlib.util import find_spec

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)

from mnemolab.kernels.triton.ahead import Background, Plan, outline
from mnemolab.kernels.triton.launch import launch
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
    assert told["waiting"] == 0


def test_waiting_is_for_one_kernel_and_its_threads_end():
    gate, done = threading.Event(), []
    jobs = Background()
    before = threading.active_count()

    def slow():
        assert gate.wait(30)
        done.append("slow")

    jobs.begin([("slow", slow), ("quick", lambda: done.append("quick"))])
    jobs.wait("quick")
    jobs.wait("another")
    assert done == ["quick"]
    gate.set()
    jobs.wait("slow")
    assert done == ["quick", "slow"]
    for thread in threading.enumerate():
        if thread.name.startswith("compile"):
            thread.join(30)
    assert threading.active_count() == before


def test_a_failure_in_the_background_is_left_to_the_foreground():
    jobs = Background()

    def fails():
        raise RuntimeError("no such instruction")

    jobs.begin([("kernel", fails)])
    jobs.wait("kernel")


def test_a_plan_notes_launches_and_runs_none():
    plan = Plan()
    kernel = object()
    launch(plan, kernel, 3, (1, 2), lambda: {"K": 4}, 2, 1)
    assert plan.launches == [(kernel, 3, (1, 2), {"K": 4}, 2, 1)] and not plan


def test_an_outline_has_everything_but_memory():
    x = torch.zeros(2, 3, 4, dtype=torch.bfloat16).transpose(1, 2)
    y = outline(x)
    assert (y.shape, y.stride(), y.dtype) == (x.shape, x.stride(), x.dtype) and y.data_ptr() == 0
