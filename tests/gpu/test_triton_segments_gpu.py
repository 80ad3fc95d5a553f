"""Long sequences of few heads on a GPU, where the table cuts them into segments: exact, the same bits again, captured, compiled."""

from dataclasses import replace

import pytest
import torch

from mnemolab.kernels import memory_scan
from mnemolab.kernels.triton import scan
from tests.gpu.graphs import captured
from tests.gpu.test_triton_scan_gpu import KINDS, check, error, make, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STAGES = ("linear", "scalar_decay", "mamba2", "gla", "deltanet", "gated_deltanet", "kda", "gated_deltanet2")


@pytest.fixture
def forced(monkeypatch):
    """Calling it with a number gives every scan from now on so many segments."""
    chosen = scan.choose

    def force(number):
        monkeypatch.setattr(scan, "choose", lambda *a: replace(chosen(*a), segments=number))
        scan._known_geometry.cache_clear()

    yield force
    scan._known_geometry.cache_clear()


def cut_by_the_table(kind, B, T, H, K, V, dtype=torch.bfloat16):
    return scan._geometry((B, T, H, K, V), *KINDS[kind], False, 0.5, dtype).segments


# with erase a denominator may vanish
@pytest.mark.parametrize(
    "kind, normalize", [(kind, False) for kind in STAGES] + [(kind, True) for kind in STAGES if not KINDS[kind][1]]
)
def test_few_heads_and_many_tokens(kind, normalize):
    shape = 8, 4096, 2, 64, 64
    assert cut_by_the_table(kind, *shape) > 4
    check(kind, *shape, strength=0.05, normalize=normalize)


@pytest.mark.parametrize("kind", STAGES)
def test_a_ragged_end_and_unequal_heads(kind):
    shape = 1, 10007, 3, 48, 100
    assert cut_by_the_table(kind, *shape) > 4
    check(kind, *shape, strength=0.05)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float32))
@pytest.mark.parametrize("D", (16, 32, 64, 128))
@pytest.mark.parametrize("kind", ("scalar_decay", "gated_deltanet", "kda"))
def test_head_sizes_and_dtypes(kind, D, dtype):
    # of at least eight chunks each, which have 64 tokens where there is nothing to solve
    assert cut_by_the_table(kind, 1, 2050, 2, D, D, dtype) >= 4
    check(kind, 1, 2050, 2, D, D, dtype, strength=0.05)


@pytest.mark.parametrize("number", (2, 3, 7, 1000))
@pytest.mark.parametrize("kind", ("linear", "gated_deltanet", "kda"))
def test_any_number_is_one(forced, kind, number):
    x = make(kind, 2, 700, 2, 32, 32, torch.float32, strength=0.05)
    state = torch.randn(2, 2, 32, 32, device="cuda")
    forced(1)
    wanted = run(x, "triton", state=state)
    forced(number)
    found = run(x, "triton", state=state)
    for name, value in found.items():
        assert error(value, wanted[name]) < 1e-5, name


@pytest.mark.parametrize("strength", (6.0, 200.0, 1e4))
@pytest.mark.parametrize("kind", ("gated_deltanet", "kda", "gla", "scalar_decay"))
def test_extreme_gates(forced, kind, strength):
    forced(5)
    check(kind, 1, 150, 2, 32, 32, torch.float32, strength=strength, cancels=True)


def test_wipes(forced):
    forced(6)
    for kind in ("kda", "scalar_decay", "gated_deltanet", "gla"):
        x = make(kind, 2, 200, 2, 32, 32)
        x["log_decay"][:, 64] = x["log_decay"][:, 100] = -torch.inf
        assert all(value.isfinite().all() for value in run(x, "triton").values())


def test_halves_with_carried_state_and_its_gradient():
    x = make("kda", 2, 3000, 2, 32, 32, torch.float32, strength=0.02)
    state = torch.randn(2, 2, 32, 32, device="cuda", requires_grad=True)
    whole, final = memory_scan(**x, initial_state=state, output_final_state=True)
    (wanted,) = torch.autograd.grad(whole.square().sum() + final.square().sum(), state)
    first, middle = memory_scan(**{n: y[:, :1301] for n, y in x.items()}, initial_state=state, output_final_state=True)
    second, last = memory_scan(**{n: y[:, 1301:] for n, y in x.items()}, initial_state=middle, output_final_state=True)
    (found,) = torch.autograd.grad(first.square().sum() + second.square().sum() + last.square().sum(), state)
    assert error(torch.cat([first, second], 1), whole) < 1e-5 and error(last, final) < 1e-5
    assert error(found, wanted) < 1e-5


def test_cuda_graph():
    x = make("gated_deltanet", 2, 2048, 2, 32, 32, strength=0.05)

    def both():
        leaves = {name: value.detach().requires_grad_() for name, value in x.items()}
        o, _ = memory_scan(**leaves)
        return [o.detach(), *torch.autograd.grad(o.float().square().sum(), list(leaves.values()))]

    graph, held = captured(both)
    x["q"].mul_(0.5)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(held, both(), strict=True))


@pytest.mark.filterwarnings("ignore")
def test_compiled_without_a_break():
    """torch.compile takes a sequence whole, so its numbers are near those of segments, and not their bits."""

    def f(q, k, v, g, beta):
        return memory_scan(q, k, v, log_decay=g, erase=beta, write=beta)[0]

    x = [y.requires_grad_() for y in list(make("kda", 1, 2000, 2, 32, 32, strength=0.05).values())[:5]]
    o, found = f(*x), torch.compile(f, fullgraph=True)(*x)
    # either is rounded to bfloat16, 1.7e-3 each time, and gradients accumulate, 4e-3 and less each against float64
    assert error(found, o) < 5e-3
    for a, b in zip(torch.autograd.grad(found.sum(), x), torch.autograd.grad(o.sum(), x), strict=True):
        assert error(a, b) < 2e-2
