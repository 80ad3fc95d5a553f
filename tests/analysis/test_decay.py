"""Half-lives of planted gates, and functional weights against autograd through the recurrence."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from mnemolab.analysis import decay
from mnemolab.analysis.decay import Trace
from mnemolab.errors import BadRequest
from mnemolab.kernels import memory_scan
from mnemolab.tasks.vocabulary import Vocabulary


def flat(*shape: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v of ones."""
    return torch.ones(shape), torch.ones(shape), torch.ones(shape)


def planted(T=24, B=2, H=2, K=4, V=3, gate="channel", erase=True, write="scalar", seed=0, dtype=torch.float64) -> Trace:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    k = torch.nn.functional.normalize(random(B, T, H, K), dim=-1)
    beta = torch.sigmoid(random(B, T, H))
    g = {"none": None, "scalar": -0.1 * random(B, T, H).abs(), "channel": -0.1 * random(B, T, H, K).abs()}[gate]
    written = {"none": None, "scalar": beta, "channel": torch.sigmoid(random(B, T, H, V))}[write]
    return Trace(0, "memory", random(B, T, H, K), k, random(B, T, H, V), g, beta if erase else None, written, K**-0.5)


@pytest.mark.parametrize("gate", ["none", "scalar", "channel"])
@pytest.mark.parametrize("erase", [False, True])
def test_read_weights_rebuild_the_output_of_the_recurrence(gate, erase):
    t = planted(gate=gate, erase=erase)
    at = torch.tensor([[0, 5, 23], [3, 11, 22]])
    weights = decay.read_weights(t, at)
    o, _ = memory_scan(t.q, t.k, t.v, log_decay=t.log_decay, erase=t.erase, write=t.write, backend="loop")
    expected = o[torch.arange(2)[:, None], at]
    torch.testing.assert_close(torch.einsum("bqth,bthv->bqhv", weights, t.v), expected)
    later = torch.arange(24) > at[..., None]
    assert not weights[later].any()


def test_read_weights_equal_the_jacobian():
    """do_t/dv_s by autograd, for a gate per channel and erasures."""
    t = planted(B=1, T=9)
    v = t.v.clone().requires_grad_()
    o, _ = memory_scan(t.q, t.k, v, log_decay=t.log_decay, erase=t.erase, write=t.write, backend="loop")
    weights = decay.read_weights(t, torch.tensor([[8]]))
    (slope,) = torch.autograd.grad(o[0, 8, 1, 2], v)
    torch.testing.assert_close(slope[0, :, 1, 2], weights[0, 0, :, 1])
    assert not slope[0, :, 0].any()


def test_scalarised_channel_gates_equal_the_scalar_formula():
    """KDA whose channels all decay alike is Gated DeltaNet: same weights, same half-lives, same retention."""
    scalar = planted(gate="scalar")
    channel = Trace(
        0, "memory", scalar.q, scalar.k, scalar.v, scalar.decay.clone(), scalar.erase, scalar.write, scalar.scale
    )
    assert channel.log_decay is not None and scalar.log_decay is not None
    assert channel.log_decay.dim() == 4 and scalar.log_decay.dim() == 3
    at = torch.tensor([[23], [20]])
    torch.testing.assert_close(decay.read_weights(scalar, at), decay.read_weights(channel, at))
    starts = torch.tensor([0, 7])
    torch.testing.assert_close(
        decay.retained(scalar, starts, 16), decay.retained(channel, starts, 16), equal_nan=True
    )  # fmt: skip
    one, many = decay.gate_half_lives(scalar.log_decay), decay.gate_half_lives(channel.log_decay)
    assert (many[0] == one[0]).all() and (many[1] == one[1]).all()


@pytest.mark.parametrize("half_life", [1, 2, 7, 40])
def test_constant_gates_have_the_half_life_that_was_planted(half_life):
    g = torch.full((2, 64, 3), -np.log(2) / half_life)
    times, observed = decay.gate_half_lives(g)
    assert set(times[observed].tolist()) == {half_life} and times.shape[-1] == 1
    last = 63 - half_life
    assert observed.sum() == observed[:, np.linspace(0, 62, 32).round() <= last].size
    for erase in (False, True):
        t = Trace(0, "memory", *flat(2, 64, 3, 1), g, None)
        functional, seen = decay.functional_half_lives(t, torch.tensor([0, 5]), erase=erase)
        assert functional.tolist() == [[half_life] * 3] * 4 and seen.all()


