"""The Triton scan is the loop: through the interpreter in float32 without a GPU, on the device itself where there is one.

tests/conftest.py switches the interpreter on. It computes bfloat16 wrongly and runs no reduced precision, so what depends on them is in tests/gpu.
"""

from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from typing import Any

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)
CUDA = torch.cuda.is_available()

from mnemolab.benchmarks.kernels_cpu import STAGES
from mnemolab.kernels import explain_backend, memory_scan, memory_step
from mnemolab.kernels.triton import scan

DEVICE = "cuda" if CUDA else "cpu"
TOLERANCE = 3e-6
KINDS = ("none", "scalar", "channel")


def both(bench, operands, tolerance=TOLERANCE, floor=0.0):
    """Outputs, states and gradients of the Triton form against the loop in float64 on the same numbers."""
    wide = {n: bench.leaf(x.double()) if isinstance(x, torch.Tensor) else x for n, x in operands.items()}
    if isinstance(operands["initial_state"], tuple):
        wide["initial_state"] = tuple(bench.leaf(x.double()) for x in operands["initial_state"])
    found = bench.run(operands, "triton")
    bench.assert_same(found, bench.run(wide, "loop"), tolerance, floor)
    return found


def make(bench, *kinds, **sizes) -> dict[str, Any]:
    return bench.make(*kinds, dtype=torch.float32, device=DEVICE, **sizes)


@pytest.mark.parametrize("kinds", STAGES.values(), ids=STAGES.keys())
@pytest.mark.parametrize("T", (1, 33))
def test_stages(bench, kinds, T):
    both(bench, make(bench, *kinds, B=1, T=T, H=2, K=5, V=18))


@pytest.mark.parametrize("C", (32, 64))
@pytest.mark.parametrize("kinds", (("none", "none", "none"), ("channel", "scalar", "scalar")), ids="-".join)
def test_longer_chunks(bench, monkeypatch, kinds, C):
    """The table reserves them for bfloat16, which the interpreter cannot compute; the formulas hold at any length."""
    chosen = scan.choose
    monkeypatch.setattr(scan, "choose", lambda *a: replace(chosen(*a), C=C))
    scan._known_geometry.cache_clear()
    try:
        both(bench, make(bench, *kinds, B=1, T=C + 5, H=1, K=4, V=3))
    finally:
        scan._known_geometry.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("kinds", list(product(KINDS, KINDS, KINDS)), ids="-".join)
def test_all_combinations(bench, kinds):
    for normalize, state in product((False, True), repeat=2):
        # a difference of large terms in the denominator's gradient costs a digit
        both(bench, make(bench, *kinds, normalize=normalize, state=state, B=1, T=18, K=5, V=3), 2e-5)


@pytest.mark.parametrize(
    "kinds", (("none", "none", "none"), ("channel", "scalar", "channel"), ("scalar", "channel", "scalar")), ids="-".join
)
def test_normalize(bench, kinds):
    both(bench, make(bench, *kinds, normalize=True, B=1, T=19, K=4, V=3), 2e-5)


@pytest.mark.parametrize("strength", (6.0, 20.0, 200.0, 1e4))
def test_strong_gates(bench, strength):
    """Every chunk leaves the anchored way; the tail of the last chunk meets gates that nothing bounds."""
    for kinds in (("channel", "scalar", "scalar"), ("scalar", "scalar", "scalar")):
        # what decays by more than exp(-88) is 0 in float32
        found = both(bench, make(bench, *kinds, strength=strength, B=1, T=31, H=1, K=4, V=3), floor=1e-36)
        assert all(x.isfinite().all() for x in found.values())


@pytest.mark.parametrize("decay", ("scalar", "channel"))
def test_gate_gradient_without_cancellation(bench, decay):
    """At -20 everywhere the true gradient is about 1e-9 of the terms that the textbook form subtracts."""
    operands = make(bench, decay, "scalar", "scalar", B=1, T=20, H=1, K=4, V=3)
    operands["log_decay"] = bench.leaf(torch.full_like(operands["log_decay"], -20.0))
    operands["initial_state"] = None
    both(bench, operands, 1e-4)


def test_a_wipe_between_mild_gates(bench):
    """-inf at one token: everything before it is gone, its own gradient is 0, and the gates around it stay exact."""
    for decay in ("scalar", "channel"):
        operands = make(bench, decay, "scalar", "scalar", B=1, T=20, H=1, K=4, V=3, strength=0.1)
        with torch.no_grad():
            operands["log_decay"][:, 9] = -torch.inf
        found = bench.run(operands, "triton")
        wanted = bench.run(operands, "loop")
        wanted["d log_decay"] = torch.nan_to_num(wanted["d log_decay"])
        bench.assert_same(found, wanted, 1e-5)
        assert (found["d log_decay"][:, 9] == 0).all()


@pytest.mark.parametrize("keys", ("near_collinear", "identical", "zero"))
def test_hard_keys(bench, keys):
    both(bench, make(bench, "none", "scalar", "scalar", keys=keys, B=1, T=40, H=1, K=4, V=3), 1e-5)


def test_gates_of_zero_are_no_gates(bench):
    operands = make(bench, "channel", "scalar", "scalar", B=1, T=18, K=4, V=3)
    operands["log_decay"] = bench.leaf(torch.zeros_like(operands["log_decay"]))
    gated = bench.run(operands, "triton")
    plain = bench.run({**operands, "log_decay": None}, "triton")
    del gated["d log_decay"]
    bench.assert_same(gated, plain, 1e-6)


