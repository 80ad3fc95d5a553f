"""Some rows of a batch and their way back."""

import warnings

import pytest
import torch

from mnemolab.errors import BadRequest
from mnemolab.kernels import Rows, choose_rows, take_rows
from mnemolab.kernels.triton.table import interpreted

INDEX = torch.tensor([7, -1, 0, 3, -1, 11])


def places(index: torch.Tensor, N: int) -> torch.Tensor:
    place = torch.full((N,), -1, dtype=torch.int32)
    for r, n in enumerate(index.tolist()):
        if n >= 0:
            place[n] = r
    return place


def wanted(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    flat = x.flatten(0, 1)
    return torch.stack([flat[n] if n >= 0 else torch.ones_like(flat[0]) for n in index.tolist()])[None]


@pytest.mark.parametrize("shape", ((2, 6), (3, 4, 5), (2, 6, 2, 3)))
def test_rows_and_their_gradient(shape):
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    y = take_rows(x, choose_rows(INDEX, 12))
    assert torch.equal(y, wanted(x, INDEX))
    weight = torch.randn_like(y)
    (found,) = torch.autograd.grad(y, x, weight)
    (expected,) = torch.autograd.grad(wanted(x, INDEX), x, weight)
    assert torch.equal(found, expected)


@pytest.mark.skipif(not interpreted() and not torch.cuda.is_available(), reason="needs TRITON_INTERPRET=1 or a GPU")
@pytest.mark.parametrize("D", (1, 5, 64))
@pytest.mark.parametrize("strided", (False, True))
def test_the_triton_form(D, strided):
    from mnemolab.kernels.triton import rows as form

    device = "cuda" if torch.cuda.is_available() else "cpu"
    base = torch.randn(3, 4, 3 * D, device=device)
    x = (base[..., D : 2 * D] if strided else base[..., :D].contiguous()).requires_grad_()
    y = form.take_rows(x.flatten(0, 1), INDEX.to(device), places(INDEX, 12).to(device))
    assert torch.equal(y, wanted(x, INDEX)[0])
    weight = torch.randn_like(y)
    (found,) = torch.autograd.grad(y, x, weight)
    (expected,) = torch.autograd.grad(wanted(x, INDEX)[0], x, weight)
    assert torch.equal(found, expected)


@pytest.mark.skipif(not interpreted() and not torch.cuda.is_available(), reason="needs TRITON_INTERPRET=1 or a GPU")
@pytest.mark.parametrize(("P", "shape"), ((1, (1,)), (5, (3, 4)), (300, (17,)), (528, (128,))))
def test_column_sums(P, shape):
    from mnemolab.kernels.triton.sums import column_sums

    x = torch.randn(P, *shape, device="cuda" if torch.cuda.is_available() else "cpu")
    found = column_sums(x, torch.float32)
    torch.testing.assert_close(found, x.double().sum(0).float(), rtol=1e-5, atol=1e-5)
    assert found.shape == shape and torch.equal(found, column_sums(x, torch.float32))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_rows_are_chosen_without_waiting():
    index = INDEX.cuda()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode calls itself a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            rows = choose_rows(index, 12)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(rows.place.cpu(), places(INDEX, 12))  # type: ignore[union-attr]
    x = torch.randn(3, 4, 8, device="cuda", requires_grad=True)
    assert torch.equal(take_rows(x, rows), take_rows(x, Rows(index)))


def test_bad_rows():
    with pytest.raises(TypeError, match="int64"):
        choose_rows(torch.tensor([True]), 4)
    with pytest.raises(BadRequest, match="a row twice"):
        choose_rows(torch.tensor([2, -1, 2, -1, 5]), 6)
    with pytest.raises(BadRequest, match=r"must be \(R,\)"):
        choose_rows(torch.zeros(2, 2, dtype=torch.int64), 4)