def test_gates_at_zero_are_censored_and_mixed_channels_keep_apart():
    g = torch.zeros(1, 50, 1, 3)
    g[..., 1] = -np.log(2) / 5
    g[..., 2] = -np.log(2) / 100
    times, observed = decay.gate_half_lives(g)
    assert not observed[..., 0].any() and not observed[..., 2].any() and (times[..., 0, 0] == times[..., 0, 2]).all()
    table = decay.channel_table([Trace(0, "memory", *flat(1, 50, 1, 3), g)])
    assert np.isinf(table["median"][[0, 2]]).all() and table["median"][1] == 5
    assert table["censored"].tolist()[0] == 1 and table["rate"].tolist() == pytest.approx(
        [0, np.log(2) / 5, np.log(2) / 100]
    )


def test_gates_that_change_are_followed():
    g = torch.zeros(1, 10, 1)
    g[0, 4] = -np.log(2)  # all of the forgetting happens at one token
    times, observed = decay.gate_half_lives(g, starts=9)
    assert times[0, :, 0, 0].tolist()[:4] == [4, 3, 2, 1] and observed[0, :4].all() and not observed[0, 4:].any()


def test_discrete_quantiles_are_kaplan_meier():
    from mnemolab.analysis import statistics

    rng = np.random.default_rng(0)
    t, seen = rng.integers(1, 30, 200), rng.random(200) < 0.7
    for q in (0.25, 0.5, 0.75):
        assert decay.discrete_quantiles(t[:, None], seen[:, None], [q])[0, 0] == statistics.survival_quantile(
            t, seen, q
        )


def test_bad_gates_are_refused():
    with pytest.raises(BadRequest, match="above 0"):
        decay.gate_half_lives(torch.ones(1, 4, 1))
    with pytest.raises(BadRequest, match="at least 2"):
        decay.gate_half_lives(torch.zeros(1, 1, 1))


def test_delta_rule_retention_without_gates_is_random_key_theory():
    """beta = 1, random keys in d dimensions: (1 - 1/d)^m of a write is left after m more, half-life 0.69 d writes."""
    d, T, B = 16, 60, 400
    generator = torch.Generator().manual_seed(0)
    k = torch.nn.functional.normalize(torch.randn(B, T, 1, d, generator=generator), dim=-1)
    one = torch.ones(B, T, 1)
    t = Trace(0, "memory", k, k, k, None, one, one)
    kept = decay.retained(t, torch.tensor([0]), 40)[:, 0, :, 0].mean(0)
    assert kept[40].item() == pytest.approx((1 - 1 / d) ** 40, abs=0.02)
    times, seen = decay.functional_half_lives(t, torch.tensor([0]))
    assert seen.all() and np.median(times) == pytest.approx(0.69 * d, abs=2)
    assert not decay.functional_half_lives(t, torch.tensor([0]), erase=False)[1].any()


def test_predicted_ratio_follows_the_overwrite_theory():
    """Additive: 1. Delta: 1 - beta. Gated additive: alpha^distance."""
    k = torch.zeros(1, 6, 1, 4)
    k[..., 0] = 1
    read, new, stale = torch.tensor([[5]]), torch.tensor([[4]]), torch.tensor([[1]])
    k[0, [0, 2, 3], 0] = torch.eye(4)[[1, 2, 3]]  # other keys, orthogonal
    k[0, 5, 0] = torch.eye(4)[1]
    q = torch.zeros(1, 6, 1, 4)
    q[..., 0] = 1
    beta, g = torch.full((1, 6, 1), 0.75), torch.full((1, 6, 1), -0.1)

    def ratio(log_decay, erase, write):
        return decay.predicted_ratio(Trace(0, "memory", q, k, q, log_decay, erase, write), read, new, stale).item()

    assert ratio(None, None, None) == pytest.approx(1)
    assert ratio(None, beta, beta) == pytest.approx(0.25, rel=1e-5)
    assert ratio(g, None, None) == pytest.approx(np.exp(-0.3), rel=1e-5)
    assert ratio(g, beta, beta) == pytest.approx(0.25 * np.exp(-0.3), rel=1e-5)
    unknown = decay.predicted_ratio(Trace(0, "memory", q, k, q), read, new, torch.tensor([[-1]]))
    assert torch.isnan(unknown).all()


