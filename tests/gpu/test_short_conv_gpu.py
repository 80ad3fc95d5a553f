"""The fused convolution and the gated norm at a training step's size on a GPU: against float64, the same bits, at scale."""

import pytest
import torch

from mnemolab.kernels import rms_norm_gated, short_conv_qkv
from mnemolab.kernels.triton import short_conv as form
from tests.gpu.graphs import captured

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
SIZES = (128, 128, 128)


def draw(*shape, seed=0, dtype=torch.bfloat16):
    g = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, device="cuda", generator=g).to(dtype)


def run(mixed, weight, cache=None, wide=False, **options):
    """Results, and gradients of everything for fixed cotangents, all gates' columns included."""
    leaves = [x.double() if wide else x for x in (mixed, weight, *(() if cache is None else (cache,)))]
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    found = short_conv_qkv(leaves[0], leaves[1], cache=leaves[2] if cache is not None else None, sizes=SIZES, **options)
    cotangents = [draw(*y.shape, seed=9 + i).to(y.dtype) for i, y in enumerate(found)]
    return [*found, *torch.autograd.grad(found, leaves, cotangents)]


def errors(found, wanted):
    return [float(((a.double() - b).norm() / b.norm()).detach()) for a, b in zip(found, wanted, strict=True)]


@pytest.mark.parametrize("options", ({"unit": 64}, {"unit": 32}, {"silu": (False, False, True)}), ids=str)
@pytest.mark.parametrize("cached", (False, True))
def test_a_training_step_against_float64(options, cached):
    mixed, weight = draw(256, 256, 512), draw(384, 4, seed=1, dtype=torch.float32)
    cache = draw(256, 3, 384, seed=2) if cached else None
    found = run(mixed, weight, cache, **options)
    # one rounding to bfloat16 costs 1.65e-3, the filters' gradient is float32 and a sum of 65536 exact products
    assert max(errors(found, run(mixed, weight, cache, wide=True, **options))) < 3e-3
    again = run(mixed, weight, cache, **options)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize("B, T", ((1, 1), (3, 2), (1, 4096), (5, 33), (1000, 3)))
@pytest.mark.parametrize("W", (1, 4, 5))
def test_any_batch_and_length(B, T, W):
    """W = 5 is beyond the fused form and runs as plain operations."""
    mixed, weight = draw(B, T, 512, dtype=torch.float32), draw(384, W, seed=1, dtype=torch.float32)
    cache = draw(B, W - 1, 384, seed=2, dtype=torch.float32) if W > 1 else None
    found = run(mixed, weight, cache, unit=64)
    wanted = run(mixed, weight, cache, unit=64, wide=True)
    for name, (a, b) in enumerate(zip(found, wanted, strict=True)):
        if b.numel():
            a, b = a.detach().double(), b.detach()  # torch warns, once a process, of a number with a history
            assert float((a - b).norm()) <= 1e-5 * float(b.norm()), name


def test_more_than_two_to_the_31_elements():
    B, T = 1100, 4096
    mixed, weight = draw(1, T, 512).expand(B, -1, -1).contiguous(), draw(384, 4, seed=1, dtype=torch.float32)
    assert mixed.numel() > 2**31
    mixed.requires_grad_()
    q, k, v, gate, _ = short_conv_qkv(mixed, weight, sizes=SIZES, unit=64)
    (d,) = torch.autograd.grad((q, k, v, gate), mixed, (q.detach(), k.detach(), v.detach(), gate.detach()))
    for x in (q, k, v, d):
        assert torch.equal(x[-1], x[0]) and x[-1].isfinite().all() and x[-1].abs().sum() > 0


def test_the_gate_is_read_where_it_stands():
    mixed, x, w = draw(64, 256, 512), draw(64, 256, 2, 64, seed=1), draw(64, seed=2, dtype=torch.float32)
    gate = mixed[..., 384:].unflatten(-1, (2, 64)).requires_grad_()
    found = rms_norm_gated(x, gate, w, activation="sigmoid")
    wanted = rms_norm_gated(x.double(), gate.double(), w.double(), activation="sigmoid")
    dy = draw(*found.shape, seed=3)
    pairs = [
        (found, wanted),
        *zip(*(torch.autograd.grad(y, gate, dy.to(y.dtype)) for y in (found, wanted)), strict=True),
    ]
    assert max(errors(*zip(*((a, b.double()) for a, b in pairs), strict=True))) < 3e-3


def test_in_a_graph():
    mixed, weight = draw(8, 64, 512), draw(384, 4, seed=1, dtype=torch.float32)

    def step():
        leaves = mixed.detach().requires_grad_(), weight.detach().requires_grad_()  # of the stream that captures
        q, k, v, gate, _ = short_conv_qkv(*leaves, sizes=SIZES, unit=64)
        loss = (q * k + v * gate).float().square().sum()
        return torch.autograd.grad(loss, leaves)

    graph, held = captured(step)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(step(), held, strict=True))


def test_the_fused_form_runs(monkeypatch):
    calls = []
    kept = form.short_conv_qkv
    monkeypatch.setattr(form, "short_conv_qkv", lambda *args: (calls.append(args), kept(*args))[1])
    run(draw(2, 8, 512), draw(384, 4, seed=1, dtype=torch.float32), unit=64)
    run(draw(2, 8, 512), draw(384, 5, seed=1, dtype=torch.float32), unit=64)
    assert len(calls) == 1
