"""A scan cut into segments is the scan: in Triton's interpreter, as in test_triton_scan.py, with the number of segments forced."""

from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from itertools import product

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)

from torch._subclasses.fake_tensor import FakeTensorMode

from mnemolab.benchmarks.kernels_cpu import STAGES
from mnemolab.kernels import memory_scan
from mnemolab.kernels.triton import scan, table
from mnemolab.kernels.triton.library import scan_forward
from mnemolab.kernels.triton.segments import carry_back_kernel, carry_kernel, combine_kernel
from tests.kernels.programs import may_be_wgmma, told_by

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = ("none", "scalar", "channel")


@contextmanager
def segments(number, **more):
    """Every scan has so many segments, or as many as it has chunks."""
    chosen = scan.choose
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "choose", lambda *a: replace(chosen(*a), segments=number, **more))
        scan._known_geometry.cache_clear()
        try:
            yield
        finally:
            scan._known_geometry.cache_clear()


def make(bench, *kinds, **sizes):
    return bench.make(*kinds, dtype=torch.float32, device=DEVICE, **{"B": 1, "H": 1, "K": 4, "V": 3, **sizes})


def wide(bench, operands):
    """The same numbers in float64."""
    found = {n: bench.leaf(x.double()) if isinstance(x, torch.Tensor) else x for n, x in operands.items()}
    if isinstance(operands["initial_state"], tuple):
        found["initial_state"] = tuple(bench.leaf(x.double()) for x in operands["initial_state"])
    return found


def both(bench, operands, number, tolerance=5e-6, floor=0.0, **more):
    """Outputs, states and gradients in segments against the chunked form in float64."""
    with segments(number, **more):
        found = bench.run(operands, "triton")
    bench.assert_same(found, bench.run(wide(bench, operands), "chunked"), tolerance, floor)
    return found