def test_softmax_reads_are_attention_weights():
    t = planted()
    soft = Trace(0, "softmax", t.q, t.k, t.v, scale=0.5)
    weights = decay.read_weights(soft, torch.tensor([[23], [7]]))
    assert torch.allclose(weights.sum(2), torch.ones(2, 1, 2, dtype=torch.float64)) and not weights[1, 0, 8:].any()
    table = decay.attention_by_lag(soft, torch.tensor([[23], [23]]), np.array([0, 1, 2, 8, 24]))
    assert table.groupby("head")["mass"].sum().tolist() == pytest.approx([1, 1])


def test_gamma_fit_and_its_power_law():
    rates = np.random.default_rng(0).gamma(0.8, 0.05, 4000)
    out = decay.gamma_fit(np.append(rates, [0.0, 0.0]))
    assert out["shape"] == pytest.approx(0.8, rel=0.1) and out["scale"] == pytest.approx(0.05, rel=0.1)
    assert out["still"] == 2 and out["p"] > 0.01
    lag = np.array([1, 10, 100])
    mixture = np.exp(-rates[:, None] * lag).mean(0)
    assert mixture == pytest.approx((1 + out["scale"] * lag) ** -out["shape"], rel=0.05)
    assert np.isinf(decay.gamma_fit([0.1, 0.1, 0.1])["shape"])
    with pytest.raises(BadRequest, match="at least 3"):
        decay.gamma_fit([0.0, 0.0, 0.1])


def test_dispersion_within_a_head():
    rows = [
        {"layer": 0, "head": h, "rate": r}
        for h, rates in ((0, [0.1, 0.1]), (1, [0.01, 1.0]), (2, [0.0, 0.0]))
        for r in rates
    ]
    out = decay.dispersion(pd.DataFrame(rows))
    assert out["log_sd"].tolist() == pytest.approx([0, np.log(100) / np.sqrt(2), 0]) and out["still"].tolist() == [
        0,
        0,
        2,
    ]


def test_a_gate_that_closes_has_the_least_half_life():
    """log-decay -inf at token 2: writes before it halve there, later ones by the other gates."""
    g = torch.full((1, 8, 1), -0.01)
    g[0, 2] = -torch.inf
    times, observed = decay.gate_half_lives(g)
    assert times[0, :, 0, 0].tolist() == [2, 1, 5, 4, 3, 2, 1]  # s = 2 and later are watched to the end
    assert observed[0, :, 0, 0].tolist() == [True, True, False, False, False, False, False]
    closed, seen = decay.gate_half_lives(torch.full((1, 8, 1), -torch.inf))
    assert (closed == 1).all() and seen.all()
    with pytest.raises(BadRequest, match="not a number"):
        decay.gate_half_lives(torch.full((1, 8, 1), torch.nan))


def test_what_is_retained_is_the_recurrence_with_an_erase_per_channel():
    """The erase key reads and the key writes: with an erase per channel the two differ, and swapping them shows."""
    torch.manual_seed(0)
    q, k, v = (x.double() for x in flat(1, 12, 2, 4))
    k = torch.nn.functional.normalize(torch.randn_like(k), dim=-1)
    g, e = -0.2 * torch.rand_like(k), torch.rand_like(k)
    kept = decay.retained(Trace(0, "memory", q, k, v, g, e), torch.tensor([2]), 8)[0, 0]  # (D,H)
    value = torch.zeros(1, 12, 2, 1).double()
    value[:, 2] = 1
    o = memory_scan(k[:, 2:3].expand_as(k), k, value, log_decay=g, erase=e)[0][0, 2:11, :, 0]
    torch.testing.assert_close(kept, o / o[:1])


def test_closed_and_open_gates_are_counted_beside_the_spread():
    """Channels with log-decay 0 and -inf: rates 0 and infinity, neither of which may turn the spread into NaN."""
    g = torch.tensor([0.0, -torch.inf, -0.1, -0.2, -0.4]).expand(1, 8, 1, 5)
    channels = decay.channel_table([Trace(0, "memory", *flat(1, 8, 1, 5), g)])
    assert channels["rate"].tolist() == pytest.approx([0, np.inf, 0.1, 0.2, 0.4])
    out = decay.dispersion(channels).iloc[0]
    assert (out["channels"], out["still"], out["closed"]) == (5, 1, 1)
    assert out["log_sd"] == pytest.approx(np.log(2)) and 1 < out["ratio"] < 4
    fitted = decay.gamma_fit(channels["rate"], draws=9)
    assert (fitted["n"], fitted["still"], fitted["closed"]) == (3, 1, 1)
    assert fitted["shape"] * fitted["scale"] == pytest.approx(0.7 / 3)
    with pytest.raises(BadRequest, match="1 of 4 rates are not numbers"):
        decay.gamma_fit([0.1, 0.2, 0.3, np.nan])


