"""The chunked form is the loop, in float64 to 1e-10: outputs, final state and every gradient, for every combination."""

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch

from mnemolab.benchmarks.kernels_cpu import STAGES
from mnemolab.kernels import chunked, memory_scan, memory_step

KINDS = ("none", "scalar", "channel")
COMBINATIONS = list(product(KINDS, KINDS, KINDS))


@pytest.mark.parametrize("keys", ("random", "near_collinear", "identical", "zero"))
@pytest.mark.parametrize("kinds", COMBINATIONS, ids="-".join)
def test_chunked_equals_loop(bench, kinds, keys):
    for normalize, state in product((False, True), repeat=2):
        operands = bench.make(*kinds, normalize=normalize, state=state, keys=keys)
        wanted = bench.run(operands, "loop")
        # with one key for all tokens the normalised output is a mean that does not depend on q: its gradient is rounding
        floor = 1e-2 if normalize and keys == "identical" else 0.0
        for C in (1, 2, 16, 64):
            bench.assert_same(bench.run(operands, chunk_size=C), wanted, 1e-10, floor)


@pytest.mark.parametrize("B", (1, 4, 5, 7))
def test_batches_taken_in_parts(bench, monkeypatch, B):
    """On a CPU a large batch is worked on a few sequences at a time: the same numbers, in parts of any size."""
    for normalize in (False, True):
        operands = bench.make("channel", "scalar", "channel", B=B, normalize=normalize)
        wanted = bench.run(operands)
        for sequences in (1, 2, 3):
            monkeypatch.setattr(chunked, "_ELEMENTS_TOGETHER", sequences * 21 * 2 * 4 + 5)
            bench.assert_same(bench.run(operands), wanted, 1e-14)
        monkeypatch.undo()


@pytest.mark.parametrize("C", (1, 2, 4, 8, 16, 32, 64, 128))
def test_every_chunk_size_and_tail(bench, C):
    for T in (1, 2, 15, 17, 33):
        operands = bench.make("channel", "channel", "channel", T=T, B=1, H=1)
        bench.assert_same(bench.run(operands, chunk_size=C), bench.run(operands, "loop"), 1e-10)


@pytest.mark.parametrize("K,V", ((1, 1), (1, 7), (7, 1), (13, 5), (64, 3), (3, 64), (256, 2), (2, 256)))
def test_odd_head_sizes(bench, K, V):
    for kinds in (("channel", "channel", "channel"), ("scalar", "scalar", "scalar"), ("none", "none", "none")):
        for normalize in (False, True):
            operands = bench.make(*kinds, T=19, B=1, H=1, K=K, V=V, normalize=normalize)
            # with one channel q cancels from the normalised output: its gradient is rounding
            bench.assert_same(bench.run(operands), bench.run(operands, "loop"), 1e-10, 1e-2 if normalize else 0.0)