@pytest.mark.parametrize("kinds", STAGES.values(), ids=STAGES.keys())
@pytest.mark.parametrize(("number", "chunks", "span"), ((2, 5, 3), (3, 5, 2), (5, 7, 2)))
def test_stages(bench, kinds, number, chunks, span):
    """Segments of three chunks or two and a shorter last one (itself ragged): two, three and, since none is empty, four of them;
    more than one head and tile of V, K and V of no round number."""
    operands = make(bench, *kinds, B=1, T=16 * (chunks - 1) + 3, H=2, K=5, V=18, strength=0.05)
    if DEVICE == "cpu":  # a GPU's chunks may be longer
        with segments(number):
            geo = scan._geometry((1, operands["q"].shape[1], 2, 5, 18), 0, 0, 0, False, 1.0, torch.float32)
        assert (geo.segments, geo.span) == (-(-chunks // span), span)
    both(bench, operands, number)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", list(product(KINDS, KINDS, KINDS)), ids="-".join)
@pytest.mark.parametrize("number", (2, 3, 5))
def test_all_combinations(bench, kinds, number):
    for normalize, state in product((False, True), repeat=2):
        # with erase a denominator may all but vanish, which costs the same digits in one segment
        tolerance = 1e-4 if normalize else 5e-6
        both(bench, make(bench, *kinds, normalize=normalize, state=state, T=70, strength=0.1), number, tolerance)


@pytest.mark.parametrize(
    "kinds", (("none", "none", "none"), ("channel", "scalar", "channel"), ("scalar", "none", "scalar")), ids="-".join
)
def test_normalize(bench, kinds):
    # a small denominator magnifies float32's rounding
    both(bench, make(bench, *kinds, normalize=True, T=55, V=20), 4, 3e-5)


@pytest.mark.parametrize("T", (1, 16, 17, 33, 49))
def test_fewer_chunks_than_segments(bench, T):
    """One chunk is one segment; no segment is empty."""
    both(bench, make(bench, "scalar", "scalar", "scalar", T=T), 5)


@pytest.mark.parametrize("BV, CV", ((16, 16), (64, 64), (32, 32)))
def test_tiles(bench, BV, CV):
    """Narrower and wider than K, whose columns M is cut into."""
    both(bench, make(bench, "channel", "scalar", "scalar", T=70, K=20, V=40), 4, BV=BV, CV=CV)


@pytest.mark.parametrize("kinds", (("none", "none", "none"), ("scalar", "scalar", "none")), ids="-".join)
def test_longer_chunks(bench, kinds):
    both(bench, make(bench, *kinds, T=150), 3, C=32)


@pytest.mark.parametrize("keys", ("near_collinear", "identical", "zero"))
def test_hard_keys(bench, keys):
    # keys that all but agree: the inverse loses a digit, as in one segment
    both(bench, make(bench, "none", "scalar", "scalar", keys=keys, T=70), 4, 1e-5)


@pytest.mark.parametrize("strength", (6.0, 1e4))
@pytest.mark.parametrize("kinds", (("channel", "scalar", "scalar"), ("scalar", "none", "none")), ids="-".join)
def test_strong_gates(bench, kinds, strength):
    # what decays by more than exp(-88) is 0 in float32
    both(bench, make(bench, *kinds, strength=strength, T=63), 4, floor=1e-36)


@pytest.mark.parametrize(
    "decay, erase", (("scalar", "none"), ("channel", "none"), ("scalar", "scalar"), ("channel", "scalar"))
)
def test_wipes(bench, decay, erase):
    """-inf within a segment and at its border: what came before is gone, and nothing is NaN."""
    operands = make(bench, decay, erase, "scalar", T=70, strength=0.1)
    with torch.no_grad():
        operands["log_decay"][:, 24] = operands["log_decay"][:, 48] = -torch.inf
    with segments(5):
        found = bench.run(operands, "triton")
    wanted = bench.run(wide(bench, operands), "loop")
    wanted["d log_decay"] = torch.nan_to_num(wanted["d log_decay"])
    bench.assert_same(found, wanted, 1e-5)
    assert (found["d log_decay"][:, (24, 48)] == 0).all()


@pytest.mark.parametrize("kinds", (("scalar", "none", "scalar"), ("channel", "scalar", "scalar")), ids="-".join)
def test_nothing_comes_from_later_or_from_others(bench, kinds):
    """Tokens of a later segment and of another sequence change no bit, NaN or not: NaN reaches its own chunk and what follows."""
    operands = make(bench, *kinds, B=2, T=70)
    with segments(5), torch.no_grad():
        o, state = memory_scan(**operands, output_final_state=True, backend="triton")
        for value in (7.0, torch.nan):
            changed = {**operands, "v": operands["v"].clone()}
            changed["v"][0, 40] = value
            found, last = memory_scan(**changed, output_final_state=True, backend="triton")
            assert torch.equal(found[0, :32], o[0, :32]) and torch.equal(found[1], o[1])
            assert torch.equal(last[1], state[1]) and not torch.equal(last[0], state[0])
            assert found[0, 40:].isfinite().all() == (value == 7.0)


@pytest.mark.parametrize(
    "kinds", (("none", "none", "none"), ("scalar", "none", "none"), ("channel", "channel", "channel")), ids="-".join
)
@pytest.mark.parametrize("normalize", (False, True))
def test_nothing_is_read_that_was_not_written(bench, kinds, normalize, monkeypatch):
    """Workspaces full of NaN, strides, and no state given: the same bits as before."""
    operands = make(bench, *kinds, T=70, H=2, normalize=normalize, state=False)
    with segments(4):
        wanted = bench.run(operands, "triton")
        empty = scan.Layout.empty
        monkeypatch.setattr(scan.Layout, "empty", lambda *a: empty(*a).fill_(255))
        for name in ("q", "k", "v"):
            x = operands[name].detach()
            poison = torch.full((*x.shape[:2], x.shape[2] + 1, x.shape[3] + 2), torch.nan, device=DEVICE)
            view = poison[:, :, 1:, 1 : x.shape[3] + 1]
            operands[name] = view.copy_(x).detach().requires_grad_()
        bench.assert_same(bench.run(operands, "triton"), wanted, 0)


def test_without_gradients(bench):
    operands = make(bench, "scalar", "scalar", "scalar", T=70)
    with segments(4):
        wanted, _ = memory_scan(**operands, backend="triton")
        with torch.no_grad():
            assert torch.equal(memory_scan(**operands, backend="triton")[0], wanted)
    # a gradient of the last state alone, which enters the last segment
    k = operands["k"].detach().requires_grad_()
    found = []
    for number in (1, 4):
        with segments(number):
            _, state = memory_scan(**{**operands, "k": k}, output_final_state=True, backend="triton")
            found += torch.autograd.grad(state.sum(), k)
    assert bench.distance(found[1], found[0]) < 1e-5


def test_one_segment_is_launched_as_ever_and_more_by_address(bench, monkeypatch):
    """The second call gives addresses where the first gave tensors; every part lies in the memory that it was given."""
    calls = []

    def launch(made, kernel, programs, args, constants, warps, stages):
        made[kernel] = True
        calls.append((kernel, programs, args, constants()))

    monkeypatch.setattr(scan, "launch", launch)
    q, v, gate = torch.rand(2, 70, 2, 8), torch.rand(2, 70, 2, 4), torch.rand(2, 70, 2)
    for number in (1, 4):
        with segments(number):
            geo = scan.geometry(q, v, -gate, gate, None, True, 0.5)
        found = []
        for _ in range(2):
            calls.clear()
            o, _, _, work = scan.run_forward(geo, q, q, v, -gate, gate, None, None, None, save=True)
            scan.run_backward(geo, q, q, v, -gate, gate, None, work, o, v, None, None, (None, None))
            found.append(list(calls))
        first, second = found
        assert [call[:2] for call in first] == [call[:2] for call in second]
        new = [
            programs for kernel, programs, *_ in first if kernel in (carry_kernel, combine_kernel, carry_back_kernel)
        ]
        # five chunks are three segments: two are carried, M is taken of one; one tile of V, one of the columns of M
        assert new == ([] if number == 1 else [4 * (2 + 1), 4, 4 * 2, 4]) and len(first) == 4 + len(new)
        for (*_, tensors, _), (*_, plain, _) in zip(first, second, strict=True):
            for x, y in zip(tensors, plain, strict=True):
                assert type(y) is int if isinstance(x, torch.Tensor) else x == y


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_the_table(dtype, monkeypatch):
    """Segments where heads are few and the sequence long; each of at least 8 chunks, half as many as there are segments."""
    monkeypatch.setattr(table, "interpreted", lambda: False)  # what a GPU is given
    for B, T, H, K, V, decay, erase in product(
        (1, 8, 64), (1, 1000, 4096, 65537), (1, 4), (16, 64, 256), (64, 100), (0, 1), (0, 1)
    ):
        config = table.choose(dtype, B * H, T, K, V, decay, erase)
        NT = -(-T // config.C)
        geo = scan._geometry((B, T, H, K, V), decay, erase, 1, False, 1.0, dtype)
        assert geo.segments == 1 or (T >= table.LONG and geo.span >= max(table.SHORTEST, config.segments // 2))
        assert B * H * table.padded(V) // config.BV * geo.segments < 2 * table.ENOUGH or geo.segments == 1
        assert (geo.segments - 1) * geo.span < NT <= geo.segments * geo.span
    # long is told by tokens, and not by chunks, which have 16 to 64
    assert [table.choose(dtype, 2, T, 64, 64, 1, 0).segments > 1 for T in (1023, 1024)] == [False, True]
    assert [table.choose(dtype, n, 4096, 64, 64, 1, 1).segments > 1 for n in (64, 65)] == [True, False]
    assert table.choose(dtype, 16, 4096, 64, 64, 1, 1).segments > 4
    assert table.choose(dtype, 256, 4096, 64, 64, 1, 1).segments == 1
    assert table.choose(dtype, 16, 4096, 256, 256, 1, 1).segments == 1


@pytest.mark.skipif(DEVICE == "cuda", reason="there tests/gpu compile it")
@pytest.mark.filterwarnings("ignore")
def test_an_open_length_is_taken_whole(bench, monkeypatch):
    """How a length is cut would be a guard on it: one compilation each, and an error where the length has bounds of its own."""
    monkeypatch.setattr(table, "LONG", 4)
    monkeypatch.setattr(table, "SHORTEST", 1)
    traces = []

    def f(q, k, v, g, beta):
        return memory_scan(q, k, v, log_decay=g, erase=beta, backend="triton", validate=False)[0]

    def backend(graph, _):
        traces.append(graph)
        return graph

    compiled = torch.compile(f, backend=backend, fullgraph=True)
    for T in (70, 90, 300):
        operands = make(bench, "scalar", "scalar", T=T, K=2, V=2)
        x = [operands[name] for name in ("q", "k", "v", "log_decay", "erase")]
        assert table.choose(torch.float32, 1, T, 2, 2, 1, 1).segments == (4 if T == 300 else 2)
        for value in x:
            torch._dynamo.mark_dynamic(value, 1, min=32, max=8192)
        found = compiled(*x)
        with segments(1):
            wanted = f(*x)
        assert torch.equal(found, wanted)
        for a, b in zip(torch.autograd.grad(found.sum(), x), torch.autograd.grad(wanted.sum(), x), strict=True):
            assert torch.equal(a, b)
    assert len(traces) == 1


@pytest.mark.parametrize(
    "decay, name",
    [(decay, name) for decay in ("none", "channel") for name in ("q", "k", "v", "write", "erase")]
    + [("channel", "log_decay")],
)
def test_a_nan_spreads_no_further_back_than_in_one_segment(bench, decay, name):
    """Gradients of the tokens before a bad one: M, which they pass through, must not hold what it does not need."""
    finite = []
    for number in (1, 4):
        operands = make(bench, decay, "scalar", "scalar", T=64, K=2, V=2)
        with torch.no_grad():
            operands[name].select(1, 24).fill_(torch.nan)
        names = [n for n in ("q", "k", "v", "erase", "write", "log_decay") if isinstance(operands[n], torch.Tensor)]
        with segments(number):
            o, _ = memory_scan(**operands, backend="triton", validate=False, output_final_state=True)
            gradients = torch.autograd.grad(o, [operands[n] for n in names], torch.ones_like(o))
        finite.append([x.isfinite() for x in (o, *gradients)])
    for one, several in zip(*finite, strict=True):
        assert not (one & ~several).any()


@pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value) encountered:RuntimeWarning"
)  # what it is about, in numpy's words
def test_a_state_that_is_zero_stays_so_where_the_transition_overflows(bench):
    """0 times an infinite M is not NaN: forward where nothing was written before, backward where nothing is read after."""
    operands = make(bench, "none", "scalar", "scalar", T=128, state=False)
    with torch.no_grad():
        operands["v"][:, :64] = 0
        operands["k"][:, 32:64] *= 50
    with segments(4):
        o, _ = memory_scan(**operands, backend="triton", validate=False)
    assert o.isfinite().all()

    operands = make(bench, "none", "scalar", "scalar", T=64, state=False)
    with torch.no_grad():
        operands["k"][:, 40:60] *= 100
    with segments(4):
        o, _ = memory_scan(**operands, backend="triton", validate=False)
        gradients = torch.autograd.grad(o[:, :16].sum(), [operands[n] for n in ("k", "v", "erase")])
    assert all(x[:, :32].isfinite().all() for x in gradients)


def test_same_input_same_bits(bench):
    operands = make(bench, "channel", "scalar", "scalar", T=70)
    with segments(5):
        first = bench.run(operands, "triton")
        bench.assert_same(bench.run(operands, "triton"), first, 0)


def test_the_operator_allocates_what_its_fake_says(bench):
    operands = make(bench, "channel", "scalar", "scalar", T=70)
    given = [operands[name] for name in ("q", "k", "v", "log_decay", "erase", "write")]
    with segments(4), torch.no_grad():
        real = scan_forward(*given, None, None, False, 0.5)
        with FakeTensorMode() as mode:
            fake = scan_forward(*map(mode.from_tensor, given), None, None, False, 0.5)
    assert [(x.shape, x.dtype) for x in fake] == [(x.shape, x.dtype) for x in real]


def test_compiled_ahead_and_once(tmp_path):
    (told,) = told_by("ahead_segments.py", TRITON_CACHE_DIR=str(tmp_path))
    ran = [x["kernel"] for x in told["events"] if x["what"] == "run"]
    assert ran == [
        "prepare_kernel", "carry_kernel", "combine_kernel", "forward_kernel", "carry_back_kernel", "combine_kernel",
        "backward_kernel", "gradient_kernel",
    ]  # fmt: skip
    compiled = [x for x in told["events"] if x["what"] == "compiled"]
    assert sorted(x["kernel"] for x in compiled) == sorted(ran) and not told["busy"]
    assert all(x["thread"].startswith("compile") for x in compiled)
    assert not [x for x in told["events"] if x["what"] == "found"]


def check_compiled(*jobs):
    rows = told_by("sm90_segments.py", *jobs)
    assert {row["kernel"].split(".")[1] for row in rows} == {
        "carry_kernel", "combine_kernel", "forward_kernel", "carry_back_kernel", "backward_kernel",
    }  # fmt: skip
    for row in rows:
        exact = not row["job"].endswith("bf16")
        # as in test_triton_compiles.py: three tf32 products of wide tiles keep two parts of every operand
        assert row["registers"] <= 255 and row["stack"] <= (1400 if exact else 600), row
        assert row["shared"] <= 227 * 1024 and not row["miscompiled"], row
        assert row["wgmma"] == 0 or may_be_wgmma(row), row


def test_compiles_for_sm_90():
    check_compiled("gated_deltanet:64:bf16", "linear:64:bf16", "kda:32:bf16")


@pytest.mark.slow
@pytest.mark.parametrize("D", (16, 32, 64, 128))
@pytest.mark.parametrize("dtype", ("bf16", "fp32"))
@pytest.mark.parametrize(
    "kind", ("linear", "scalar_decay", "gla", "deltanet", "gated_deltanet", "kda", "gated_deltanet2")
)
def test_every_kind_compiles(kind, D, dtype):
    check_compiled(f"{kind}:{D}:{dtype}")


def check_executed(*jobs):
    """The compiled kernels, executed as in test_triton_ptx.py, to its tolerances."""
    rows = told_by("ptx_segments.py", *jobs)
    assert len(rows) == len(jobs)
    for row in rows:
        exact = ":fp32:" in row.pop("job")
        assert all(error <= (1e-5 if exact else 3.4e-3 if name == "o" else 1e-2) for name, error in row.items()), row


def test_compiled_code_executed():
    check_executed("gated_deltanet:16:16:bf16:70", "gla:16:16:bf16:70")


@pytest.mark.slow
def test_compiled_code_of_every_stage_executed():
    stages = "deltanet", "gated_deltanet", "gla", "kda", "gated_deltanet2"
    check_executed("linear:32:32:bf16:140:norm", "scalar_decay:32:32:bf16:140", *(f"{s}:32:32:bf16:70" for s in stages))
    check_executed(
        "kda:64:64:bf16:70", "gated_deltanet:128:32:bf16:70", "kda:16:16:fp32:70", "linear:33:7:fp32:70:norm"
    )
