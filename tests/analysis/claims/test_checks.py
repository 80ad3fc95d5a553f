"""What a check is, which checks there are, and how times become estimates."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from mnemolab.analysis.claims.checks import CHECKS, TIERS, Check, Undecidable
from mnemolab.analysis.claims.checks.check import first_seed, preset
from mnemolab.analysis.claims.checks.timing import estimate, exponent, one_thread, ratio, rounds
from mnemolab.errors import BadRequest

NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "low", "high", "interval", "passed"),
    [
        (1.0, 1, 1, None, True),
        (1.0, None, 0.9, None, False),
        (1.0, 1.1, None, None, False),
        (1.0, 0.5, 1.5, (0.6, 1.4), True),
        (1.0, 0.5, 1.5, (0.4, 1.4), False),
        (1.0, 0.5, 1.5, (0.6, 1.6), False),
        (1.0, 0.5, 1.5, (NAN, 1.4), False),
        (NAN, 0.5, None, None, False),
        (float("inf"), 0.5, None, None, False),
    ],
)
def test_a_check_passes_when_all_of_its_interval_keeps_the_bounds(value, low, high, interval, passed):
    assert Check("c", value, low, high, "unit", interval=interval).passed is passed


def test_a_check_without_bounds_is_refused():
    with pytest.raises(ValueError, match="could not fail"):
        Check("c", 1.0, None, None, "unit")


def test_every_claim_without_training_has_its_function():
    assert set(CHECKS) == {
        "kv-cache-equal", "chunk-exact", "attnres-zero-plain", "order-from-recurrence", "kv-bytes", "latent-moe-flops",
        "scale-22580", "chunk-cost", "fixed-state-constant", "linear-training", "situ-fused", "attnres-latency",
        "additive-interference", "attnres-compute", "latent-moe-quality",
    }  # fmt: skip
    for name in CHECKS:
        assert CHECKS[name].__name__ == name.replace("-", "_") and CHECKS.summary(name)


def test_names_cost_no_torch():
    code = "import sys; from mnemolab.analysis.claims.checks import CHECKS; list(CHECKS); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ("attnres-compute", "latent-moe-quality"))
def test_quality_at_scale_says_what_would_decide_it(name):
    with pytest.raises(Undecidable, match="would decide it") as found:
        CHECKS[name]("quick", "cpu")
    assert found.value.reason and "trained on text" in found.value.decides


def test_presets():
    table = {"cpu": {"quick": 1, "full": 2}, "cuda": {"quick": 3, "full": 4}}
    assert [preset(table, tier, "cpu") for tier in TIERS] == [1, 2, 2]
    assert preset(table, "full", "cuda:1") == 4
    assert first_seed("quick") == first_seed("full") != first_seed("replicate")
    with pytest.raises(BadRequest, match=r"'fulll'.*'full'"):
        preset(table, "fulll", "cpu")
    with pytest.raises(BadRequest, match="cpu and cuda"):
        preset(table, "full", "tpu")


def test_powers_and_ratios_of_medians():
    sizes = (2, 4, 8)
    times = [np.asarray([1.0, 1.0, 50.0]) * T**1.5 for T in sizes]
    value, (low, high) = estimate(times, exponent(sizes))
    # the round that was slow for all of them changes no power
    assert value == pytest.approx(1.5) and low == pytest.approx(1.5) and high == pytest.approx(1.5)
    value, interval = estimate([np.asarray([2.0, 2.1, 1.9, 2.0]), np.ones(4)], ratio)
    assert value == 2 and interval[0] < 2 < interval[1]


def test_rounds_take_turns_on_one_thread():
    seen, before = [], torch.get_num_threads()
    times = rounds(
        {"a": lambda: seen.append(("a", torch.get_num_threads())), "b": lambda: seen.append(("b", 0))}, 3, "cpu"
    )
    assert [name for name, _ in seen] == ["a", "b"] * 4
    assert {threads for name, threads in seen if name == "a"} == {1}
    assert torch.get_num_threads() == before and {len(found) for found in times.values()} == {3}
    with pytest.raises(RuntimeError), one_thread():
        raise RuntimeError
    assert torch.get_num_threads() == before