def test_strides_expansion_and_poison(bench):
    """Operands cut from wider tensors that hold NaN elsewhere, an expanded key and an expanded cotangent."""
    operands = make(bench, "scalar", "scalar", "scalar", B=2, T=17, H=2, K=4, V=3, state=False)
    wanted = bench.run(operands, "triton")
    for name in ("q", "k", "v", "log_decay", "erase", "write"):
        x = operands[name].detach()
        if x.dim() == 4:
            wide = torch.full((*x.shape[:2], x.shape[2] + 1, x.shape[3] + 2), torch.nan, device=DEVICE)
            view = wide[:, :, 1:, 1 : x.shape[3] + 1]
        else:
            view = torch.full((*x.shape, 2), torch.nan, device=DEVICE)[..., 1]
        view.copy_(x)
        operands[name] = view.requires_grad_()
    bench.assert_same(bench.run(operands, "triton"), wanted, 0)
    q = torch.randn(2, 17, 1, 4, device=DEVICE).expand(2, 17, 2, 4)
    v = torch.randn(2, 1, 2, 3, device=DEVICE).expand(2, 17, 2, 3).requires_grad_()
    o, _ = memory_scan(q, q, v, backend="triton")
    o.sum().backward()  # the cotangent of a sum is one number, expanded
    copy = v.detach().clone().requires_grad_()
    memory_scan(q.contiguous(), q.contiguous(), copy, backend="triton")[0].backward(
        torch.ones(2, 17, 2, 3, device=DEVICE)
    )
    assert torch.equal(v.grad, copy.grad)


@pytest.mark.parametrize("B, T", ((0, 3), (2, 0)))
def test_nothing_to_do(bench, B, T):
    operands = make(bench, "channel", "scalar", "scalar", B=B, T=T, normalize=True)
    found = bench.run(operands, "triton")
    assert found["o"].shape == (B, T, 2, 3)
    assert torch.equal(found["state"], operands["initial_state"][0])


def test_only_some_gradients(bench):
    operands = {
        n: x.detach() if isinstance(x, torch.Tensor) else x for n, x in make(bench, "scalar", "scalar", B=1).items()
    }
    wanted = bench.run(make(bench, "scalar", "scalar", B=1), "loop")
    for name in ("q", "initial_state"):
        one = {**operands, name: operands[name].requires_grad_()}
        o, state = memory_scan(**one, output_final_state=True, backend="triton")
        g = torch.Generator().manual_seed(1)
        weights = [torch.randn(x.shape, generator=g, dtype=torch.float64).to(x) for x in (o, state)]
        (grad,) = torch.autograd.grad([o, state], [one[name]], weights)
        assert bench.distance(grad, wanted[f"d {name}"]) < 1e-5
        operands[name] = operands[name].detach()
    # only the final state is used: the output's gradient never comes
    k = operands["k"].requires_grad_()
    memory_scan(**{**operands, "k": k}, output_final_state=True, backend="triton")[1].sum().backward()
    assert k.grad.isfinite().all() and k.grad.norm() > 0


def test_halves_equal_the_whole(bench):
    operands = make(bench, "channel", "channel", "channel", normalize=True, B=1, T=23)
    o, state = memory_scan(**operands, output_final_state=True, backend="triton")
    middle, parts = operands["initial_state"], []
    for times in (slice(0, 7), slice(7, 23)):
        part, middle = memory_scan(
            **bench.cut(operands, times),
            normalize=True,
            initial_state=middle,
            output_final_state=True,
            backend="triton",
        )
        parts.append(part)
    assert bench.distance(torch.cat(parts, 1), o) < 1e-6
    assert all(bench.distance(a, b) < 1e-6 for a, b in zip(middle, state, strict=True))


@pytest.mark.parametrize("kinds", STAGES.values(), ids=STAGES.keys())
@pytest.mark.parametrize("normalize", (False, True))
def test_steps_equal_the_scan(bench, kinds, normalize):
    with torch.no_grad():
        operands = make(bench, *kinds, normalize=normalize, B=2, T=5, K=6, V=18)
        wanted, final = memory_scan(**operands, output_final_state=True, backend="loop")
        start = operands["initial_state"]
        state = tuple(x.clone() for x in start) if normalize else start.clone()
        held = state[0] if normalize else state
        for t in range(5):
            o, state = memory_step(**bench.cut(operands, t), state=state, normalize=normalize, backend="triton")
            assert bench.distance(o, wanted[:, t]) < 1e-5
        assert (state[0] if normalize else state) is held, "the state is updated in place"
        for a, b in zip(state if normalize else (state,), final if normalize else (final,), strict=True):
            assert bench.distance(a, b) < 1e-5


def test_steps_have_gradients(bench):
    operands = make(bench, "scalar", "scalar", B=1, T=1)
    o, _ = memory_step(**bench.cut(operands, 0), state=operands["initial_state"].detach().clone(), backend="triton")
    o.sum().backward()
    assert operands["k"].grad.norm() > 0


def test_what_it_refuses(bench):
    operands = bench.make("scalar", "scalar", dtype=torch.float64, device=DEVICE)
    with pytest.raises(ValueError, match="float64"):
        memory_scan(**operands, backend="triton")
    assert explain_backend(**operands).backend == "chunked"
    assert "float64" in explain_backend(**operands).reasons["triton"]
    narrow = make(bench, "scalar")
    assert explain_backend(**narrow).backend == ("triton" if CUDA else "chunked")


def test_same_input_same_bits(bench):
    operands = make(bench, "channel", "scalar", "scalar", B=1, T=20)
    first = bench.run(operands, "triton")
    bench.assert_same(bench.run(operands, "triton"), first, 0)
