"""A scan cut into segments is the scan: in Triton's interpreter, as in test_triton_scan.py, with the number of segments forced."""

from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from itertools import product

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)

from mnemolab.kernels import memory_scan
from mnemolab.kernels.triton import scan, table
from mnemolab.kernels.triton.segments import carry_back_kernel, carry_kernel, combine_kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = ("none", "scalar", "channel")
STAGES = {
    "linear_attention": ("none", "none", "none"),
    "mamba2": ("scalar", "none", "scalar"),
    "gla": ("channel", "none", "none"),
    "deltanet": ("none", "scalar", "scalar"),
    "gated_deltanet": ("scalar", "scalar", "scalar"),
    "kda": ("channel", "scalar", "scalar"),
    "gated_deltanet2": ("channel", "channel", "channel"),
}


@contextmanager
def segments(number, **more):
    """Every scan has so many segments, or as many as it has chunks."""
    chosen = scan.choose
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "choose", lambda *a: replace(chosen(*a), segments=number, **more))
        scan._known_geometry.cache_clear()
        try:
            yield
        finally:
            scan._known_geometry.cache_clear()


def make(bench, *kinds, **sizes):
    return bench.make(*kinds, dtype=torch.float32, device=DEVICE, **{"B": 1, "H": 1, "K": 4, "V": 3, **sizes})


def wide(bench, operands):
    """The same numbers in float64."""
    found = {n: bench.leaf(x.double()) if isinstance(x, torch.Tensor) else x for n, x in operands.items()}
    if isinstance(operands["initial_state"], tuple):
        found["initial_state"] = tuple(bench.leaf(x.double()) for x in operands["initial_state"])
    return found


def both(bench, operands, number, tolerance=5e-6, floor=0.0, **more):
    """Outputs, states and gradients in segments against the chunked form in float64."""
    with segments(number, **more):
        found = bench.run(operands, "triton")
    bench.assert_same(found, bench.run(wide(bench, operands), "chunked"), tolerance, floor)
    return found


@pytest.mark.parametrize("kinds", STAGES.values(), ids=STAGES.keys())
@pytest.mark.parametrize("number", (2, 3, 5))
def test_stages(bench, kinds, number):
    """A ragged last segment (of a ragged last chunk), more than one head and tile of V, K and V of no round number."""
    both(bench, make(bench, *kinds, B=1, T=16 * 6 + 3, H=2, K=5, V=18), number)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", list(product(KINDS, KINDS, KINDS)), ids="-".join)
@pytest.mark.parametrize("number", (2, 3, 5))
def test_all_combinations(bench, kinds, number):
    for normalize, state in product((False, True), repeat=2):
        # a difference of large terms in the denominator's gradient costs a digit
        both(bench, make(bench, *kinds, normalize=normalize, state=state, T=70), number, 3e-5)


@pytest.mark.parametrize(
    "kinds", (("none", "none", "none"), ("channel", "scalar", "channel"), ("scalar", "none", "scalar")), ids="-".join
)
def test_normalize(bench, kinds):
    both(bench, make(bench, *kinds, normalize=True, T=55, V=20), 4, 3e-5)
