"""Numerics of decay: strong, mixed, infinite and zero gates, tails, and a gate gradient without cancellation.

The fault numbers are those of real kernels; each test builds the kind of input that broke them.
"""

import math

import pytest
import torch

from mnemolab.kernels import memory_scan
from mnemolab.kernels.chunk_decay import ChannelDecay, ScalarDecay, block_sizes

DELTA = (("channel", "scalar", "scalar"), ("scalar", "scalar", "scalar"), ("channel", "channel", "channel"))
ADDITIVE = (("channel", "none", "none"), ("scalar", "none", "scalar"))
GATED = DELTA + ADDITIVE
gated = pytest.mark.parametrize("kinds", GATED, ids="-".join)


def with_decay(operands, edit):
    """The operands with log_decay edited in place by `edit(tensor)`."""
    decay = operands["log_decay"].detach().clone()
    edit(decay)
    return operands | {"log_decay": decay.requires_grad_()}


def strong(rate, every=1):
    def edit(decay):
        decay[:, ::every] = rate

    return edit


def float32_against_float64(bench, operands, tolerance, **how):
    """The float32 chunked form against the float64 loop on the same float32 numbers; below 1e-30 is underflow."""
    exact = {
        n: tuple(bench.leaf(y.double()) for y in x) if isinstance(x, tuple)
        else bench.leaf(x.double()) if isinstance(x, torch.Tensor) else x
        for n, x in operands.items()
    }  # fmt: skip
    wanted, found = bench.run(exact, "loop"), bench.run(operands, **how)
    bench.assert_same(found, wanted, tolerance, floor=1e-30)
    return found, wanted


@gated
@pytest.mark.parametrize("rate", (-6.0, -20.0, -200.0, -1e4, -math.inf))
def test_strong_gates_everywhere_and_on_some_tokens(bench, kinds, rate):
    """Faults 14, 31, 32, 33: overflow of exp(-G), exp before the mask, differences of large prefix sums."""
    for T, C in ((63, 64), (100, 64), (17, 16), (31, 16), (40, None)):
        for every in (1, 3, 7):
            operands = bench.make(*kinds, T=T, B=1, H=1, K=8, V=8, dtype=torch.float32, strength=0.1)
            operands = with_decay(operands, strong(rate, every))
            float32_against_float64(bench, operands, 1e-5, chunk_size=C)


@pytest.mark.parametrize("kinds", [kinds for kinds in GATED if kinds[0] == "channel"], ids="-".join)
def test_strong_gates_on_some_channels_only(bench, kinds):
    """Fault 32 and the -1e4 that a prefix sum never forgets: afterwards mild gates must count to the last digit."""
    operands = bench.make(*kinds, T=50, B=1, H=2, K=8, V=8, dtype=torch.float32, strength=0.1)

    def edit(decay):
        decay[:, 3, :, :2] = -1e4
        decay[:, 5, :, 2] = -math.inf
        decay[:, ::4, :, 3] = -20.0
        decay[..., 4] = -200.0

    float32_against_float64(bench, with_decay(operands, edit), 1e-5)


@gated
def test_a_wipe_forgets_everything_before_it_and_nothing_after(bench, kinds):
    """log_decay = -inf at token t: from t on the results are those of a sequence that starts there."""
    operands = bench.make(*kinds, T=40)

    def edit(decay):
        decay[:, 21] = -math.inf

    operands = with_decay(operands, edit)
    results = bench.run(operands)
    late = bench.cut(operands, slice(21, None))
    late["log_decay"] = torch.zeros_like(late["log_decay"])  # nothing is there to decay at its first token
    late["log_decay"][:, 1:] = operands["log_decay"][:, 22:]
    o, state = memory_scan(**late, output_final_state=True)
    assert bench.distance(results["o"][:, 21:], o) < 1e-12 and bench.distance(results["state"], state) < 1e-12
    only_late = torch.autograd.grad(memory_scan(**operands)[0][:, 21:].sum(), list(bench.leaves(operands).values()))
    for name, grad in zip(bench.leaves(operands), only_late, strict=True):
        before = grad if name == "initial_state" else grad[:, :21]
        assert before.isfinite().all() and before.abs().max() == 0, f"d {name} reaches back over a wipe"


