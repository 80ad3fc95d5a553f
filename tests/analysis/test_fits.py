"""Planted forgetting curves are found again: parameters, half-lives, families, and the edges of the data."""

import numpy as np
import pandas as pd
import pytest

from mnemolab.analysis.families import FAMILIES, half_life_of, natural, unconstrained
from mnemolab.analysis.fits import Cells, _cost, fit, fit_all, fit_runs, predict
from mnemolab.errors import BadRequest

LAGS = np.unique(np.round(np.geomspace(1, 256, 24)))
CHANCE, LAPSE, QUERIES = 1 / 16, 0.01, 400  # the stated sample size: 24 lags, 400 queries each
PLANTED = {
    "exponential": (0.95, 40),
    "exponential_floor": (0.95, 20, 0.3),
    "power": (0.95, 20),
    "wickelgren": (0.95, 30, 0.6),
    "logistic": (0.97, 50, 2.5),
    "two_exponentials": (0.95, 25, 0.6, 0.02),
}


def planted(name: str, seed: int, queries: int = QUERIES, rho: float = 0.0) -> Cells:
    rng = np.random.default_rng([seed, len(name)])
    p = CHANCE + (1 - CHANCE - LAPSE) * FAMILIES[name].curve(LAGS, *PLANTED[name])
    if rho:
        p = rng.beta(p * (1 - rho) / rho, (1 - p) * (1 - rho) / rho)
    return Cells.of(LAGS, rng.binomial(queries, p), queries, CHANCE)


def covered(name: str, trials: int, rho: float = 0.0) -> float:
    truth = half_life_of(FAMILIES[name], np.array(PLANTED[name]))
    fits = [fit(planted(name, seed, rho=rho), name, lapse=LAPSE) for seed in range(trials)]
    return float(np.mean([f.low <= truth <= f.high for f in fits]))


@pytest.mark.parametrize("name", PLANTED)
def test_planted_parameters_are_recovered(name):
    found = fit(planted(name, 1, queries=20_000), name, lapse=LAPSE)
    for parameter, truth in zip(FAMILIES[name].parameters, PLANTED[name], strict=True):
        assert found.parameters[parameter] == pytest.approx(truth, rel=0.15), parameter
    assert found.half_life == pytest.approx(half_life_of(FAMILIES[name], np.array(PLANTED[name])), rel=0.06)
    assert found.low < found.half_life < found.high and not found.extrapolated and found.dispersion == 0


@pytest.mark.parametrize("name", PLANTED)
def test_intervals_cover(name):
    assert covered(name, 30) >= 0.86  # 30 trials: below .86 is a chance of 1 in 50 at coverage .95


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.0, 0.02])
@pytest.mark.parametrize("name", PLANTED)
def test_intervals_cover_between_90_and_98_percent(name, rho):
    assert 0.90 <= covered(name, 400, rho) <= 0.98


@pytest.mark.parametrize("name", PLANTED)
def test_selection_finds_the_planted_family(name):
    picked = [fit_all(planted(name, seed), lapse=LAPSE, interval="none")[0].family for seed in range(8)]
    assert picked.count(name) >= 5


def test_weights_sum_to_one_and_rank_by_aicc():
    found = fit_all(planted("exponential", 0), lapse=LAPSE)
    assert sum(f.weight for f in found) == pytest.approx(1)
    assert [f.aicc for f in found] == sorted(f.aicc for f in found) and len(found) == 6


def test_scatter_between_cells_turns_the_likelihood_beta_binomial():
    found = fit(planted("exponential", 3, rho=0.05), "exponential", lapse=LAPSE)
    assert found.dispersion == pytest.approx(0.05, rel=0.6)
    tight = fit(planted("exponential", 3, rho=0.05), "exponential", lapse=LAPSE, overdispersion=False)
    assert np.log(found.high / found.low) > 1.5 * np.log(tight.high / tight.low)


def test_half_lives_by_their_formulas():
    for name, parameters in PLANTED.items():
        family = FAMILIES[name]
        h = half_life_of(family, np.array(parameters))
        assert family.curve(np.array([h]), *parameters)[0] == pytest.approx(parameters[0] / 2, rel=1e-6)
        assert family.curve(np.array([0.0]), *parameters)[0] == pytest.approx(parameters[0])
        assert natural(family, unconstrained(family, np.array(parameters))) == pytest.approx(parameters)
    assert FAMILIES["exponential"].derived(1, 40)["tau"] == pytest.approx(40 / np.log(2))
    assert FAMILIES["wickelgren"].derived(1, 30, 1.0)["beta"] == pytest.approx(1 / 30)


def test_a_floor_above_half_has_no_half_life():
    family = FAMILIES["exponential_floor"]
    p = CHANCE + (1 - CHANCE) * family.curve(LAGS, 1.0, 10, 0.7)
    found = fit(Cells.of(LAGS, np.round(5000 * p), 5000, CHANCE), "exponential_floor")
    assert np.isinf(found.half_life) and np.isinf(found.high) and found.extrapolated and found.low > 256 and found.note


def test_all_right_all_wrong_and_at_chance_are_defined():
    right = fit(Cells.of(LAGS, QUERIES, QUERIES, CHANCE))
    assert np.isinf(right.half_life) and right.low > 256 and "no forgetting" in right.note and right.extrapolated
    wrong = fit(Cells.of(LAGS, 0, QUERIES, CHANCE))
    assert wrong.half_life == 0 and "at chance" in wrong.note
    chance = fit_all(Cells.of(LAGS, QUERIES * CHANCE, QUERIES, CHANCE))[0]
    assert chance.half_life == 0 and "at chance" in chance.note


