"""Tests and effect sizes against values worked by hand or by scipy."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from mnemolab.analysis import statistics as s
from mnemolab.analysis.compare import compare_arms, compare_steps, steps_to_criterion
from mnemolab.analysis.report import summary
from mnemolab.errors import BadRequest


@pytest.mark.parametrize(("runs", "p"), [(3, 0.25), (4, 0.125), (5, 0.0625), (6, 0.03125), (8, 0.0078125)])
def test_least_two_sided_p_of_the_exact_sign_flip(runs, p):
    out = s.sign_flip(np.arange(1, runs + 1))
    assert out.p == p == out.least_p and out.exact
    assert s.sign_flip(np.arange(1, runs + 1), "greater").p == p / 2
    assert s.sign_flip(np.arange(1, runs + 1), "less").p == 1


def test_sign_flip_by_hand():
    # sums of +-1 +-2 +-4: only 7, 5 reach 5
    assert s.sign_flip([-1, 2, 4], "greater").p == 2 / 8
    assert s.sign_flip([-1, 2, 4]).p == 4 / 8
    assert s.sign_flip([0.0, 0.0, 0.0]).p == 1


def test_sign_flip_agrees_with_scipy_and_stays_exact_below_20():
    d = np.random.default_rng(0).normal(0.4, 1, 12)
    theirs = stats.permutation_test(
        (d,), np.mean, permutation_type="samples", n_resamples=10**6, alternative="two-sided"
    )
    assert s.sign_flip(d).p == pytest.approx(theirs.pvalue, abs=1e-12)
    d = np.random.default_rng(1).normal(0.4, 1, 19)
    assert s.sign_flip(d).exact and not s.sign_flip(np.append(d, 0.1)).exact
    assert s.sign_flip(np.append(d, 0.1)).p == pytest.approx(s.sign_flip(d).p, abs=0.05)


def test_sign_flip_holds_its_level():
    rng = np.random.default_rng(2)
    ps = np.array([s.sign_flip(rng.standard_t(3, 8)).p for _ in range(400)])
    assert (ps < 0.05).mean() <= 0.075


def test_sign_flip_against_a_null_other_than_zero():
    assert s.sign_flip([0.3, 0.31, 0.29, 0.3, 0.32, 0.3], "greater", null=0.2).p == 1 / 64
    assert s.sign_flip([0.3, 0.31, 0.29], null=0.3).effect == pytest.approx(0.3)


def test_tost():
    assert s.tost([0.001, -0.002, 0.0, 0.001, 0.002, -0.001], 0.02).p == 1 / 64
    assert s.tost([0.03, 0.04, 0.03, 0.05, 0.04, 0.03], 0.02).p == 1
    with pytest.raises(BadRequest, match="margin"):
        s.tost([0.1], 0)


def test_holm_and_benjamini_hochberg_by_hand():
    p = [0.01, 0.04, 0.03, 0.005]
    assert s.holm(p).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert s.benjamini_hochberg(p).tolist() == pytest.approx(stats.false_discovery_control(p).tolist())
    with pytest.raises(BadRequest, match="outside"):
        s.holm([1.2])


def test_no_star_below_six_runs():
    assert s.mark(0.0001, 5).startswith("no star") and "*" not in s.mark(0.0001, 5)
    assert [s.mark(p, 6) for p in (0.2, 0.04, 0.004, 0.0004)] == ["n.s.", "*", "**", "***"]


def test_effect_sizes():
    a, b = [2.0, 3, 4], [1.0, 2, 3]
    assert s.hedges_g(a, b) == pytest.approx(1 * (1 - 3 / 15))
    assert s.hedges_g([1, 1], [1, 1]) == 0 and s.hedges_g([1, 1], [0, 0]) == np.inf
    assert s.cliffs_delta(a, b) == pytest.approx((6 - 1) / 9)
    assert s.probability_of_improvement(a, b) == pytest.approx((6 + 1) / 9)
    assert s.paired_difference(a, b) == (1, 1, 1)
    with pytest.raises(BadRequest, match="pair"):
        s.paired_difference([1, 2], [1])


def test_kaplan_meier_by_hand():
    out = s.kaplan_meier([1, 2, 2, 3, 4], [True, True, False, True, False])
    assert out["time"].tolist() == [0, 1, 2, 3]
    assert out["survival"].tolist() == pytest.approx([1, 0.8, 0.6, 0.3])
    assert (out["low"] <= out["survival"]).all() and (out["survival"] <= out["high"]).all()
    assert s.survival_quantile([1, 2, 2, 3, 4], [True, True, False, True, False]) == 3
    assert s.survival_quantile([5, 5, 5], [False] * 3) == np.inf
    theirs = stats.ecdf(stats.CensoredData(uncensored=[1, 2, 3], right=[2, 4])).sf
    assert out["survival"].tolist()[1:] == pytest.approx(theirs.probabilities[[0, 1, 2]].tolist())


@pytest.mark.filterwarnings("ignore:The confidence interval is undefined")  # where nobody is left
def test_kaplan_meier_limits_are_those_of_scipy():
    """Log-log limits against scipy.stats.ecdf, where they are defined there, for censored times with ties."""
    rng = np.random.default_rng(3)
    for n in (7, 20, 60):
        t, seen = np.ceil(rng.exponential(10, n)), rng.random(n) < 0.7
        theirs = stats.ecdf(stats.CensoredData.right_censored(t, ~seen)).sf
        bounds = theirs.confidence_interval(confidence_level=0.9, method="log-log")
        table = s.kaplan_meier(t, seen, confidence=0.9)
        ours = {row["time"]: row for row in table.to_dict("records")}
        checked = 0
        for time, low, high in zip(theirs.quantiles, bounds.low.probabilities, bounds.high.probabilities, strict=True):
            if time in ours and np.isfinite([low, high]).all() and ours[time]["survival"] > 0:
                assert [ours[time]["low"], ours[time]["high"]] == pytest.approx([low, high], abs=1e-9)
                checked += 1
        assert checked >= 3


def test_steps_count_the_runs_that_never_arrive():
    """2 of 6 runs arrive early, 4 never: the median over runs is not that of the two."""
    slow = pd.DataFrame({"arm": "kda", "steps_to_solved": [100, 120, None, None, None, None]})
    fast = pd.DataFrame({"arm": "gpt2", "steps_to_solved": [40, 50, 60, 70, 80, None]})
    runs = pd.concat([slow, fast]).assign(task="t", steps=600, seed=[*range(6), *range(6)])
    assert s.survival_quantile(*steps_to_criterion(slow.assign(steps=600))) == np.inf
    row = compare_steps(runs).iloc[0]
    assert (row["a"], row["steps_a"], row["steps_b"], row["solved_a"], row["solved_b"]) == ("gpt2", 60, np.inf, 5, 2)
    assert row["hazard"] > 1 and row["p"] < 0.05 and row["star"] == "*"
    assert summary(runs).set_index("model")["steps"].to_dict() == {"GPT-2": 60, "KDA": np.inf}
    assert (
        compare_steps(runs.assign(steps_to_solved=None)).empty
        and compare_steps(runs.drop(columns="steps_to_solved")).empty
    )


def test_log_rank_agrees_with_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.exponential(1, 12), rng.exponential(2.5, 12)
    seen_a, seen_b = a < 3, b < 3
    ours = s.log_rank(np.minimum(a, 3), seen_a, np.minimum(b, 3), seen_b)
    theirs = stats.logrank(
        stats.CensoredData.right_censored(np.minimum(a, 3), ~seen_a),
        stats.CensoredData.right_censored(np.minimum(b, 3), ~seen_b),
    )
    assert ours.p == pytest.approx(theirs.pvalue, abs=1e-9) and ours.hazard > 1
    assert ours.p_permuted == pytest.approx(ours.p, abs=0.02)


def test_arms_are_compared_in_pairs_by_seed():
    rows = [
        (arm, seed, base + seed / 100) for arm, base in (("kda", 0.8), ("gpt2", 0.9), ("rnn", 0.2)) for seed in range(6)
    ]
    runs = pd.DataFrame(rows, columns=["arm", "seed", "test.accuracy"]).assign(task="t")
    out = compare_arms(runs).set_index(["a", "b"])
    assert out.loc[("gpt2", "kda"), "difference"] == pytest.approx(0.1) and out.loc[("gpt2", "kda"), "runs"] == 6
    assert (
        (out["p"] == 2 / 64).all()
        and out["p_holm"].tolist() == pytest.approx([6 / 64] * 3)
        and (out["star"] == "n.s.").all()
    )
    assert out.loc[("gpt2", "kda"), "better"] == 1 and (out["p_equal"] == 1).all()
    alike = runs[runs["arm"] != "rnn"].assign(**{"test.accuracy": lambda f: 0.9 + f["seed"] / 100})
    assert compare_arms(alike)["p_equal"].item() == 1 / 64
    few = compare_arms(runs[runs["seed"] < 3])
    assert few["star"].str.startswith("no star").all()
    assert compare_arms(runs[runs["seed"] < 1]).empty


def test_log_rank_defined_at_the_edges():
    assert s.log_rank([5, 5], [False, False], [5, 5], [False, False]).p == 1
    same = s.log_rank([1, 2], [True, True], [1, 2], [True, True])
    assert same.p == 1 and same.hazard == 1
    with pytest.raises(BadRequest, match="survival"):
        s.kaplan_meier([], [])
