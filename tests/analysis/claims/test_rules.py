"""The rules on hand-made numbers: what they must call supported, refuted and inconclusive, and how often they are fooled."""

import math
from dataclasses import replace

import numpy as np
import pytest

from mnemolab.analysis.claims import Claim, Judgement, Sample
from mnemolab.analysis.claims.power import LEAST, fewest, power_of, seeds_needed, seeds_to_bound
from mnemolab.analysis.claims.rules import contrasts, decide, interval, judged, passes
from mnemolab.errors import BadRequest

MARGIN = 0.05


def sample(mean: float, sd: float = 0.02, n: int = 12, test: str = "greater", seed: int = 0) -> Sample:
    """n numbers with exactly this mean and spread."""
    x = np.random.default_rng(seed).normal(size=n)
    x = (x - x.mean()) / x.std(ddof=1) if n > 1 else np.zeros(1)
    return Sample("c", dict(enumerate(mean + sd * x)), test)


def outcome(*samples: Sample, rule: str = "family") -> str:
    return decide(contrasts(samples, MARGIN, rule))


def claim(**more) -> Claim:
    fields = {
        "kind": "trained",
        "statistic": "s",
        "direction": "up",
        "margin": MARGIN,
        "unit": "points",
        "rule": "family",
    }
    return Claim("c", "a claim", "here", placebo="none", **(fields | more))


@pytest.mark.parametrize(
    ("mean", "expected"), [(0.10, "supported"), (0.0, "refuted"), (-0.1, "refuted"), (0.049, "inconclusive")]
)
def test_one_sided_with_a_margin(mean, expected):
    assert outcome(sample(mean)) == expected


def test_a_contrast_keeps_what_it_was_judged_by():
    values = {607: 0.25, 600: -0.5, 601: 0.75}
    (found,) = contrasts([Sample("a", values)], 0.1, "family")
    assert found.values == {"600": -0.5, "601": 0.75, "607": 0.25}
    assert found.effect == pytest.approx(np.mean(list(found.values.values())))
    assert contrasts([Sample("a", {})], 0.1, "family")[0].values == {}


@pytest.mark.parametrize(("mean", "expected"), [(0.10, "supported"), (0.0, "inconclusive"), (-0.1, "inconclusive")])
def test_what_is_possible_is_shown_and_never_refuted(mean, expected):
    assert outcome(sample(mean, test="possible")) == expected


@pytest.mark.parametrize(
    ("mean", "ground", "expected"),
    [(0.0, 0.2, "refuted"), (0.0, 0.01, "inconclusive"), (-0.3, 0.0, "inconclusive"), (0.2, 0.0, "supported")],
)
def test_only_runs_that_could_have_shown_it_refute(mean, ground, expected):
    """A ground keeps from refuting and does nothing else."""
    given = replace(sample(mean), ground=replace(sample(ground), name="room for it"))
    found = judged(claim(), Judgement([given]))
    assert found.verdict == expected
    if expected == "inconclusive":
        assert found.contrasts[0].lacking.startswith("room for it: ") and found.needed is None
        assert (
            "could not have shown it: room for it" in found.why
            and "more seeds of these runs would not do" in found.changes
        )
    else:
        assert not found.contrasts[0].lacking
    assert judged(claim(), Judgement([replace(given, ground=None)])).verdict == ("supported" if mean > 0 else "refuted")


def test_a_ground_that_nothing_was_measured_of_refutes_nothing():
    found = contrasts([replace(sample(0.0), ground=Sample("learned", {}))], MARGIN, "family")[0]
    assert found.outcome == "inconclusive" and "of no seed" in found.lacking


def test_significant_but_below_the_margin_is_not_supported():
    (found,) = contrasts([sample(0.045, sd=0.02)], MARGIN, "family")
    assert found.p < 0.05 and found.outcome == "inconclusive"


def test_three_seeds_decide_nothing_and_say_how_many_would():
    for mean in (0.2, -0.2):
        (found,) = contrasts([sample(mean, n=3)], MARGIN, "family")
        assert found.outcome == "inconclusive" and found.p >= 1 / 8
        assert found.needed is not None and LEAST <= found.needed <= 12
    verdict = judged(claim(), Judgement([sample(0.2, n=3)]))
    assert verdict.verdict == "inconclusive" and "3 seeds" in verdict.why and str(verdict.needed) in verdict.changes


def test_seeds_that_would_decide_do_decide():
    for mean in (0.09, 0.01):
        (found,) = contrasts([sample(mean, sd=0.03, n=3)], MARGIN, "family")
        assert found.needed is not None
        decided = [outcome(_drawn(mean, 0.03, found.needed, seed)) for seed in range(60)]
        assert np.mean([d != "inconclusive" for d in decided]) > 0.7


def _drawn(mean: float, sd: float, n: int, seed: int) -> Sample:
    return Sample("c", dict(enumerate(np.random.default_rng(seed).normal(mean, sd, n))))


@pytest.mark.parametrize(
    ("mean", "expected"),
    [(0.0, "supported"), (0.03, "supported"), (0.2, "refuted"), (-0.2, "refuted"), (0.05, "inconclusive")],
)
def test_equivalence(mean, expected):
    assert outcome(sample(mean, test="equivalent")) == expected


