"""What comes in: bad operands are named, odd ones (strides, dtypes, empty, NaN in a neighbour) change nothing."""

import gc
from typing import Any

import pytest
import torch

from mnemolab.errors import BadRequest
from mnemolab.kernels import explain_backend, memory_scan, memory_step

B, T, H, K, V = 2, 21, 2, 4, 3
STAGES = (("none", "none", "none"), ("none", "scalar", "scalar"), ("scalar", "scalar", "scalar"), ("channel",) * 3)
stages = pytest.mark.parametrize("kinds", STAGES, ids="-".join)
both = pytest.mark.parametrize("backend", ("loop", "chunked"))


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(*shape, dtype=dtype)


def good(**more) -> dict[str, Any]:
    return {"q": zeros(B, T, H, K), "k": zeros(B, T, H, K), "v": zeros(B, T, H, V)} | more


@pytest.mark.parametrize(
    "change,error,parts",
    (
        ({"log_decay": zeros(B, T, H) + 0.5}, BadRequest, ("log_decay", "0.5", "<= 0")),
        ({"log_decay": zeros(B, T, H) + 1e-6}, BadRequest, ("log_decay", "1e-06", "<= 0")),
        ({"log_decay": zeros(B, T, H, K) + torch.inf}, BadRequest, ("log_decay", "inf")),
        ({"log_decay": zeros(B, T, H) * torch.nan}, BadRequest, ("log_decay", "nan")),
        ({"log_decay": zeros(B, T, H, V)}, BadRequest, ("log_decay", "(2, 21, 2, 3)", "(2, 21, 2, 4)")),
        ({"log_decay": zeros(B, T)}, BadRequest, ("log_decay", "(2, 21)", "(2, 21, 2)")),
        ({"erase": zeros(B, T, H, V)}, BadRequest, ("erase", "(2, 21, 2, 3)")),
        ({"erase": zeros(B, 1, H)}, BadRequest, ("erase", "(2, 1, 2)")),
        ({"write": zeros(B, T, H, K)}, BadRequest, ("write", "(2, 21, 2, 4)")),
        ({"k": zeros(B, T, H, V)}, BadRequest, ("k ", "(2, 21, 2, 3)", "(2, 21, 2, 4)")),
        ({"v": zeros(B, T - 1, H, V)}, BadRequest, ("v ", "(2, 20, 2, 3)")),
        ({"v": zeros(B, T, H)}, BadRequest, ("v ", "(B,T,H,V)")),
        ({"q": zeros(B, T, H * K)}, BadRequest, ("q ", "(B,T,H,K)")),
        ({"q": zeros(B, T, H, 257), "k": zeros(B, T, H, 257)}, BadRequest, ("K=257", "256")),
        ({"v": zeros(B, T, H, 0)}, BadRequest, ("V=0",)),
        ({"initial_state": zeros(B, H, V, K)}, BadRequest, ("initial_state", "(2, 2, 3, 4)", "(2, 2, 4, 3)")),
        ({"initial_state": (zeros(B, H, K, V), zeros(B, H, K))}, BadRequest, ("initial_state", "tuple", "normalize")),
        ({"initial_state": zeros(B, H, K, V), "normalize": True}, BadRequest, ("initial_state", "pair")),
        ({"initial_state": (zeros(B, H, K, V), zeros(B, H, V)), "normalize": True}, BadRequest, ("initial_state[1]",)),
        ({"q": zeros(B, T, H, K, dtype=torch.int64)}, TypeError, ("q ", "int64")),
        ({"k": zeros(B, T, H, K, dtype=torch.complex64)}, TypeError, ("k ", "complex64")),
        ({"v": zeros(B, T, H, V, dtype=torch.bool)}, TypeError, ("v ", "bool")),
        ({"erase": zeros(B, T, H, dtype=torch.int32)}, TypeError, ("erase", "int32")),
        ({"erase": 1.0}, TypeError, ("erase", "float")),
        ({"v": None}, TypeError, ("v ", "NoneType")),
        ({"initial_state": zeros(B, H, K, V, dtype=torch.int64)}, TypeError, ("initial_state", "int64")),
        ({"scale": "1"}, TypeError, ("scale", "'1'")),
        ({"scale": torch.ones(())}, TypeError, ("scale",)),
        ({"scale": True}, TypeError, ("scale", "True")),
        ({"scale": 10**400}, BadRequest, ("scale=1000", "finite")),
        ({"backend": ["loop"]}, BadRequest, ("backend", "loop")),
        ({"v": zeros(B, T, H, V).to_sparse()}, TypeError, ("v ", "sparse", "to_dense")),
        ({"scale": torch.nan}, BadRequest, ("scale=nan", "finite")),
        ({"initial_state": (zeros(B, H, K, V), None), "normalize": True}, BadRequest, ("initial_state", "None in it")),
        ({"k": torch.zeros(B, T, H, K, device="meta")}, BadRequest, ("k ", "meta", "cpu")),
        ({"initial_state": torch.zeros(B, H, K, V, device="meta")}, BadRequest, ("initial_state", "meta", "cpu")),
        ({"chunk_size": 12}, BadRequest, ("chunk_size=12", "power of two")),
        ({"chunk_size": 0}, BadRequest, ("chunk_size=0",)),
        ({"chunk_size": True}, BadRequest, ("chunk_size=True",)),
        ({"backend": "chunkd"}, BadRequest, ("backend", "chunkd", "chunked")),
    ),
)  # fmt: skip
def test_bad_operands_are_named_with_shapes_and_values(change, error, parts):
    with pytest.raises(error) as caught:
        memory_scan(**good(**change))
    message = str(caught.value)
    assert "\n" not in message and all(part in message for part in parts), message


