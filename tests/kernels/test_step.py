"""One token at a time: checks in the caller's own shapes, the state updated in place, gradients, drift."""

import pytest
import torch

from mnemolab.errors import BadRequest
from mnemolab.kernels import memory_scan, memory_step

B, T, H, K, V = 2, 21, 2, 4, 3


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(*shape, dtype=dtype)


def test_step_checks_too():
    q, k, v = (zeros(B, H, n) for n in (K, K, V))
    with pytest.raises(BadRequest, match=r"^state has shape \(2, 2, 4, 4\)"):
        memory_step(q, k, v, zeros(B, H, K, K))
    for change, message in (
        ({"k": zeros(B, H, V)}, r"k has shape \(2, 2, 3\); with q of shape \(2, 2, 4\) it must be \(2, 2, 4\)"),
        ({"q": zeros(B, T, H, K)}, r"q has shape \(2, 21, 2, 4\); for one token it must be \(B,H,K\)"),
        ({"erase": zeros(B, T, H)}, r"erase has shape \(2, 21, 2\).*\(2, 2\) or \(2, 2, 4\)"),
    ):
        with pytest.raises(BadRequest, match=message):
            memory_step(**({"q": q, "k": k, "v": v, "state": None} | change))
    with pytest.raises(TypeError, match=r"float64.*float32"):
        memory_step(q, k, v, zeros(B, H, K, V, dtype=torch.float64))
    with pytest.raises(TypeError, match="q is a list"):
        memory_step([q], k, v, None)  # type: ignore[arg-type]


def test_a_state_that_cannot_be_updated_in_place_is_named():
    q, k, v = (zeros(B, H, n) for n in (K, K, V))
    leaf = zeros(B, H, K, V).requires_grad_()
    with pytest.raises(BadRequest, match=r"state is a leaf.*clone"):
        memory_step(q, k, v, leaf)
    with torch.no_grad():
        assert memory_step(q, k, v, leaf)[1] is leaf
    with pytest.raises(BadRequest, match=r"state is expanded.*contiguous"):
        memory_step(q, k, v, zeros(1, H, K, V).expand(B, H, K, V))
    with pytest.raises(BadRequest, match=r"state\[1\] is expanded"):
        memory_step(q, k, v, (zeros(B, H, K, V), zeros(1, H, K).expand(B, H, K)), normalize=True)


def test_a_step_after_a_loop_prefill_leaves_its_backward_pass_intact(bench):
    operands = bench.make("channel", "scalar", "scalar", T=5)
    loop, chunked = ({**operands, "backend": name} for name in ("loop", "chunked"))
    found = []
    for given in (loop, chunked):
        o, state = memory_scan(**given, output_final_state=True)
        last = {name: operands[name][:, -1] for name in ("q", "k", "v", "log_decay", "erase", "write")}
        after, _ = memory_step(**last, state=state)
        found.append(torch.autograd.grad(o.sum() + after.sum(), operands["k"])[0])
    assert (found[0] - found[1]).abs().max() < 1e-10


def test_step_updates_in_place_and_can_be_differentiated(bench):
    operands = bench.make("channel", "scalar", "scalar", T=3)
    names = ("q", "k", "v", "log_decay", "erase", "write")
    o, final = memory_scan(**operands, output_final_state=True, backend="loop")
    wanted = torch.autograd.grad(o.sum() + final.sum(), [operands[n] for n in names])
    state, outputs = operands["initial_state"].detach().clone(), []
    held = state
    for t in range(3):
        y, state = memory_step(**bench.cut(operands, t), state=state)
        outputs.append(y)
    assert state is held
    found = torch.autograd.grad(torch.stack(outputs, 1).sum() + state.sum(), [operands[n] for n in names])
    for name, a, b in zip(names, found, wanted, strict=True):
        assert bench.distance(a, b) < 1e-12, name


def test_step_drifts_no_further_than_the_scan(bench):
    """Fault 60: 4096 decode steps in bfloat16 with a float32 state against the scan."""
    operands = bench.make(
        "channel", "scalar", "scalar", B=1, T=4096, H=1, K=8, V=8, dtype=torch.bfloat16, strength=0.02
    )
    with torch.no_grad():
        _, final = memory_scan(**operands, output_final_state=True)
        state = operands["initial_state"].detach().clone()
        for t in range(4096):
            memory_step(**bench.cut(operands, t), state=state)
    assert bench.distance(state, final) < 1e-4