@pytest.mark.parametrize(
    ("mean", "expected"), [(0.0, "supported"), (0.3, "supported"), (-0.2, "refuted"), (-0.05, "inconclusive")]
)
def test_no_worse(mean, expected):
    assert outcome(sample(mean, test="no worse")) == expected


def test_holm_and_intersection_union_differ_as_they_must():
    weak = [Sample(f"c{i}", dict(enumerate([0.3] * 6))) for i in range(4)]  # p = 1/64 each
    family, union = (contrasts(weak, MARGIN, rule) for rule in ("family", "intersection"))
    assert [c.adjusted for c in family] == pytest.approx([4 / 64] * 4) and decide(family) == "inconclusive"
    assert [c.adjusted for c in union] == pytest.approx([1 / 64] * 4) and decide(union) == "supported"


def test_every_contrast_must_pass_and_one_refutes():
    assert outcome(sample(0.1), sample(0.1, seed=1)) == "supported"
    assert outcome(sample(0.1), sample(0.045)) == "inconclusive"
    assert outcome(sample(0.1), sample(0.0)) == "refuted"


def test_a_placebo_that_passes_takes_the_verdict_back():
    honest = judged(claim(), Judgement([sample(0.1)], placebo=[sample(0.0)]))
    fooled = judged(claim(), Judgement([sample(0.1)], placebo=[sample(0.1)]))
    assert honest.verdict == "supported" and honest.placebo_passed is False
    assert fooled.verdict == "inconclusive" and fooled.placebo_passed is True and "placebo" in fooled.why
    assert fooled.needed is None and honest.needed == 12  # no number of seeds mends a placebo


def test_a_reservation_turns_inconclusive_into_undecidable_and_nothing_else():
    held = claim(reservation="too small")
    assert judged(held, Judgement([sample(0.045)])).verdict == "undecidable here"
    assert judged(held, Judgement([sample(0.1)])).verdict == "supported"
    assert judged(held, Judgement([sample(-0.1)])).verdict == "refuted"


def test_a_p_of_another_test_is_used():
    x = dict(enumerate([0.2] * 12))
    assert outcome(Sample("c", x, p=0.2)) == "inconclusive"
    assert outcome(Sample("c", x, p=0.001)) == "supported"


def test_the_contrast_that_decides_is_reported():
    verdict = judged(claim(), Judgement([sample(0.3), sample(0.0, seed=1)]))
    assert verdict.effect == pytest.approx(0.0, abs=1e-9) and verdict.verdict == "refuted"
    assert judged(claim(), Judgement([sample(0.3), sample(0.1)])).effect == pytest.approx(0.1)


def test_no_seed_is_inconclusive_and_too_many_contrasts_are_refused():
    assert outcome(Sample("c", {})) == "inconclusive"
    assert judged(claim(), Judgement([])).verdict == "inconclusive"
    nobody = judged(claim(), Judgement([Sample("falls with distance", {})]))
    assert nobody.verdict == "inconclusive" and "no seed meets the precondition" in nobody.why
    with pytest.raises(BadRequest, match="11 contrasts"):
        contrasts([sample(0.1)] * 11, MARGIN, "family")
    with pytest.raises(BadRequest, match="not finite"):
        contrasts([Sample("c", {0: math.nan})], MARGIN, "family")


def test_a_against_a_is_rarely_supported():
    rng = np.random.default_rng(0)
    for n in (5, 12):
        hits = [passes([Sample("a", dict(enumerate(rng.normal(0, 0.1, n))))], 0.0, "family") for _ in range(400)]
        assert np.mean(hits) <= 0.1 and np.mean(hits) > 0.01  # the rule can be fooled, at its stated rate


def test_power_floor_and_agreement_with_simulation():
    assert fewest() == 5 and fewest(10) == 8
    assert power_of(0.1, 0.1, 4) == 0 and power_of(0.1, 0.0, 5) == 1
    rng = np.random.default_rng(1)
    drawn = [contrasts([Sample("c", dict(enumerate(rng.normal(0.1, 0.1, 10))))], 0.0, "family")[0] for _ in range(200)]
    assert np.mean([c.p < 0.05 for c in drawn]) == pytest.approx(power_of(0.1, 0.1, 10), abs=0.08)
    assert seeds_needed(0.1, 0.0, 0.05, 0.0) == 5 and seeds_needed(0.04, 0.0, 0.05, 0.01) is None
    assert seeds_to_bound(0.05, 0.01) == 5 and seeds_to_bound(-0.01, 0.01) is None


def test_interval_covers():
    rng = np.random.default_rng(2)
    hits = [low <= 0.3 <= high for low, high in (interval(rng.normal(0.3, 0.1, 6)) for _ in range(800))]
    assert 0.93 <= np.mean(hits) <= 0.97
    assert interval([0.5]) == (-math.inf, math.inf)


def test_power_is_that_of_the_contrasts_that_ask_for_a_margin():
    """One without a margin has no least effect that could be missed: alone it leaves the power open."""
    asked, bare = sample(0.3), replace(sample(0.3, seed=1), margin=0.0)
    found = judged(claim(), Judgement([asked, bare]))
    assert found.power is not None and found.power == found.contrasts[0].power > 0.9
    assert judged(claim(), Judgement([bare])).power is None
