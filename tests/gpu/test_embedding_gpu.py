"""The embedding at a training step's size on a GPU: exact rows, float64's gradient, the same bits each time, and in a graph."""

import pytest
import torch
import torch.nn.functional as F

from mnemolab.kernels import embedding
from mnemolab.kernels.neighbours.embedding import TokenOrder, token_order
from mnemolab.kernels.triton import embedding as form
from tests.gpu.graphs import captured

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

N, D = 8192, 128


def half_filler(shape=(256, 256), N=N, seed=0):
    g = torch.Generator(device="cuda").manual_seed(seed)
    tokens = torch.randint(N, shape, generator=g, device="cuda")
    tokens[torch.rand(shape, generator=g, device="cuda") < 0.5] = 7
    return tokens


def draw(*shape, dtype=torch.float32, seed=1):
    g = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(shape, generator=g, device="cuda").to(dtype)


def gradient(tokens, weight, dy):
    leaf = weight.detach().requires_grad_()
    return torch.autograd.grad(embedding(tokens, leaf), leaf, dy)[0]


def in_float64(tokens, weight, dy):
    zero = torch.zeros(weight.shape, dtype=torch.float64, device="cuda")
    return zero.index_add_(0, tokens.flatten(), dy.reshape(-1, weight.shape[1]).double())


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
@pytest.mark.parametrize(
    ("shape", "N", "D"),
    (
        ((256, 256), N, D), ((256, 256), N, 64), ((64, 1024), 100, 128), ((70, 71), 40000, 33), ((8, 1000), 300, 300),
        ((1, 5000), 1, 16), ((33, 4096), 50000, 256),
    ),
)  # fmt: skip
def test_rows_and_gradient(shape, N, D, dtype):
    tokens, weight, dy = half_filler(shape, N) % N, draw(N, D, dtype=dtype), draw(*shape, D, dtype=dtype, seed=2)
    assert torch.equal(embedding(tokens, weight), F.embedding(tokens, weight))
    found, wanted = gradient(tokens, weight, dy).double(), in_float64(tokens, weight, dy)
    # narrow types round the float32 sum once
    rounding = {torch.float32: 0.0, torch.bfloat16: 2**-8, torch.float16: 2**-10}[dtype]
    allowed = rounding * wanted.abs() + 2e-6 * in_float64(tokens, weight, dy.abs())
    assert bool(((found - wanted).abs() <= allowed).all())
    assert not found[wanted.abs().sum(1) == 0].any()


@pytest.mark.parametrize("kind", ("equal", "distinct", "sorted"))
def test_tokens_of_one_kind(kind):
    M = 1 << 16
    tokens = {
        "equal": torch.full((M,), 3, device="cuda"),
        "distinct": torch.randperm(M, device="cuda"),
        "sorted": torch.arange(M, device="cuda") // 65,
    }[kind]
    weight, dy = draw(M, 32), draw(M, 32, seed=2)
    found, wanted = gradient(tokens, weight, dy).double(), in_float64(tokens, weight, dy)
    assert bool(((found - wanted).abs() <= 2e-6 * in_float64(tokens, weight, dy.abs())).all())


def test_the_same_bits_each_time_and_with_an_order_given():
    tokens, weight, dy = half_filler(), draw(N, D), draw(256, 256, D, seed=2)
    first = gradient(tokens, weight, dy)
    for _ in range(5):
        assert torch.equal(first, gradient(tokens, weight, dy))
    block = token_order(torch.stack((half_filler(seed=5).flatten(), tokens.flatten())), N)
    leaf = weight.detach().requires_grad_()
    y = embedding(tokens, leaf, TokenOrder(*(x[1] for x in block)))
    assert torch.equal(torch.autograd.grad(y, leaf, dy)[0], first)


def test_in_a_graph():
    """Captured once and replayed on other tokens, it is the eager one bit for bit; the tied head's gradient is added."""
    tokens, weight, dy = half_filler(), draw(N, D), draw(256, 256, D, seed=2)

    def step():
        leaf = weight.detach().requires_grad_()
        y = embedding(tokens, leaf)
        return (y.detach(), *torch.autograd.grad([y, leaf.square()], leaf, [dy, torch.ones_like(leaf)]))

    graph, held = captured(step)
    for seed in (3, 4):
        tokens.copy_(half_filler(seed=seed))
        graph.replay()
        found = [x.clone() for x in held]
        for a, b in zip(found, step(), strict=True):
            assert torch.equal(a, b)


def test_unknown_tokens_give_nan_and_nothing_else_is_touched():
    tokens, weight, dy = half_filler(), draw(N, D), draw(256, 256, D, seed=2)
    clean = gradient(tokens, weight, dy * (tokens != 7)[..., None])
    tokens[tokens == 7] = 1 << 40
    y = embedding(tokens, weight)
    assert torch.equal(y.isnan().all(-1), tokens == 1 << 40)
    found = gradient(tokens, weight, dy)
    assert not found[7].any()
    assert torch.allclose(found, clean, rtol=0, atol=1e-4)


def test_few_tokens_take_torchs_kernels(monkeypatch):
    weight, asked = draw(50, 8), []
    monkeypatch.setattr(form, "embedding", lambda tokens, weight: asked.append(tokens.numel()))
    for count in (1, 4095, 4096):
        embedding(torch.zeros(1, count, dtype=torch.int64, device="cuda"), weight)
    assert asked == [4096]