def test_a_positive_decay_is_found_at_its_place_and_only_where_values_are_checked():
    decay = zeros(B, T, H, K)
    decay[1, 7, 0, 2] = 5.0
    with pytest.raises(BadRequest, match=r"log_decay\[1, 7, 0, 2\]=5.*1 of 336"):
        memory_scan(**good(log_decay=decay))
    with pytest.raises(BadRequest, match="log_decay"):
        memory_step(zeros(B, H, K), zeros(B, H, K), zeros(B, H, V), None, log_decay=decay[:, 7])
    memory_scan(**good(log_decay=decay), validate=False)


@stages
def test_a_product_with_a_later_token_may_overflow_and_what_came_before_stays(bench, kinds):
    """Early queries and cotangents times later keys and values exceed float32; a weight of 0 must not make NaN of that."""
    operands = bench.make(*kinds, B=1, T=8, H=1, K=4, V=4, dtype=torch.float32, state=False)
    with torch.no_grad():
        operands["q"][:, :5] *= 1e20
        operands["k"][:, 5:] *= 1e20
        operands["v"][:, 5:] *= 1e20
        for name in {"erase", "write"} & set(operands):
            if operands[name] is not None:
                operands[name][:, 5:] = 0 if name == "erase" else 1
    found, wanted = [], []
    for into, length in ((found, 8), (wanted, 5)):
        given = {n: bench.leaf(x[:, :length]) if isinstance(x, torch.Tensor) else x for n, x in operands.items()}
        o = memory_scan(**given, backend="chunked", chunk_size=8)[0][:, :5]
        into += [o, *torch.autograd.grad(o, [given["q"]], torch.full_like(o, 1e20))]
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a[:, :5], b) and b.isfinite().all()


@both
@stages
def test_empty_time_and_empty_batch(bench, kinds, backend):
    """Fault 30 and 51: nothing in, the initial state out; the gradient of the state passes through."""
    for normalize in (False, True):
        for sizes in ({"T": 0}, {"B": 0}, {"T": 0, "B": 0}):
            for C in (None, 16):
                operands = bench.make(*kinds, normalize=normalize, **sizes)
                found = bench.run(operands, backend, C)
                assert found["o"].shape == operands["v"].shape
                initial = operands["initial_state"]
                state, norm = initial if normalize else (initial, None)
                assert torch.equal(found["state"], state) and found["state"] is not state
                assert found["state"].data_ptr() != state.data_ptr() or state.numel() == 0
                assert norm is None or torch.equal(found["norm"], norm)
                if "B" not in sizes:
                    assert found["d initial_state"].abs().max() > 0
        operands = bench.make(*kinds, normalize=normalize, T=0, state=False)
        _, state = memory_scan(**operands, output_final_state=True, backend=backend)
        assert all(x.abs().max() == 0 for x in (state if normalize else (state,)))


@both
@stages
def test_no_final_state_unless_asked(bench, kinds, backend):
    assert memory_scan(**bench.make(*kinds), backend=backend)[1] is None


@both
@stages
def test_any_strides(bench, kinds, backend):
    """Heads before time, channels backwards in memory, a step of two, one tensor shared by all heads."""
    plain = bench.make(*kinds)

    def odd(x):
        x = x.detach()
        spaced = torch.full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan, dtype=x.dtype)
        spaced[..., ::2] = x
        order = list(reversed(range(x.dim())))
        return (
            spaced[..., ::2].permute(order).clone(memory_format=torch.contiguous_format).permute(order).requires_grad_()
        )

    strided = plain | {n: odd(plain[n]) for n in bench.leaves(plain)}
    assert not strided["q"].is_contiguous()
    bench.assert_same(bench.run(strided, backend), bench.run(plain, backend), 1e-14)
    shared = plain | {"k": bench.leaf(plain["k"][:, :, :1])}
    inputs = shared | {"k": shared["k"].expand(B, T, H, K)}
    whole = plain | {"k": bench.leaf(inputs["k"])}
    grads = torch.autograd.grad(memory_scan(**inputs, backend=backend)[0].sum(), shared["k"])[0]
    wanted = torch.autograd.grad(memory_scan(**whole, backend=backend)[0].sum(), whole["k"])[0]
    assert bench.distance(grads, wanted.sum(2, keepdim=True)) < 1e-12