@pytest.mark.parametrize("kinds", STAGES.values(), ids=STAGES)
def test_backward_by_finite_differences(bench, kinds):
    operands = bench.make(*kinds, T=5, B=1, H=1, K=3, V=2)
    inputs = bench.leaves(operands)

    def scan(*values):
        return memory_scan(
            **{**operands, **dict(zip(inputs, values, strict=True))},
            output_final_state=True,
            backend="chunked",
            chunk_size=2,
        )

    assert torch.autograd.gradcheck(scan, tuple(inputs.values()), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("backend", ("loop", "chunked"))
def test_the_equation_written_with_matrices(bench, backend):
    """S = (I - k e^T) diag(lambda) S + k z^T, o = s S^T q, in numpy, one head at a time."""
    operands = bench.make("channel", "channel", "channel", T=9, B=1, H=2, K=4, V=3)
    given = {name: x.detach().numpy()[0] for name, x in bench.leaves(operands).items()}
    o, state = memory_scan(**operands, output_final_state=True, backend=backend, scale=0.7)
    for h in range(2):
        S = given["initial_state"][h]
        for t in range(9):
            q, k, v, decay, erase, write = (given[n][t, h] for n in ("q", "k", "v", "log_decay", "erase", "write"))
            S = (np.eye(4) - np.outer(k, erase * k)) @ np.diag(np.exp(decay)) @ S + np.outer(k, write * v)
            np.testing.assert_allclose(o[0, t, h].detach().numpy(), 0.7 * S.T @ q, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(state[0, h].detach().numpy(), S, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kinds", STAGES.values(), ids=STAGES)
def test_one_chunk_of_full_length_is_the_quadratic_form(bench, kinds):
    """o = A R with R from a triangular solve over the whole sequence: attention without a state."""
    T = 16
    operands = bench.make(*kinds, T=T, state=False, B=1, H=1)
    o, _ = memory_scan(**operands, chunk_size=T, scale=1.0, backend="chunked")
    given: dict[str, Any] = {
        n: None if x is None else x.detach()[0, :, 0].reshape(T, -1)
        for n, x in bench.cut(operands, slice(None)).items()
    }
    q, k, R, decay, erase, write = given.values()
    sums = torch.zeros(T, 1).double() if decay is None else decay.cumsum(0)
    lower = torch.ones(T, T, dtype=torch.float64).tril()
    weight = (sums[:, None] - sums[None]).masked_fill(lower[..., None] == 0, -torch.inf).exp().expand(T, T, q.shape[1])
    A = torch.einsum("id,jd,ijd->ij", q, k, weight)
    if write is not None:
        R = write * R
    if erase is not None:
        G = torch.einsum("id,jd,ijd->ij", erase * k, k, weight).tril(-1)
        R = torch.linalg.solve(torch.eye(T, dtype=torch.float64) + G, R)
    assert bench.distance(o[0, :, 0], A @ R) < 1e-12


@pytest.mark.parametrize("kinds", STAGES.values(), ids=STAGES)
def test_changing_the_future_leaves_the_past_bit_identical(bench, kinds):
    # 37 tokens of 32 channels in float32: several chunks, the fast matrix products, and a shorter last chunk
    one = bench.make(*kinds, T=37, K=32, V=32, dtype=torch.float32, strength=5.0)
    other = bench.make(*kinds, T=37, K=32, V=32, dtype=torch.float32, strength=5.0, seed=9)
    for backend, C in (("loop", None), ("chunked", None), ("chunked", 2), ("chunked", 64)):
        for t in (0, 3, 15, 16, 30, 36):
            mixed = dict(one)
            for name in ("q", "k", "v", "log_decay", "erase", "write"):
                if one[name] is not None:
                    mixed[name] = torch.cat([one[name][:, : t + 1], 3 * other[name][:, t + 1 :]], 1)
            before = memory_scan(**one, backend=backend, chunk_size=C)[0][:, : t + 1]
            after = memory_scan(**mixed, backend=backend, chunk_size=C)[0][:, : t + 1]
            assert torch.equal(before, after), f"{backend} C={C}: tokens after {t} reach outputs up to {t}"


@pytest.mark.parametrize("normalize", (False, True))
@pytest.mark.parametrize("kinds", STAGES.values(), ids=STAGES)
def test_splitting_anywhere_and_carrying_the_state_equals_the_whole(bench, kinds, normalize):
    operands = bench.make(*kinds, T=21, normalize=normalize)
    whole = bench.run(operands, "loop")
    for cuts in ((1,), (16,), (20,), (0, 0, 7), (5, 5, 6), (21,)):
        state, pieces, edges = operands["initial_state"], [], (0, *cuts, 21)
        for start, stop in pairwise(edges):
            piece = bench.cut(operands, slice(start, stop))
            o, state = memory_scan(
                **piece,
                normalize=normalize,
                initial_state=state,
                output_final_state=True,
                backend="chunked",
                chunk_size=4,
            )
            pieces.append(o)
        final = state if normalize else (state,)
        results = {"o": torch.cat(pieces, 1), **dict(zip(("state", "norm"), final, strict=False))}
        g = torch.Generator().manual_seed(1)
        cotangents = [torch.randn(x.shape, generator=g, dtype=torch.float64) for x in results.values()]
        inputs = bench.leaves(operands)
        grads = torch.autograd.grad(list(results.values()), list(inputs.values()), cotangents)
        found = {n: x.detach() for n, x in results.items()} | {f"d {n}": x for n, x in zip(inputs, grads, strict=True)}
        bench.assert_same(found, whole, 1e-10)


@pytest.mark.parametrize("normalize", (False, True))
@pytest.mark.parametrize("kinds", STAGES.values(), ids=STAGES)
def test_prefill_then_decode_is_the_full_pass(bench, kinds, normalize):
    operands = bench.make(*kinds, T=21, normalize=normalize, state=False)
    o, final = memory_scan(**operands, output_final_state=True)
    with torch.no_grad():
        outputs, state = memory_scan(**bench.cut(operands, slice(0, 13)), normalize=normalize, output_final_state=True)
        steps = [outputs]
        for t in range(13, 21):
            held = state
            y, state = memory_step(**bench.cut(operands, t), state=state, normalize=normalize)
            assert state is held, "the state is updated in place"
            steps.append(y.unsqueeze(1))
    assert bench.distance(torch.cat(steps, 1), o) < 1e-12
    for a, b in zip(state if normalize else (state,), final if normalize else (final,), strict=True):
        assert bench.distance(a, b) < 1e-12


def test_segments_compose_by_prefix_scan(bench):
    """A segment is (M, S0): its state is M S_in + S0. Composing segments in any bracketing equals the sequence."""
    operands = bench.make("channel", "channel", "channel", T=24, K=4, V=4, B=1, H=1)

    def segment(start, stop):
        cut = bench.cut(operands, slice(start, stop))
        _, S0 = memory_scan(**cut, output_final_state=True)
        cut["write"] = torch.zeros_like(cut["write"])  # no write: the state is M times the entering one
        _, M = memory_scan(**cut, initial_state=torch.eye(4, dtype=torch.float64)[None, None], output_final_state=True)
        return M, S0

    def then(first, second):
        return second[0] @ first[0], second[0] @ first[1] + second[1]

    a, b, c = segment(0, 7), segment(7, 16), segment(16, 24)
    M, S0 = then(a, then(b, c))
    other = then(then(a, b), c)
    assert bench.distance(M, other[0]) < 1e-12
    _, final = memory_scan(**operands, output_final_state=True)
    assert bench.distance(M @ operands["initial_state"] + S0, final) < 1e-12


def test_left_padding_is_inert(bench):
    operands = bench.make("channel", "channel", "channel", T=13)
    o, final = memory_scan(**operands, output_final_state=True)
    longer = {n: torch.nn.functional.pad(x, (0, 0, 0, 0, 6, 0)) for n, x in bench.cut(operands, slice(None)).items()}
    padded = operands | longer
    for backend in ("loop", "chunked"):
        again, state = memory_scan(**padded, output_final_state=True, backend=backend)
        assert bench.distance(again[:, 6:], o) < 1e-12
        assert bench.distance(state, final) < 1e-12
