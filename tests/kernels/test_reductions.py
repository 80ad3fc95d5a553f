"""One recurrence, many stages: each restriction of a later stage is an earlier one (architectures, recurrence family)."""

import pytest
import torch
from torch.nn.functional import elu
from torch.nn.functional import normalize as unit

from mnemolab.kernels import memory_scan

B, T, H, K, V = 2, 21, 2, 4, 3
SCANS = [("loop", None), *(("chunked", C) for C in (1, 2, 16, 64))]
scans = pytest.mark.parametrize("backend,C", SCANS, ids=[f"{b}-{C}" for b, C in SCANS])


def rand(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def wide(gate, channels):
    """A scalar gate on every channel."""
    return gate.detach()[..., None].expand(B, T, H, channels)


@pytest.fixture
def draw(bench):
    """q, k, v and a random initial state, all leaves."""

    def make(**more):
        given = bench.make(B=B, T=T, H=H, K=K, V=V)
        return {n: given[n] for n in ("q", "k", "v", "initial_state")} | more

    return make


@pytest.fixture
def same(bench):
    """Both sets of operands give one output, one state and one gradient of q, k, v and the initial state."""

    def check(left, right, backend, C):
        results = []
        for operands in (left, right):
            full = {"log_decay": None, "erase": None, "write": None, "normalize": False} | operands
            full |= {n: bench.leaf(full[n]) for n in ("log_decay", "erase", "write") if full[n] is not None}
            found = bench.run(full, backend, C)
            results.append({n: found[n] for n in ("o", "state", "d q", "d k", "d v", "d initial_state")})
        bench.assert_same(*results, 1e-10, floor=1e-3)

    return check


BETA, DECAY1, DECAYK = rand(B, T, H, seed=1), -rand(B, T, H, seed=2), -rand(B, T, H, K, seed=3)
ERASE, WRITE = rand(B, T, H, K, seed=4), rand(B, T, H, V, seed=5)


@scans
def test_gated_deltanet2_with_equal_gates_is_kda(draw, same, backend, C):
    left = draw(log_decay=DECAYK, erase=wide(BETA, K), write=wide(BETA, V))
    same(left, draw(log_decay=DECAYK, erase=BETA, write=BETA), backend, C)


@scans
def test_gated_deltanet2_with_equal_gates_and_decays_is_gated_deltanet(draw, same, backend, C):
    left = draw(log_decay=wide(DECAY1, K), erase=wide(BETA, K), write=wide(BETA, V))
    same(left, draw(log_decay=DECAY1, erase=BETA, write=BETA), backend, C)


@scans
def test_gated_deltanet2_without_erase_is_gla(draw, same, backend, C):
    none, one = torch.zeros(B, T, H, K).double(), torch.ones(B, T, H, V).double()
    same(draw(log_decay=DECAYK, erase=none, write=one), draw(log_decay=DECAYK), backend, C)
    gated = draw(log_decay=DECAYK)
    gated["v"] = (WRITE * gated["v"]).detach().requires_grad_()
    left = draw(log_decay=DECAYK, erase=none, write=WRITE)
    found = memory_scan(**left, backend=backend, chunk_size=C)[0]
    torch.testing.assert_close(found, memory_scan(**gated, backend=backend, chunk_size=C)[0], rtol=1e-10, atol=1e-12)


@scans
def test_gated_deltanet2_without_erase_and_scalar_gates_is_ssd(draw, same, backend, C):
    none = torch.zeros(B, T, H, K).double()
    left = draw(log_decay=wide(DECAY1, K), erase=none, write=wide(BETA, V))
    same(left, draw(log_decay=DECAY1, write=BETA), backend, C)


@scans
def test_gated_deltanet2_without_write_only_erases_and_decays(draw, backend, C):
    """S_t = (I - k e^T) diag(lambda) S_{t-1}; a state of zero stays zero."""
    given = draw(log_decay=DECAYK, erase=ERASE, write=torch.zeros(B, T, H, V).double())
    with torch.no_grad():
        o, state = memory_scan(**given, output_final_state=True, backend=backend, chunk_size=C)
        S = given["initial_state"]
        for t in range(T):
            k = given["k"][:, t, :, :, None]
            S = DECAYK[:, t, :, :, None].exp() * S
            S = S - k * ((ERASE[:, t, :, :, None] * k) * S).sum(2, keepdim=True)
        torch.testing.assert_close(state, S, rtol=1e-10, atol=1e-12)
        given["initial_state"] = None
        o, state = memory_scan(**given, output_final_state=True, backend=backend, chunk_size=C)
        assert o.abs().max() == 0 and state.abs().max() == 0


@scans
def test_kda_with_equal_decays_is_gated_deltanet(draw, same, backend, C):
    left = draw(log_decay=wide(DECAY1, K), erase=BETA, write=BETA)
    same(left, draw(log_decay=DECAY1, erase=BETA, write=BETA), backend, C)


@scans
def test_kda_and_gated_deltanet_without_decay_are_deltanet(draw, same, backend, C):
    for decay in (torch.zeros(B, T, H, K), torch.zeros(B, T, H)):
        same(draw(log_decay=decay.double(), erase=BETA, write=BETA), draw(erase=BETA, write=BETA), backend, C)


@scans
def test_kda_and_gated_deltanet_at_beta_zero_only_decay(draw, backend, C):
    """The write is tied to beta, so beta = 0 is not GLA: the state only decays."""
    zero = torch.zeros(B, T, H).double()
    for decay in (DECAYK, DECAY1):
        given = draw(log_decay=decay, erase=zero, write=zero)
        _, state = memory_scan(**given, output_final_state=True, backend=backend, chunk_size=C)
        total = decay.sum(1).exp().reshape(B, H, -1, 1)
        torch.testing.assert_close(state, total * given["initial_state"], rtol=1e-10, atol=1e-12)


@scans
def test_gla_with_equal_decays_is_ssd_and_without_is_linear_attention(draw, same, backend, C):
    same(draw(log_decay=wide(DECAY1, K)), draw(log_decay=DECAY1, write=torch.ones(B, T, H).double()), backend, C)
    for decay in (torch.zeros(B, T, H, K), torch.zeros(B, T, H)):
        same(draw(log_decay=decay.double()), draw(), backend, C)


@scans
def test_deltanet_on_orthonormal_keys_is_linear_attention_with_exact_recall(backend, C):
    n = 6
    keys = torch.linalg.qr(torch.randn(n, n, generator=torch.Generator().manual_seed(0)).double())[0]
    k, v = keys[None, :, None], torch.randn(1, n, 1, V, generator=torch.Generator().manual_seed(1)).double()
    one = torch.ones(1, n, 1).double()
    how = {"scale": 1.0, "output_final_state": True, "backend": backend, "chunk_size": C}
    o, S = memory_scan(k, k, v, erase=one, write=one, **how)
    linear, S_linear = memory_scan(k, k, v, **how)
    torch.testing.assert_close(o, linear, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(S, S_linear, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(S[0, 0].mT @ keys.mT, v[0, :, 0].mT, rtol=1e-10, atol=1e-10)


@scans
def test_a_repeated_key_keeps_the_last_value_or_the_sum(backend, C):
    k = unit(torch.arange(1.0, 5).double(), dim=0).expand(1, 7, 1, 4)
    v = torch.randn(1, 7, 1, V, generator=torch.Generator().manual_seed(1)).double()
    one = torch.ones(1, 7, 1).double()
    how = {"scale": 1.0, "backend": backend, "chunk_size": C}
    torch.testing.assert_close(memory_scan(k, k, v, erase=one, write=one, **how)[0], v, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(memory_scan(k, k, v, **how)[0], v.cumsum(1), rtol=1e-10, atol=1e-12)


@scans
def test_beta_two_reflects_the_state(backend, C):
    """Householder: the Frobenius norm stays and a second reflection undoes the first."""
    k = unit(torch.randn(1, 1, 1, K, generator=torch.Generator().manual_seed(0)).double(), dim=-1).expand(1, 2, 1, K)
    S = torch.randn(1, 1, K, V, generator=torch.Generator().manual_seed(1)).double()
    two, v = torch.full((1, 2, 1), 2.0).double(), torch.zeros(1, 2, 1, V).double()
    how = {"initial_state": S, "output_final_state": True, "backend": backend, "chunk_size": C}
    _, once = memory_scan(k[:, :1], k[:, :1], v[:, :1], erase=two[:, :1], write=two[:, :1], **how)
    assert abs(float(once.norm() - S.norm())) < 1e-12 and float((once - S).norm()) > 0.1
    _, twice = memory_scan(k, k, v, erase=two, write=two, **how)
    torch.testing.assert_close(twice, S, rtol=1e-10, atol=1e-12)


@scans
def test_normalised_linear_attention_takes_means(draw, backend, C):
    """phi(k).phi(q) constant: the running mean of v; v constant: v, whatever the keys; else the closed form."""
    given = draw()
    given["initial_state"] = None
    how = {"normalize": True, "scale": 1.0, "backend": backend, "chunk_size": C}
    one = torch.ones(B, T, H, K).double()
    count = torch.arange(1.0, T + 1).double()[:, None, None]
    mean = given["v"].cumsum(1) / count
    torch.testing.assert_close(memory_scan(one, one, given["v"], **how)[0], mean * (K * count) / (K * count + 1e-6))
    q, k = elu(given["q"]) + 1, elu(given["k"]) + 1
    same_v = given["v"][:, :1].expand(B, T, H, V)
    # the 1e-6 in the denominator shrinks the output by at most 1e-6 over the sum of weights
    torch.testing.assert_close(memory_scan(q, k, same_v, **how)[0], same_v, rtol=1e-5, atol=0.0)
    weights = torch.einsum("bihk,bjhk->bhij", q, k).tril()
    wanted = torch.einsum("bhij,bjhv->bihv", weights, given["v"]) / (weights.sum(-1).mT[..., None] + 1e-6)
    torch.testing.assert_close(memory_scan(q, k, given["v"], **how)[0], wanted, rtol=1e-10, atol=1e-12)


@scans
def test_a_value_that_the_state_already_holds_leaves_it(bench, backend, C):
    """v_t = S~_t^T k_t with erase = write = beta: the write changes nothing but the decay."""
    given = bench.make("channel", "scalar", "scalar", T=1)
    decayed = given["log_decay"][:, 0, :, :, None].exp() * given["initial_state"]
    given["v"] = torch.einsum("bhkv,bhk->bhv", decayed, given["k"][:, 0]).unsqueeze(1)
    given["write"] = given["erase"]
    _, state = memory_scan(**given, output_final_state=True, backend=backend, chunk_size=C)
    torch.testing.assert_close(state, decayed, rtol=1e-10, atol=1e-12)


@scans
def test_write_per_channel_that_is_constant_is_the_scalar_write_also_normalised(bench, backend, C):
    given = bench.make("scalar", "none", "scalar", normalize=True)
    spread = given | {"write": bench.leaf(given["write"][..., None].expand(2, 21, 2, 3))}
    left, right = (bench.run(x, backend, C) for x in (given, spread))
    names = ("o", "state", "norm", "d q", "d k", "d v", "d initial_state", "d initial_norm")
    bench.assert_same({n: left[n] for n in names}, {n: right[n] for n in names}, 1e-10)
    assert bench.distance(right["d write"].sum(-1), left["d write"]) < 1e-10


def transition(k, erase, decay):
    """(I - k (erase*k)^T) diag(exp decay), read off the recurrence: the state after one token from the identity."""
    n = k.shape[-1]
    eye = torch.eye(n, dtype=torch.float64).expand(k.shape[0], 1, n, n)
    shape = (k.shape[0], 1, 1, n)
    _, M = memory_scan(
        k.view(shape), k.view(shape), torch.zeros(shape).double(), log_decay=decay.view(shape), erase=erase.view(shape),
        initial_state=eye, output_final_state=True,
    )  # fmt: skip
    return M[:, 0]


def test_spectrum_of_the_transition():
    """|M| <= 1 for erase = beta k, beta in [0,2]; 2/sqrt 3 and sqrt 2 bound Gated DeltaNet-2, which is no contraction."""
    n, draws = 4, 4000
    k = unit(torch.randn(draws, n, generator=torch.Generator().manual_seed(0)).double(), dim=-1)
    decay = -rand(draws, n, seed=1) * rand(draws, 1, seed=2)
    beta = (2 * rand(draws, 1, seed=3)).expand(draws, n)
    erase = rand(draws, n, seed=4).round(decimals=1)
    assert torch.linalg.matrix_norm(transition(k, beta, decay), 2).max() <= 1 + 1e-12
    along = torch.linalg.eigvals(transition(k, beta, torch.zeros_like(decay))).real.min(-1).values
    torch.testing.assert_close(along, torch.minimum(1 - beta[:, 0], torch.ones(draws).double()), rtol=1e-9, atol=1e-9)
    for top, bound in ((1.0, 2 / 3**0.5), (2.0, 2**0.5)):
        norms = torch.linalg.matrix_norm(transition(k, top * erase, decay), 2)
        assert 1.01 < norms.max() <= bound + 1e-12
    # the bounds are attained: two channels, one of them erased, at the worst angle
    for top, bound in ((1.0, 2 / 3**0.5), (2.0, 2**0.5)):
        share = torch.linspace(0.001, 0.999, 999).double()
        key = torch.stack([share.sqrt(), (1 - share).sqrt()], -1)
        erase = torch.tensor([top, 0.0]).double().expand_as(key)
        norms = torch.linalg.matrix_norm(transition(key, erase, torch.zeros_like(key)), 2)
        assert abs(float(norms.max()) - bound) < 1e-5


def test_decay_and_erasure_commute_only_for_scalar_decay():
    k, erase = unit(rand(1, K, seed=1), dim=-1), torch.ones(1, K).double()
    zero, decay = torch.zeros(1, K).double(), -rand(1, K, seed=2)
    for log_decay, commutes in ((decay, False), (decay.mean().expand(1, K), True)):
        first = transition(k, erase, log_decay)
        second = torch.diag(log_decay[0].exp()) @ transition(k, erase, zero)
        assert bool(torch.allclose(first, second)) is commutes