def test_extrapolation_is_flagged():
    p = CHANCE + (1 - CHANCE) * FAMILIES["exponential"].curve(LAGS, 1.0, 2000)
    found = fit(Cells.of(LAGS, np.round(QUERIES * p), QUERIES, CHANCE))
    assert found.extrapolated and found.half_life > 256


def test_predict_is_the_planted_curve():
    found = fit(planted("power", 0, queries=50_000), "power", lapse=LAPSE)
    truth = CHANCE + (1 - CHANCE - LAPSE) * FAMILIES["power"].curve(LAGS, *PLANTED["power"])
    assert np.abs(predict(found, LAGS, CHANCE, LAPSE) - truth).max() < 0.01


@pytest.mark.parametrize("exponent", [0.01, 0.02, 0.05])
def test_slow_powers_are_no_worse_fitted_than_fast_ones(exponent):
    """A power of .01 halves after 1e30 lags: no bound on half-lives may stop it, nor its interval."""
    right = np.round(20_000 * 0.9 * (1 + LAGS) ** -exponent)
    found = fit(Cells.of(LAGS, right, 20_000), "power")
    assert found.parameters["b"] == pytest.approx(exponent, rel=0.01) and found.parameters["a"] == pytest.approx(
        0.9, abs=1e-3
    )
    truth = np.expm1(np.log(2) / exponent)
    assert found.low < truth < found.high < np.inf and found.extrapolated
    assert np.log(found.high / found.low) > 0.2  # neither end stands still
    # Wickelgren's law holds the power (beta = 1), so it fits at least as well
    wider = fit(Cells.of(LAGS, right, 20_000), "wickelgren", interval=False)
    assert wider.log_likelihood >= found.log_likelihood - 0.5


def test_cells_without_a_question_and_too_few_lags_are_said():
    sure = Cells.of(LAGS, 300, QUERIES, np.where(LAGS < 3, 1.0, CHANCE))
    assert sure.lag.min() == 3 and np.isfinite(fit(sure).half_life)
    with pytest.raises(BadRequest, match="chance is not a number in 21 of 21 cells"):
        Cells.of(LAGS, 300, QUERIES, np.nan)
    three = fit_all(Cells.of([1, 2, 4], [90, 70, 50], 100))
    assert all("3 lags are too few to compare families" in f.note for f in three)
    assert np.allclose([f.weight for f in three], 1 / 6)
    frame = pd.DataFrame(
        {"run_id": "a", "arm": "kda", "example": 0, "lag_tokens": [1, 2, 3], "correct": True, "chance": np.nan}
    )
    with pytest.raises(BadRequest, match="chance is missing in 3 of 3"):
        fit_runs(frame)


def test_every_family_fits_at_least_as_well_as_the_one_it_holds():
    """Flat, slow and fast curves: no start or bound keeps a richer family from its special case."""
    for p in (
        np.full(len(LAGS), 0.6),
        0.9 * np.exp2(-LAGS / 1e5),
        0.9 * np.exp2(-LAGS / 0.5),
        0.9 * (1 + LAGS) ** -0.03,
    ):
        cells = Cells.of(LAGS, np.round(2000 * p), 2000)
        best = {n: fit(cells, n, interval=False, overdispersion=False).log_likelihood for n in FAMILIES}
        for rich in ("exponential_floor", "two_exponentials"):
            assert best[rich] >= best["exponential"] - 0.3, (rich, best)
        assert best["wickelgren"] >= max(best["power"], best["exponential"]) - 0.3, best


def test_an_interval_holds_every_half_life_that_fits_about_as_well():
    """Two exponentials have several valleys: here the planted curve is 1.5 nats below the best, in another one."""
    rng, family, truth = np.random.default_rng(11), FAMILIES["two_exponentials"], np.array([0.95, 10, 0.5, 0.05])
    lag = np.arange(1, 33.0)
    p = 0.125 + 0.875 * family.curve(lag, *truth)
    for _ in range(5):
        n = rng.integers(20, 120, 32)
        right = rng.binomial(n, p)
    cells = Cells.of(lag, right, n, 0.125)
    found = fit(cells, "two_exponentials")
    drop = float(_cost(family, cells, 0.0, False)(unconstrained(family, truth))) + found.log_likelihood
    assert found.dispersion == 0 and 1 < drop < 1.9
    assert found.low < 10 < found.high


def test_bad_requests():
    with pytest.raises(BadRequest, match="at least 3"):
        Cells.of([1, 1, 2], 1, 2)
    with pytest.raises(BadRequest, match="did you mean 'power'"):
        fit(planted("power", 0), "powr")
    with pytest.raises(BadRequest, match="lapse"):
        fit(planted("power", 0), "power", lapse=0.99)
    with pytest.raises(BadRequest, match="right <= n"):
        Cells.of([1, 2, 3], 3, 2)


def test_runs_are_fitted_one_by_one():
    frames = []
    for run, h in (("a", 10), ("b", 80)):
        rng = np.random.default_rng(0)
        lag = rng.integers(1, 100, 3000)
        frames.append(
            pd.DataFrame(
                {
                    "run_id": run, "arm": "kda", "example": np.arange(3000), "lag_tokens": lag, "chance": 0.05,
                    "correct": rng.random(3000) < 0.05 + 0.95 * np.exp2(-lag / h),
                }
            )
        )  # fmt: skip
    frames.append(frames[0].assign(run_id="c", lag_tokens=1))
    out = fit_runs(pd.concat(frames), families=["exponential", "power"])
    best = out[out["best"].astype(bool)].set_index("run_id")
    assert best.loc["a", "half_life"] == pytest.approx(10, rel=0.3)
    assert best.loc["b", "half_life"] == pytest.approx(80, rel=0.3)
    assert "at least 3" in out[out["run_id"] == "c"]["note"].item()
