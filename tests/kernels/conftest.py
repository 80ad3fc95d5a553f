"""Operands of every kind, and one way to run and compare them, shared by the tests of this folder."""

from typing import Any

import pytest
import torch
from torch.nn.functional import normalize as unit

from mnemolab.kernels import memory_scan

KINDS = ("none", "scalar", "channel")
KEYS = ("random", "near_collinear", "identical", "zero")


def make_keys(keys, shape, generator):
    """Unit keys of a kind; "zero" keys are exactly 0."""
    k = torch.randn(shape, generator=generator, dtype=torch.float64)
    if keys == "near_collinear":
        k = 1 + 0.05 * k
    elif keys == "identical":
        k = k[:1, :1, :1].expand(shape)
    elif keys == "zero":
        return torch.zeros(shape, dtype=torch.float64)
    elif keys != "random":
        raise ValueError(keys)
    return unit(k, dim=-1)


def make_operands(
    decay="none", erase="none", write="none", *, normalize=False, state=True, keys="random", strength=1.0, seed=0,
    B=2, T=21, H=2, K=4, V=3, dtype=torch.float64, device="cpu",
) -> dict[str, Any]:  # fmt: skip
    """Keyword arguments of memory_scan, leaves that require a gradient. Gates are uniform in (-strength, 0) and (0, 1)."""
    g = torch.Generator().manual_seed(seed)

    def gate(kind, channels):
        shape = {"none": None, "scalar": (B, T, H), "channel": (B, T, H, channels)}[kind]
        return None if shape is None else torch.rand(shape, generator=g, dtype=torch.float64)

    q, v = (torch.randn(B, T, H, n, generator=g, dtype=torch.float64) for n in (K, V))
    k = make_keys(keys, (B, T, H, K), g)
    if normalize:  # a denominator wants positive features
        q, k = q.abs() + 0.1, k.abs()
    made = {"q": q, "k": k, "v": v, "log_decay": gate(decay, K), "erase": gate(erase, K), "write": gate(write, V)}
    if made["log_decay"] is not None:
        made["log_decay"] = -strength * made["log_decay"]
    S, n = (
        torch.randn(B, H, K, V, generator=g, dtype=torch.float64),
        torch.rand(B, H, K, generator=g, dtype=torch.float64),
    )
    made = {name: None if x is None else leaf(x.to(device, dtype)) for name, x in made.items()}
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    S, n = leaf(S.to(device, wide)), leaf(n.to(device, wide))
    return {**made, "normalize": normalize, "initial_state": ((S, n) if normalize else S) if state else None}


def cut(operands, times) -> dict[str, Any]:
    """The per-token operands at these times: a slice, or one time for memory_step."""
    names = ("q", "k", "v", "log_decay", "erase", "write")
    return {n: None if operands[n] is None else operands[n][:, times] for n in names}


def leaf(x):
    return x.detach().clone().requires_grad_()


def leaves(operands):
    """Name -> tensor of everything that gets a gradient."""
    found = {name: x for name, x in operands.items() if isinstance(x, torch.Tensor)}
    if isinstance(operands["initial_state"], tuple):
        found["initial_state"], found["initial_norm"] = operands["initial_state"]
    return found


def run(operands, backend="chunked", chunk_size=None, seed=1, **more):
    """Outputs, final state and the gradient of every leaf, for cotangents drawn from `seed`."""
    o, state = memory_scan(**operands, output_final_state=True, backend=backend, chunk_size=chunk_size, **more)
    results = {"o": o, **dict(zip(("state", "norm"), state if isinstance(state, tuple) else (state,), strict=False))}
    g = torch.Generator().manual_seed(seed)
    cotangents = [torch.randn(x.shape, generator=g, dtype=torch.float64).to(x) for x in results.values()]
    inputs = leaves(operands)
    grads = torch.autograd.grad(list(results.values()), list(inputs.values()), cotangents)
    return {name: x.detach() for name, x in results.items()} | {
        f"d {name}": x for name, x in zip(inputs, grads, strict=True)
    }


def distance(a, b, floor=0.0):
    """|a - b| / max(|b|, floor); where that is 0, |a| itself."""
    a, b = a.detach().double(), b.detach().double()
    scale = max(float(b.norm()), floor)
    return float((a - b).norm()) / (scale if scale > 0 else 1.0)


def assert_same(found, wanted, tolerance, floor=0.0):
    """Every result is finite and within `tolerance` of the wanted one, relative to its norm (to `floor` if that is more)."""
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert found[name].isfinite().all(), f"{name} is not finite"
        error = distance(found[name], wanted[name], floor)
        assert error <= tolerance, f"{name}: relative error {error:.2e} > {tolerance:.0e}"


class Bench:
    """The functions above as one fixture: test modules of this folder cannot import each other."""

    KINDS, KEYS = KINDS, KEYS
    make = staticmethod(make_operands)
    keys = staticmethod(make_keys)
    cut = staticmethod(cut)
    leaf = staticmethod(leaf)
    leaves = staticmethod(leaves)
    run = staticmethod(run)
    distance = staticmethod(distance)
    assert_same = staticmethod(assert_same)


@pytest.fixture(scope="session")
def bench():
    return Bench
