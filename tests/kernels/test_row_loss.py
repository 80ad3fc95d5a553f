"""The loss of many rows in one pass over the vocabulary, against float64."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from mnemolab.kernels.triton.table import interpreted

pytestmark = [
    pytest.mark.skipif(not interpreted() and not torch.cuda.is_available(), reason="needs TRITON_INTERPRET=1 or a GPU"),
    # logits far above the target's overflow in a first pass, whose results are thrown away
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def errors(R, N, D, scale, dtype, seed=0, learned=0.0) -> dict[str, float]:
    """Relative errors against float64 on the same numbers; `learned` moves every row towards its target's weight. `rounding` is
    what the errors may be: a float32 logit is off by a part of 2^-24 of its size, and so is the probability that it gives. Sums
    in plain order give 1.7e-6 where logits reach 900, a sixteenth of it."""
    from mnemolab.kernels.triton.row_loss import row_loss

    g = torch.Generator().manual_seed(seed)
    w = torch.randn(N, D, generator=g)
    wanted, share = torch.randint(N, (R,), generator=g), torch.rand(R, generator=g) / R
    x = scale * torch.randn(R, D, generator=g) + learned * w[wanted]
    x, w = x.to(DEVICE, dtype), w.to(DEVICE, dtype)
    wanted[3], share[3] = -100, 0.0
    wanted, share = wanted.to(DEVICE), share.to(DEVICE)
    losses, dx = torch.empty(R, device=DEVICE), torch.empty_like(x)
    p, scaled = row_loss(x, w, wanted, share, losses, dx)
    dw = p.double().T @ scaled.double()
    a, b = x.double().requires_grad_(), w.double().requires_grad_()
    expected = cross_entropy(a @ b.T, wanted, reduction="none", ignore_index=-100) * share
    expected.sum().backward()
    pairs = {"loss": (losses, expected.detach()), "d rows": (dx, a.grad), "d weight": (dw, b.grad)}
    assert not dx[3].any() and not p[3].any() and losses[3] == 0
    found = {name: float((u.double() - v).norm() / v.norm()) for name, (u, v) in pairs.items()}  # type: ignore[operator,union-attr]
    return found | {"rounding": max(5e-6, float((x.double() @ w.double().T).abs().max()) * 2**-25)}


@pytest.mark.parametrize(
    ("R", "N", "D", "scale"), ((40, 70, 20, 1.0), (33, 64, 16, 0.1), (64, 96, 32, 40.0), (20, 33, 64, 5.0))
)
def test_float32(R, N, D, scale):
    """Ragged tiles and even ones; at 40, logits hundreds above the target's."""
    found = errors(R, N, D, scale, torch.float32)
    assert max(found["loss"], found["d rows"], found["d weight"]) < found["rounding"]


def test_a_learned_row_keeps_its_small_gradient():
    """Targets at probability near 1: 1 - p comes from float32, not from a product in a shorter format."""
    found = errors(32, 64, 64, 0.0, torch.float32, learned=0.3)
    assert max(found["d rows"], found["d weight"]) < found["rounding"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("R", "N", "D", "scale"), ((4096, 8192, 128, 0.3), (300, 5000, 64, 0.1), (2048, 3000, 40, 20.0))
)
def test_bfloat16(R, N, D, scale):
    found = errors(R, N, D, scale, torch.bfloat16)
    assert found["loss"] < 1e-4 and max(found["d rows"], found["d weight"]) < 1e-2, found