def test_p_of_the_gamma_fit_is_level():
    """Rates that are gamma are refused at 5% in about 5% of samples, lognormal ones often."""
    rng = np.random.default_rng(0)
    p = np.array([decay.gamma_fit(rng.gamma(1.5, 0.1, 64), draws=199)["p"] for _ in range(150)])
    assert 0.01 <= (p < 0.05).mean() <= 0.11 and 0.4 < p.mean() < 0.6
    wide = [decay.gamma_fit(np.exp(1.5 * rng.standard_normal(64)), draws=199)["p"] for _ in range(40)]
    assert (np.array(wide) < 0.05).mean() > 0.5
    ours = decay.gamma_fit(rates := rng.gamma(0.7, 2.0, 50))
    shape, _, scale = stats.gamma.fit(rates, floc=0)
    assert ours["shape"] == pytest.approx(shape, rel=1e-3) and ours["scale"] == pytest.approx(scale, rel=1e-3)
    assert ours["ks"] == pytest.approx(stats.kstest(rates, stats.gamma(shape, scale=scale).cdf).statistic, abs=1e-3)


def test_a_key_is_not_compared_with_itself():
    """Two orthogonal keys, each written twice, overlap nowhere; without their names the repeats look like overlap."""
    keys, names = torch.eye(2)[None, [0, 1, 0, 1], None], torch.tensor([[8, 9, 8, 9]])
    assert decay.key_overlap(keys, names).item() == 0 and decay.key_overlap(keys).item() == pytest.approx(
        np.sqrt(1 / 3)
    )
    with pytest.raises(BadRequest, match="one key"):
        decay.key_overlap(keys[:, [0, 2]], names[:, [0, 2]])


def test_effective_rank_and_key_overlap():
    assert decay.effective_rank(torch.eye(5)).item() == pytest.approx(5)
    assert decay.effective_rank(torch.ones(4, 4)).item() == pytest.approx(1)
    assert decay.effective_rank(torch.zeros(3, 3)).item() == 0
    assert decay.key_overlap(torch.eye(4)[None, :, None]).item() == 0
    same = torch.ones(1, 3, 1, 4)
    assert decay.key_overlap(same).item() == pytest.approx(1)
    random = torch.randn(50, 40, 1, 64, generator=torch.Generator().manual_seed(0))
    assert decay.key_overlap(random).item() == pytest.approx(1 / 8, rel=0.05)


def test_retained_energy():
    t = planted(gate="none", erase=False)
    assert decay.retained_energy(t, 12) == pytest.approx(np.ones((2, 2)))
    gated = Trace(0, "memory", t.q, t.k, t.v, torch.full((2, 24, 2), -0.1, dtype=torch.float64))
    assert decay.retained_energy(gated, 12, 20) == pytest.approx(np.full((2, 2), np.exp(-0.1 * 8 * 2)))
    erased = planted(gate="none", erase=True)
    assert (decay.retained_energy(erased, 12) < 1).all()
    with pytest.raises(BadRequest, match="switch"):
        decay.retained_energy(t, 24)


def test_gates_by_type_of_token():
    vocabulary = Vocabulary(special=("none",), keys=4, values=4, filler=2)
    inputs = torch.tensor([[1, 5, 9, 9]])
    kinds = decay.token_kinds(inputs, vocabulary)
    assert kinds.tolist() == [["keys", "values", "filler", "filler"]]
    g = torch.tensor([0.0, -0.1, -0.2, -0.4]).reshape(1, 4, 1)
    beta = torch.tensor([0.2, 0.9, 0.0, 0.1]).reshape(1, 4, 1)
    table = decay.gates_by_token([Trace(3, "memory", *flat(1, 4, 1, 2), g, beta, beta)], kinds).set_index("token")
    assert table.loc["filler", "log_decay"] == pytest.approx(-0.3) and table.loc["filler", "tokens"] == 2
    assert table.loc["keys", "half_life"] == np.inf and table.loc["values", "erase"] == pytest.approx(0.9)
    with pytest.raises(BadRequest, match="no layer"):
        decay.gates_by_token([], kinds)
