"""The oracle reproduces the reference table within its sampling error, and the closed forms meet the simulation."""

import numpy as np
import pytest

from mnemolab.analysis.oracle import (
    RULES,
    Rule,
    critical_load,
    expected_crosstalk,
    expected_signal,
    half_life,
    simulate,
    simulate_overwrite,
    stale_ratio,
)
from mnemolab.errors import BadRequest

# d = d_v = 64, argmax over the N stored values, 40 to 60 trials: N, rule, mean accuracy, newest, oldest, mid-lag signal and
# its theory, mid-lag crosstalk and its theory
TABLE = (
    (64, "additive", 0.99, 0.97, 1.00, 1.01, 1.00, 0.98, 1.00),
    (64, "delta", 0.87, 1.00, 0.50, 0.62, 0.60, 0.48, 0.49),
    (128, "additive", 0.93, 0.88, 0.97, 0.98, 1.00, 1.96, 2.00),
    (128, "delta", 0.52, 1.00, 0.03, 0.38, 0.37, 0.73, 0.78),
    (256, "additive", 0.68, 0.55, 0.78, 1.00, 1.00, 4.00, 4.00),
    (256, "delta", 0.25, 1.00, 0.03, 0.13, 0.13, 0.98, 0.97),
    (128, "gated", 0.51, 1.00, 0.00, 0.25, 0.27, 0.40, 0.39),
)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[1]}-{row[0]}")
def test_reference_table(row):
    N, rule, accuracy, newest, oldest, signal, signal_theory, crosstalk, crosstalk_theory = row
    table = simulate(RULES[rule], N, trials=60)
    # one end of the lag axis is one answer a trial: two binomial samples of 40 to 60, and rounding to two digits
    for found, wanted in ((table.accuracy[0], newest), (table.accuracy[N - 1], oldest)):
        assert abs(found - wanted) < 3 * np.sqrt(2 * max(wanted * (1 - wanted), 0.02) / 50) + 0.005
    assert abs(table.accuracy.mean() - accuracy) < 0.02
    middle = table[np.abs(table.lag - N // 2) <= 2]
    assert abs(middle.signal.mean() - signal) < 0.04
    assert abs(middle.crosstalk.mean() - crosstalk) < 0.08 * max(1.0, crosstalk)
    assert abs(middle.expected_signal.mean() - signal_theory) < 0.01
    assert abs(middle.expected_crosstalk.mean() - crosstalk_theory) < 0.016 * max(1.0, crosstalk_theory)


@pytest.mark.parametrize("rule", (*RULES.values(), Rule(erase=0.5, write=0.5), Rule(erase=1.5, retention=0.95)))
def test_closed_forms_meet_the_simulation(rule):
    N = 96
    table = simulate(rule, N, trials=300, seed=3)
    worst = np.abs(table.signal - table.expected_signal) / table.signal_error.clip(lower=1e-9)
    # 96 lags of a z score; lag 0 is exact
    assert worst[1:].max() < 4.5 and abs(table.signal[0] - rule.write) < 1e-12
    wide = np.abs(table.crosstalk - table.expected_crosstalk) <= 4.5 * table.crosstalk_error + 1e-12
    assert wide.all(), table[~wide][["lag", "crosstalk", "crosstalk_error", "expected_crosstalk"]]


@pytest.mark.parametrize("retention", (1.0, 0.95, (0.5, 0.8, 0.95, 1.0)), ids=str)
@pytest.mark.parametrize("erase", (1.0, 1.6))
def test_crosstalk_is_exact_where_few_channels_make_the_moments_matter(erase, retention):
    """At K = 4 the mean-field form, which takes the read vector as independent of its own key, is 15% low."""
    table = simulate(Rule(erase, retention=retention), 24, key_channels=4, value_channels=4, trials=20_000)
    error = np.abs(table.crosstalk - table.expected_crosstalk)
    assert (error <= 4.5 * table.crosstalk_error + 1e-12).all()
    assert (table.crosstalk_error < 0.01 * table.crosstalk)[1:].all()  # so that 15% cannot pass


def test_closed_forms_by_hand():
    lags, d, N = np.arange(64), 64, 64
    keep, twice = 1 - 1 / d, 1 - 2 / d + 2 / (d * (d + 2))
    np.testing.assert_allclose(expected_signal(RULES["delta"], lags), keep**lags)
    by_hand = 1 - keep**lags + keep * (keep**lags - twice**lags) * (1 - keep ** (N - 1 - lags))
    np.testing.assert_allclose(expected_crosstalk(RULES["delta"], lags, N), by_hand, atol=1e-9)
    np.testing.assert_allclose(expected_crosstalk(RULES["additive"], lags, N), (N - 1) / d)
    a = 0.98
    own = a ** (2 * lags)
    np.testing.assert_allclose(expected_crosstalk(RULES["gated"], lags, N), ((1 - a ** (2 * N)) / (1 - a**2) - own) / d)
    assert (
        abs(half_life(RULES["delta"]) - np.log(2) / -np.log(keep)) < 1e-9
        and abs(half_life(RULES["delta"]) / d - 0.69) < 0.01
    )
    assert abs(half_life(RULES["gated_delta"]) - np.log(2) / (-np.log(a) - np.log(keep))) < 1e-9
    assert half_life(RULES["additive"]) == np.inf
    assert abs(critical_load(64, 64, 256) - 305) < 1


def test_orthonormal_keys_are_perfect_to_their_number():
    for rule in (RULES["additive"], RULES["delta"]):
        table = simulate(rule, 64, trials=5, orthonormal=True)
        assert table.accuracy.min() == 1 and np.allclose(table.signal, 1) and table.crosstalk.max() < 1e-20
    with pytest.raises(BadRequest, match="writes=65"):
        simulate(RULES["delta"], 65, orthonormal=True)


@pytest.mark.parametrize(
    "rule,gap",
    (
        (Rule(), 5),
        (Rule(retention=0.9), 5),
        (Rule(erase=1.0), 5),
        (Rule(erase=0.6, write=0.6), 1),
        (Rule(erase=0.6, write=0.6), 8),
        (Rule(erase=0.6, write=0.6, retention=0.95), 4),
        (RULES["per_channel_delta"], 6),
        (Rule(retention=RULES["per_channel_delta"].retention), 6),
        (Rule(erase=0.5, write=0.5, retention=RULES["per_channel_delta"].retention), 6),
    ),
)
def test_stale_weights_after_overwriting(rule, gap):
    table = simulate_overwrite(rule, 3, gap, trials=2000)
    error = 4 * table.weight_error / table.weight[0]
    assert (np.abs(table.ratio - table.expected_ratio) < error + 0.005).all(), table
    assert abs(table.chosen.sum() - 1) < 1e-12


def test_additive_rule_cannot_tell_versions_apart_and_delta_can():
    additive = simulate_overwrite(Rule(), 4, 3, trials=4000)
    assert (np.abs(additive.chosen - 1 / 4) < 4 * np.sqrt(0.25 * 0.75 / 4000)).all()
    assert simulate_overwrite(Rule(erase=1.0), 4, 3).chosen[0] == 1
    assert stale_ratio(Rule(erase=1.0), 3) == 0 and stale_ratio(Rule(), 3) == 1
    assert abs(stale_ratio(Rule(erase=0.25, write=0.25, retention=0.5), 1) - 0.75 * 0.5) < 1e-12


def test_random_keys_make_the_delta_rule_the_worse_archive_and_the_better_register():
    additive, delta = (simulate(RULES[n], 128, trials=40).accuracy for n in ("additive", "delta"))
    assert delta[0] == 1 > additive.mean() and delta[127] < 0.2 < additive[127] and delta.mean() < additive.mean()


def test_more_writes_than_the_kernel_has_value_channels():
    table = simulate(RULES["additive"], 300, trials=4)
    assert len(table) == 300 and np.isfinite(table.to_numpy()).all()


def test_bad_rules_are_named():
    for given, message in (
        ({"erase": 2.5}, "erase=2.5"),
        ({"retention": 1.2}, "retention=1.2"),
        ({"retention": 0.0}, "retention"),
    ):
        with pytest.raises(BadRequest, match=message):
            Rule(**given)
    with pytest.raises(BadRequest, match="3 channels"):
        simulate(Rule(retention=(0.5, 0.6, 0.7)), 4)
    with pytest.raises(BadRequest, match="versions=0"):
        simulate_overwrite(Rule(), 0, 1)
    with pytest.raises(BadRequest, match="writes=0"):
        simulate(Rule(), 0)
    with pytest.raises(BadRequest, match="trials=1; it must be at least 2"):
        simulate(Rule(), 4, trials=1)
    with pytest.raises(BadRequest, match="retention is empty"):
        Rule(retention=())
    with pytest.raises(BadRequest, match="lag=-1"):
        expected_signal(Rule(), -1)
    with pytest.raises(BadRequest, match="gap=0"):
        stale_ratio(Rule(), 0)
    with pytest.raises(BadRequest, match="write=0"):
        simulate_overwrite(Rule(write=0.0), 2, 3)
    with pytest.raises(BadRequest, match="write=nan"):
        Rule(write=float("nan"))
    with pytest.raises(BadRequest, match="candidates=1"):
        critical_load(candidates=1)
    with pytest.raises(BadRequest, match="key_channels=1"):
        half_life(Rule(erase=1.5), key_channels=1)
    with pytest.raises(BadRequest, match="lag=4; with writes=4"):
        expected_crosstalk(Rule(), 4, 4)
