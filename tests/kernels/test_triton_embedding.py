"""The Triton embedding is torch's, and the gradient of its table index_add in float64; interpreted, then as compiled code."""

from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F

from mnemolab.errors import BadRequest
from mnemolab.kernels import embedding
from mnemolab.kernels.neighbours.embedding import token_order

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)

from mnemolab.kernels.triton import embedding as form
from tests.kernels.programs import told_by

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def heavy(M, N, share=0.6, seed=3):
    """Random tokens, of which a share is one."""
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(N, (M,), generator=g)
    tokens[torch.rand(M, generator=g) < share] = N // 2
    return tokens


TOKENS = {
    "random": (torch.randint(23, (2, 35), generator=torch.Generator().manual_seed(1)), 23),
    "all equal": (torch.full((3, 23), 4), 6),
    "all distinct": (torch.randperm(70, generator=torch.Generator().manual_seed(2)).view(2, 35), 80),
    "one heavy": (heavy(75, 30).view(3, 25), 30),
    "one row": (torch.zeros(2, 37, dtype=torch.int64), 1),
    "one token": (torch.tensor([[2]]), 5),
    "not contiguous": (heavy(75, 30).view(25, 3).t(), 30),
    "int32": (heavy(70, 20).view(2, 35).int(), 20),
}
# one row of a chunk to a tile and several levels; tiles that carry; the real sizes, of one level here
LEVELS = {
    "small": (form.Level(2, 2, 16, 1), form.Level(4, 1, 16, 1)),
    "no carry": (form.Level(4, 1, 16, 1), form.Level(2, 3, 16, 1)),
    "real": (form.FIRST, form.LATER),
}


@pytest.fixture(autouse=True)
def level(request, monkeypatch):
    for name, value in zip(("FIRST", "LATER"), LEVELS[getattr(request, "param", "small")], strict=True):
        monkeypatch.setattr(form, name, value)


def both(tokens, weight, dy):
    """(y, dweight) of the Triton form, and of torch with the gradient in float64. An order given changes no bit."""
    leaf = weight.to(DEVICE).requires_grad_()
    y = form.embedding(tokens.to(DEVICE), leaf)
    (dweight,) = torch.autograd.grad(y, leaf, dy.to(DEVICE))
    known = token_order(tokens.to(DEVICE).reshape(1, -1), weight.shape[0])
    again = form.embedding(tokens.to(DEVICE), leaf, *(x[0] for x in known))
    (same,) = torch.autograd.grad(again, leaf, dy.to(DEVICE))
    assert torch.equal(again, y) and torch.equal(same.isnan(), dweight.isnan())
    assert torch.equal(same.nan_to_num(), dweight.nan_to_num())
    wanted = torch.zeros(weight.shape, dtype=torch.float64)
    wanted.index_add_(0, tokens.flatten().long(), dy.reshape(-1, weight.shape[1]).double())
    return (y.detach().cpu(), dweight.cpu()), (F.embedding(tokens, weight), wanted)


every_level = pytest.mark.parametrize("level", LEVELS, indirect=True)
the_real_one = pytest.mark.parametrize("level", ["real"], indirect=True)


@every_level
@pytest.mark.parametrize(("kind", "D"), [*((kind, 3) for kind in TOKENS), ("one heavy", 1), ("one heavy", 18)])
def test_rows_and_the_gradient_of_the_table(kind, D, level):
    tokens, N = TOKENS[kind]
    found, wanted = both(tokens, draw(N, D), draw(*tokens.shape, D, seed=5))
    assert torch.equal(found[0], wanted[0])
    torch.testing.assert_close(found[1].double(), wanted[1], rtol=0, atol=2e-6 * max(1.0, float(wanted[1].abs().max())))
    assert not found[1][wanted[1].abs().sum(1) == 0].any()


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_narrow_rows_are_summed_in_float32(dtype):
    tokens = heavy(75, 30).view(3, 25)
    found, wanted = both(tokens, draw(30, 4, dtype=dtype), draw(3, 25, 4, seed=5, dtype=dtype))
    assert found[0].dtype == found[1].dtype == dtype
    assert torch.equal(found[0], wanted[0])
    # each sum is rounded once; the interpreter cuts bfloat16 off instead
    torch.testing.assert_close(found[1].double(), wanted[1], rtol=2**-7, atol=1e-5)


