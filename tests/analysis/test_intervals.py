"""Intervals against values worked by hand and against simulated coverage."""

import numpy as np
import pytest

from mnemolab.analysis import statistics
from mnemolab.analysis.statistics.intervals import levels
from mnemolab.errors import BadRequest


def test_wilson_known_values():
    share, low, high = statistics.wilson(8, 10)
    assert share == 0.8 and low == pytest.approx(0.4901625, abs=1e-6) and high == pytest.approx(0.9433178, abs=1e-6)
    assert statistics.wilson(0, 3)[:2] == (0, 0) and statistics.wilson(3, 3)[2] == 1
    with pytest.raises(BadRequest, match="trials"):
        statistics.wilson(0, 0)


def test_iqm_trims_a_quarter_at_each_end():
    assert statistics.iqm([100, 1, 2, 3, 4, 5, 6, -100]) == pytest.approx(3.5)
    assert statistics.iqm([[0, 0], [1, 2], [2, 4], [9, 9]]).tolist() == [1.5, 3.0]


def test_equal_samples_give_a_point_not_nan():
    assert statistics.mean_interval([1.0, 1.0, 1.0]) == (1, 1, 1)
    assert statistics.mean_interval([0.3]) == (0.3, 0.3, 0.3)
    ones = [np.ones((5, 2))] * 3
    mean, low, high = statistics.hierarchical_bootstrap(ones, ones)
    assert mean.tolist() == low.tolist() == high.tolist() == [1, 1]


def test_the_mean_of_few_runs_is_covered():
    """A bootstrap over 3 runs spans them at most, which holds their mean in 3 of 4 cases."""
    rng = np.random.default_rng(0)
    for runs in (2, 3, 5):
        found = np.array([statistics.mean_interval(rng.normal(size=runs)) for _ in range(400)])
        assert 0.92 <= ((found[:, 1] <= 0) & (found[:, 2] >= 0)).mean() <= 0.98, runs
    _, low, high = statistics.mean_interval([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 4.302653 / np.sqrt(3), 2 + 4.302653 / np.sqrt(3)))
    six = statistics.mean_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert 1 <= six[1] < 2.5 and 4.5 < six[2] <= 6  # from 6 runs on the bootstrap


def test_scores_that_are_no_numbers_are_refused():
    for bad, said in (([], "no scores"), ([0.5, np.nan], "1 of 2 scores")):
        with pytest.raises(BadRequest, match=said):
            statistics.iqm(bad)
        with pytest.raises(BadRequest, match=said):
            statistics.performance_profile(bad, [0.1])


def test_no_values_and_not_finite_values_are_refused():
    for bad in ([], [1.0, np.nan]):
        with pytest.raises(BadRequest):
            statistics.mean_interval(bad)
    with pytest.raises(BadRequest):
        statistics.hierarchical_bootstrap([], [])


def test_interval_levels_widen_with_few_runs():
    assert levels(1) == pytest.approx((0.025, 0.975))
    assert levels(3)[0] < 1e-6 and levels(12)[0] == pytest.approx(0.0108, abs=5e-4)
    assert levels(100_000)[0] == pytest.approx(0.025, abs=1e-4)


def test_hierarchical_bootstrap_covers_the_mean_over_runs():
    """Runs differ (sd .1), sequences too: 8 runs of 40 sequences with 3 queries; 95% intervals cover 90 to 99% of the time."""
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(120):
        truth = np.clip(rng.normal(0.6, 0.1, 8), 0, 1)
        counts = [np.full((40, 1), 3.0)] * 8
        sums = [rng.binomial(3, p, size=(40, 1)).astype(float) for p in truth]
        _, low, high = statistics.hierarchical_bootstrap(sums, counts, draws=300, seed=trial)
        covered += bool(low[0] <= 0.6 <= high[0])
    assert 0.90 <= covered / 120 <= 0.995


def test_one_run_gets_an_interval_over_sequences():
    rng = np.random.default_rng(0)
    sums = rng.binomial(1, 0.5, size=(100, 1)).astype(float)
    mean, low, high = statistics.hierarchical_bootstrap([sums], [np.ones((100, 1))], draws=2000)
    assert high[0] - low[0] == pytest.approx(2 * 1.96 * np.sqrt(mean[0] * (1 - mean[0]) / 100), rel=0.15)


def test_runs_without_queries_in_a_cell_do_not_count_there():
    sums, counts = np.array([[1.0, 0.0]] * 4), np.array([[1.0, 0.0]] * 4)
    other = np.array([[0.0, 1.0]] * 4)
    mean, low, high = statistics.hierarchical_bootstrap([sums, other], [counts, np.ones((4, 2))])
    assert mean.tolist() == [0.5, 1.0] and low[1] == high[1] == 1.0


def test_performance_profile():
    assert statistics.performance_profile([0.2, 0.5, 0.9, 1.0], [0, 0.5, 0.95]).tolist() == [1, 0.5, 0.25]