@both
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)
def test_dtypes(bench, dtype, backend):
    """o in v's dtype, the state in float32, each gradient in its operand's dtype, errors of the input's rounding."""
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    for kinds in STAGES:
        operands = bench.make(*kinds, dtype=dtype, K=16, V=16)
        found = bench.run(operands, backend)
        assert found["o"].dtype == dtype and found["state"].dtype == torch.float32
        for name, x in bench.leaves(operands).items():
            assert found[f"d {name}"].dtype == x.dtype
        exact = operands | {n: bench.leaf(x.double()) for n, x in bench.leaves(operands).items()}
        bench.assert_same(found, bench.run(exact, "loop"), tolerance)


def test_a_scale_does_not_round_a_gradient_twice(bench):
    """A bfloat16 gradient is the float64 one rounded once, whatever the scale: not cast first and scaled after."""
    operands = bench.make(dtype=torch.bfloat16, K=16, V=16)
    exact = operands | {n: bench.leaf(x.double()) for n, x in bench.leaves(operands).items()}
    grads = []
    for given, backend in ((operands, "chunked"), (exact, "loop")):
        o, _ = memory_scan(**given, backend=backend, scale=0.3)
        cotangent = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).bfloat16().to(o.dtype)
        grads.append(torch.autograd.grad(o, given["q"], cotangent)[0])
    assert (grads[0] != grads[1].bfloat16()).float().mean() < 0.01  # float32 sums near a tie


@both
def test_mixed_dtypes_and_autocast(bench, backend):
    """Fault 54: bfloat16 activations with float32 gates and state, with and without autocast: the same numbers."""
    operands = bench.make("channel", "scalar", "scalar", dtype=torch.float32, K=16, V=16)
    for name in ("q", "k", "v"):
        operands[name] = bench.leaf(operands[name].bfloat16())
    plain = bench.run(operands, backend)
    assert plain["o"].dtype == torch.bfloat16 and plain["state"].dtype == torch.float32
    assert plain["d log_decay"].dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(memory_scan(**operands, backend=backend)[0], plain["o"])
        if backend == "chunked":  # the loop's backward is autograd's own, meant to run outside
            bench.assert_same(bench.run(operands, backend), plain, 0.0)
    operands = bench.make("channel", "channel", "channel", dtype=torch.float32, normalize=True)
    plain = bench.run(operands, backend)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(memory_scan(**operands, backend=backend)[0], plain["o"])


def test_float16_with_large_values_keeps_a_float32_state(bench):
    """Fault 45: the sum of 1024 values of 300 exceeds float16; the state must not."""
    k = torch.ones(1, 1024, 1, 1, dtype=torch.float16)
    v = torch.full((1, 1024, 1, 1), 300.0, dtype=torch.float16)
    o, state = memory_scan(k / 1024, k, v, output_final_state=True, scale=1.0)
    assert state.item() == 300 * 1024 and o.isfinite().all() and abs(o[0, -1].item() - 300) < 1


def test_normalised_attention_does_not_drift_with_length(bench):
    """Fault 46: sums and denominator in float32, so the bfloat16 error at T = 4096 is that of T = 64."""
    errors = []
    for length in (64, 4096):
        operands = bench.make(normalize=True, state=False, B=1, T=length, H=1, K=8, V=8, dtype=torch.bfloat16)
        exact = operands | {n: bench.leaf(x.double()) for n, x in bench.leaves(operands).items()}
        o, wanted = memory_scan(**operands)[0], memory_scan(**exact, backend="chunked")[0]
        errors.append(bench.distance(o[:, -32:], wanted[:, -32:]))
    assert errors[1] < 2 * errors[0] and errors[0] < 2**-7


@both
@stages
def test_nan_in_one_sequence_never_reaches_another(bench, kinds, backend):
    operands = bench.make(*kinds, B=3, T=37, K=8, V=8, dtype=torch.float32)
    clean = bench.run(operands, backend)
    for name in bench.leaves(operands):
        if name == "log_decay":
            continue  # refused at the boundary
        for bad in (torch.nan, torch.inf):
            spoiled = operands[name].detach().clone()
            spoiled[1] = bad
            found = bench.run(operands | {name: spoiled.requires_grad_()}, backend)
            for key in clean:
                assert torch.equal(found[key][::2], clean[key][::2]), f"{name} of sequence 1 reaches {key} of another"
            assert not found["state"][1].isfinite().all() or name == "q"