@gated
def test_zero_gates_equal_no_gates(bench, kinds):
    """Fault 36: log_decay = 0 is a gate like any other, and -0.0 too."""
    for zero in (0.0, -0.0):
        operands = bench.make(*kinds, T=37, K=8, V=8, dtype=torch.float32)
        operands = with_decay(operands, strong(zero))
        found = bench.run(operands)
        plain = bench.run(operands | {"log_decay": None})
        bench.assert_same({n: found[n] for n in plain}, plain, 1e-6)


@pytest.mark.parametrize("kinds", DELTA, ids="-".join)
@pytest.mark.parametrize("rate", (-1.0, -5.0, -10.0, -20.0))
def test_gate_gradient_keeps_its_relative_accuracy(bench, kinds, rate):
    """Faults 39, 40: at g = -20 a reverse cumsum of row sums minus column sums has relative error 1."""
    for state in (False, True):
        operands = bench.make(*kinds, T=50, B=2, H=2, K=8, V=8, dtype=torch.float32, state=state)
        operands = with_decay(operands, strong(rate))
        found, wanted = float32_against_float64(bench, operands, 1e-4)
        for t in (1, 17, 30, 49):  # not only in norm: each token by itself
            assert bench.distance(found["d log_decay"][:, t], wanted["d log_decay"][:, t]) < 1e-4
        if not state:
            assert found["d log_decay"][:, 0].abs().max() == 0, "before the first token there is nothing to decay"


@pytest.mark.parametrize("kinds", DELTA, ids="-".join)
def test_gate_gradient_has_no_diagonal(bench, kinds):
    """Fault 39: with a wipe at every token nothing crosses a token, so the gate gradient is exactly 0."""
    operands = with_decay(bench.make(*kinds, T=33, dtype=torch.float32), strong(-math.inf))
    assert bench.run(operands)["d log_decay"].abs().max() == 0


@gated
def test_gate_gradient_of_a_loss_on_the_final_state_alone(bench, kinds):
    """Fault 41: (h_T . dh_T) summed over the right axes, different gates in every sequence, random initial state."""
    operands = bench.make(*kinds, B=3, T=21)
    inputs = bench.leaves(operands)
    g = torch.randn(3, 2, 4, 3, generator=torch.Generator().manual_seed(0)).double()
    grads = []
    for backend in ("loop", "chunked"):
        _, state = memory_scan(**operands, output_final_state=True, backend=backend)
        grads.append(torch.autograd.grad((state * g).sum(), list(inputs.values()), allow_unused=True))
    for name, wanted, found in zip(inputs, *grads, strict=True):
        if name == "q":
            assert found is None or found.abs().max() == 0
        else:
            assert bench.distance(found, wanted) < 1e-10, name


@gated
@pytest.mark.parametrize("T", (1, 15, 17, 63, 100, 500))
def test_final_state_of_a_short_last_chunk(bench, kinds, T):
    """Fault 16: the state after T tokens, continued with one more, is the state after T + 1."""
    operands = bench.make(*kinds, B=1, T=T + 1, dtype=torch.float32)
    with torch.no_grad():
        whole, final = memory_scan(**operands, output_final_state=True)
        state = operands["initial_state"]
        for times in (slice(0, T), slice(T, T + 1)):
            o, state = memory_scan(**bench.cut(operands, times), initial_state=state, output_final_state=True)
    assert bench.distance(state, final) < 1e-6 and bench.distance(o, whole[:, T:]) < 1e-5


