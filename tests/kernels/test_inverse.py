"""The inverse of I + T, and what hard keys do to it."""

import pytest
import torch
from torch.nn.functional import normalize as unit

from mnemolab.kernels import memory_scan
from mnemolab.kernels.chunk_decay import below_diagonal, block_sizes
from mnemolab.kernels.chunk_inverse import unit_lower_inverse


def inverse(T):
    C = T.shape[-1]
    return unit_lower_inverse([below_diagonal(T, h).reshape(-1, h, h) for h in block_sizes(C)], T)


def erase_pairs(keys, C, beta=0.99):
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(3, C, 16, generator=g).double()
    k = {"random": noise, "near_collinear": 1 + 0.05 * noise, "identical": torch.ones(3, C, 16).double()}[keys]
    k = unit(k, dim=-1)
    return (beta * k @ k.mT).tril(-1)


@pytest.mark.parametrize("keys", ("random", "near_collinear", "identical"))
@pytest.mark.parametrize("C", (1, 2, 4, 16, 32, 64, 128))
def test_float32_inverse_keeps_its_digits(bench, keys, C):
    """Fault 49: a Neumann series on near-collinear keys has error 1e9 at C = 64; blocks keep 1e-5."""
    T = erase_pairs(keys, C)
    exact = torch.linalg.inv(torch.eye(C).double() + T)
    assert bench.distance(inverse(T.float().contiguous()), exact) < 1e-5
    assert bench.distance(inverse(T.contiguous()), exact) < 1e-12


def test_only_what_lies_below_the_diagonal_is_read():
    T = torch.randn(2, 16, 16, generator=torch.Generator().manual_seed(0)).double()
    assert torch.equal(inverse(T), inverse(T.tril(-1).contiguous()))
    eye = torch.eye(16).double()
    torch.testing.assert_close(inverse(T) @ (eye + T.tril(-1)), eye.expand(2, 16, 16), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("keys", ("near_collinear", "identical"))
@pytest.mark.parametrize("C", (16, 64))
def test_hard_keys_with_beta_near_one(bench, keys, C):
    """Fault 47: all keys equal, beta -> 1, gate at its bound: finite, and right."""
    operands = bench.make("channel", "scalar", "scalar", T=200, B=1, K=16, V=16, keys=keys, dtype=torch.float32)
    operands["erase"] = operands["write"] = bench.leaf(torch.full((1, 200, 2), torch.tensor(8.0).sigmoid().item()))
    for bound in (-5.0, -1e-3):
        operands["log_decay"] = bench.leaf(torch.full((1, 200, 2, 16), bound))
        exact = operands | {n: bench.leaf(x.double()) for n, x in bench.leaves(operands).items()}
        exact["write"] = exact["erase"]
        o, wanted = memory_scan(**operands, chunk_size=C)[0], memory_scan(**exact, backend="loop")[0]
        assert bench.distance(o, wanted) < 1e-5


@pytest.mark.slow
def test_identical_keys_over_a_long_sequence_stay_finite():
    T = 16384
    k = torch.full((1, T, 1, 4), 0.5)
    v, beta = torch.randn(1, T, 1, 4, generator=torch.Generator().manual_seed(0)), torch.full((1, T, 1), 8.0).sigmoid()
    o, _ = memory_scan(k, k, v, log_decay=torch.full((1, T, 1, 4), -5.0), erase=beta, write=beta)
    assert o.isfinite().all()


def test_keys_that_are_too_long_are_as_good_as_in_any_chunk(bench):
    """Fault 48: |k|^2 = 4 at beta = 1 makes the true inverse explode; larger chunks must not be the first to break."""
    operands = bench.make("none", "scalar", "scalar", T=24, B=1, H=1, K=8, V=4)
    operands["k"] = bench.leaf(2 * operands["k"])
    operands["erase"] = bench.leaf(torch.ones_like(operands["erase"]))
    wanted = bench.run(operands, "loop")
    scale = max(float(x.abs().max()) for x in wanted.values())
    assert scale > 1e3, "the case is meant to grow"
    for C in (1, 16, 64):
        for name, x in bench.run(operands, chunk_size=C).items():
            assert x.isfinite().all() and bench.distance(x, wanted[name]) < 1e-7, name