@stages
def test_every_output_element_is_written(bench, kinds):
    """Fault 30: with fresh memory filled with NaN nothing unwritten survives in outputs, state and gradients."""
    operands = bench.make(*kinds, T=37, dtype=torch.float32)
    wanted = bench.run(operands)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        poison = torch.empty(3)
        assert poison.isnan().all(), "torch fills fresh memory with NaN in this mode"
        bench.assert_same(bench.run(operands), wanted, 0.0)
    finally:
        torch.use_deterministic_algorithms(False)


@stages
def test_gradients_of_any_subset(bench, kinds):
    """Fault 58: a gradient of one operand alone, of a loss on o alone or on the state alone; the rest is None."""
    operands = bench.make(*kinds)
    full = bench.run(operands)
    inputs = bench.leaves(operands)
    for name in inputs:
        alone = operands | {n: x.detach() for n, x in inputs.items()}
        alone[name] = bench.leaf(inputs[name])
        o, state = memory_scan(**alone, output_final_state=True)
        g = torch.Generator().manual_seed(1)
        cotangents = [torch.randn(x.shape, generator=g, dtype=torch.float64) for x in (o, state)]
        found = torch.autograd.grad([o, state], [alone[name]], cotangents)[0]
        assert torch.equal(found, full[f"d {name}"]), name
    with torch.no_grad():
        assert not memory_scan(**operands)[0].requires_grad


@pytest.mark.parametrize("reduce", [lambda o: o.square().sum(), lambda o: o.sum()], ids=["square", "sum"])
def test_second_derivatives_are_refused_not_wrong(bench, reduce):
    operands = bench.make("channel", "scalar", "scalar", T=5)
    q = operands["q"]
    with pytest.raises(RuntimeError, match="differentiated twice"):
        torch.autograd.grad(reduce(memory_scan(**operands, backend="chunked")[0]), q, create_graph=True)
    # a Hessian's second pass asks for the leaf alone and would pass by a mark on the gradients
    plain = {n: x.detach() for n, x in bench.leaves(operands).items()} | {"normalize": False}
    with pytest.raises(RuntimeError, match="differentiated twice"):
        torch.autograd.functional.hessian(
            lambda q: reduce(memory_scan(**plain | {"q": q}, backend="chunked")[0]), plain["q"]
        )
    first = torch.autograd.grad(memory_scan(**operands, backend="loop")[0].square().sum(), q, create_graph=True)[0]
    assert torch.autograd.grad(first.sum(), operands["v"])[0].abs().max() > 0


def test_inputs_are_left_alone_and_repeats_are_bit_identical(bench):
    operands = bench.make("channel", "channel", "channel", T=37, dtype=torch.float32)
    before = {n: x.detach().clone() for n, x in bench.leaves(operands).items()}
    first = bench.run(operands)
    for _ in range(3):
        bench.assert_same(bench.run(operands), first, 0.0)
    assert all(torch.equal(x, before[n]) for n, x in bench.leaves(operands).items())


def test_memory_is_linear_in_time(bench):
    """What is kept for the backward pass doubles with T, and stays far below a T x T matrix."""

    def kept(length):
        operands = bench.make("channel", "scalar", "scalar", B=1, T=length, H=1, K=16, V=16, dtype=torch.float32)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: (sizes.append(x.numel()), x)[1], lambda x: x):
            memory_scan(**operands)
        gc.collect()
        return sum(sizes)

    short, long = kept(512), kept(4096)
    assert long < 8.5 * short and long < 4096 * 256


@both
@stages
def test_scale(bench, kinds, backend):
    """Fault 3, 51: 1 as an integer, 1.0, None, 0.125 and a negative scale are one and the same rule."""
    operands = bench.make(*kinds)
    unit = memory_scan(**operands, backend=backend, scale=1.0)[0]
    for scale, factor in ((1, 1.0), (None, 0.5), (0.125, 0.125), (-2, -2.0), (0, 0.0)):
        assert bench.distance(memory_scan(**operands, backend=backend, scale=scale)[0], factor * unit) < 1e-14


def test_auto_says_what_it_picks_and_why():
    choice = explain_backend(**good())
    assert choice.backend == "chunked" and str(choice).startswith("chunked")
    assert explain_backend(**good(), backend="loop").backend == "loop"
    with pytest.raises(BadRequest, match="did you mean 'loop'"):
        explain_backend(**good(), backend="lop")