@pytest.mark.slow
def test_a_long_sequence_with_a_tail_and_bfloat16_gates(bench):
    """Fault 15: T = 1500, tail of 28, gates in bfloat16."""
    operands = bench.make("channel", "scalar", "scalar", B=1, T=1500, H=2, K=16, V=16, dtype=torch.float32)
    operands["log_decay"] = operands["log_decay"].detach().bfloat16().requires_grad_()
    exact = operands | {n: bench.leaf(operands[n].double()) for n in bench.leaves(operands)}
    wanted, found = bench.run(exact, "loop"), bench.run(operands)
    assert found["d log_decay"].dtype == torch.bfloat16
    bench.assert_same(
        {n: x for n, x in found.items() if n != "d log_decay"},
        {n: x for n, x in wanted.items() if n != "d log_decay"},
        1e-5,
    )
    assert bench.distance(found["d log_decay"], wanted["d log_decay"]) < 2**-8


@gated
def test_many_draws_of_strong_random_gates_stay_finite(bench, kinds):
    """Fault 42: training with gates that are sometimes nearly closed."""
    for seed in range(30):
        operands = bench.make(*kinds, T=33, B=1, K=8, V=8, dtype=torch.float32, seed=seed)
        operands = with_decay(operands, lambda g: g.copy_(-torch.exp(12 * torch.rand_like(g) - 6)))
        assert all(x.isfinite().all() for x in bench.run(operands).values())


@gated
def test_tiny_decays_with_huge_rates(bench, kinds):
    """Fault 33: A = -1e5 with steps of 1e-3 to 1: rounding of a prefix sum must not make an exponent positive."""
    operands = bench.make(*kinds, T=256, B=1, H=1, dtype=torch.float32)
    operands = with_decay(operands, lambda g: g.copy_(-1e5 * 10 ** (-3 * torch.rand_like(g))))
    float32_against_float64(bench, operands, 1e-5)


def test_no_factor_ever_exceeds_one():
    """Every exponent is <= 0, whatever the gates: all products that the chunked form makes lie in [0, 1]."""
    for rate in (0.0, -1e-8, -0.3, -87.0, -1e4, -math.inf):
        for C in (1, 2, 16, 64):
            draw = torch.rand(3, C, 4, generator=torch.Generator().manual_seed(C))
            gates = torch.where(draw < 0.7, draw * 0.0 + rate, -draw)
            channel, scalar = ChannelDecay(gates), ScalarDecay(gates[..., :1].contiguous(), gates)
            factors = [x.clone() for level in channel.levels() for x in level[1:] if isinstance(x, torch.Tensor)]
            factors += [channel.head, channel.tail, scalar.head, scalar.tail, scalar.weight]
            assert all(((x >= 0) & (x <= 1)).all() for x in factors)
            assert [h for h, _, _ in channel.levels()] == block_sizes(C)


def test_schemes_for_the_pair_products_agree():
    """Masked differences (a), tiles with an anchor (b) and direct factors (c) against the split, with mild gates."""
    M, C, K = 2, 16, 5
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(M, C, K, generator=g).double() for _ in range(2))
    gates = -0.2 * torch.rand(M, C, K, generator=g).double()
    split, _ = ChannelDecay(gates).pairs(q, None, k)
    sums = gates.cumsum(1)
    lower = torch.ones(C, C).tril().bool()
    a = (sums[:, :, None] - sums[:, None]).masked_fill(~lower[None, :, :, None], -math.inf).exp()
    masked = torch.einsum("mid,mjd,mijd->mij", q, k, a)
    anchored = masked.clone()  # (b): the off-diagonal tile of 8 x 8, anchored at its first row
    anchor = sums[:, 8:9]
    anchored[:, 8:, :8] = (q[:, 8:] * (sums[:, 8:] - anchor).exp()) @ (k[:, :8] * (anchor - sums[:, :8]).exp()).mT
    direct = ((q * sums.exp()) @ (k * (-sums).exp()).mT).tril()
    for other in (masked, anchored, direct):
        torch.testing.assert_close(split, other, rtol=1e-12, atol=1e-13)