def test_every_number_of_rows():
    """Every way in which runs meet the edges of chunks, the last one not full."""
    for M in range(1, 20):
        tokens = torch.randint(4, (M,), generator=torch.Generator().manual_seed(M))
        found, wanted = both(tokens, draw(4, 2), draw(M, 2, seed=M))
        torch.testing.assert_close(found[1].double(), wanted[1], rtol=0, atol=5e-6)


def test_the_same_bits_each_time_and_a_nan_stays_with_its_token():
    tokens, weight, dy = heavy(60, 9), draw(9, 3), draw(60, 3, seed=5)
    first = both(tokens, weight, dy)[0][1]
    assert torch.equal(first, both(tokens, weight, dy)[0][1])
    dy[int((tokens == 2).nonzero()[0])] = float("nan")
    spoilt = both(tokens, weight, dy)[0][1]
    assert spoilt[2].isnan().all()
    others = torch.arange(9) != 2
    assert torch.equal(spoilt[others], first[others])


def test_tokens_outside_read_nothing_give_nan_and_have_no_gradient():
    weight = draw(300, 3).to(DEVICE).requires_grad_()
    tokens = torch.tensor([[5, 300, -1, 299], [2**40, -(2**33), 5, 65541]], device=DEVICE)
    y = form.embedding(tokens, weight)
    known = (tokens >= 0) & (tokens < 300)
    assert y[~known].isnan().all() and torch.equal(y[known], weight[tokens[known]])
    (found,) = torch.autograd.grad(y, weight, torch.ones_like(y))
    wanted = torch.zeros_like(weight)
    wanted[5], wanted[299] = 2.0, 1.0
    assert torch.equal(found, wanted)


def test_a_tied_table_gathers_both_gradients():
    tokens, start = heavy(60, 12).view(3, 20).to(DEVICE), draw(12, 6).to(DEVICE)
    found = []
    for lookup in (form.embedding, F.embedding):
        weight = start.clone().requires_grad_()
        logits = F.linear(torch.tanh(lookup(tokens, weight)), weight)
        logits.logsumexp(-1).sum().backward()
        found.append(weight.grad)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


def test_no_second_derivative_and_none_that_nobody_asked_for():
    weight = draw(5, 3).to(DEVICE).requires_grad_()
    tokens = torch.tensor([[1, 2, 1]], device=DEVICE)
    with pytest.raises(RuntimeError, match="twice"):
        torch.autograd.grad(form.embedding(tokens, weight).square().sum(), weight, create_graph=True)
    with torch.no_grad():
        assert not form.embedding(tokens, weight).requires_grad
    assert not form.embedding(tokens, weight.detach()).requires_grad


@pytest.mark.parametrize(
    ("N", "dtype"), ((128, torch.int8), (129, torch.int16), (32768, torch.int16), (32769, torch.int32))
)
def test_keys_are_as_narrow_as_they_can_be(N, dtype):
    assert form.key_dtype(N) == dtype


@pytest.mark.parametrize("shape", ((0, 5), (5, 0), (2, 5)))
def test_the_plain_form(shape):
    weight = draw(7, 4).requires_grad_()
    tokens = torch.full(shape, 3)
    y = embedding(tokens, weight)
    assert y.shape == (*shape, 4)
    y.sum().backward()
    assert float(weight.grad.sum()) == tokens.numel() * 4


def test_what_is_refused():
    weight = draw(7, 4)
    with pytest.raises(IndexError):
        embedding(torch.tensor([[7]]), weight)
    with pytest.raises(BadRequest, match=r"\(N,D\)"):
        embedding(torch.tensor([[1]]), weight[0])
    with pytest.raises(TypeError, match="int64"):
        embedding(torch.tensor([[1.0]]), weight)
    with pytest.raises(TypeError, match="weight"):
        embedding(torch.tensor([[1]]), weight.long())


def compiled(*jobs):
    rows = told_by("ptx_embedding.py", *jobs)
    assert len(rows) == len(jobs)
    for row in rows:
        assert row["y"] == 0 and row["unseen"] == 0, row
        # bfloat16 rounds each sum once
        assert row["dw"] <= (3e-7 if ":fp32:" in row["job"] else 2e-3), row


@the_real_one
def test_the_compiled_code(level):
    """The PTX itself, two levels of it: vectors along rows, and rows that no vector load divides."""
    compiled("200:300:128:fp32:filler", "150:40:33:fp32:random")


@pytest.mark.slow
@the_real_one
def test_the_compiled_code_on_three_levels(level):
    compiled("150:300:128:bf16:filler", "9000:60:4:fp32:filler", "600:33000:16:fp32:random", "200:20:300:fp32:filler")
