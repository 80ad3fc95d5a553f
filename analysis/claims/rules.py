"""The rules that turn samples into verdicts, once for all claims (they are stated in docs/results.md and in the report).

* One-sided paired sign-flip tests, exact below 20 seeds; Holm's correction within one claim's contrasts, at most 10.
* Supported: every contrast has an adjusted p below .05 and an effect of at least its margin.
* Refuted: the 95% interval of some contrast lies wholly below its margin (outside it, for equivalence); a contrast that says
  what is possible cannot be refuted.
* A contrast with a ground (the runs learned the task; there was room for the effect) is refuted only where its ground is
  supported by the same rule. Nothing is supported by a ground.
* Fewer than 5 seeds decide nothing: no one-sided p can be below .05, and an interval over so few refutes nothing either.
* An intersection-union claim needs no correction: all of its contrasts must pass.
* A claim whose placebo passes by the same rule is not supported but inconclusive: the rule then finds what is not there. What
  is refuted stays refuted.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy import stats

from mnemolab.analysis.claims.claim import Claim, Contrast, Judgement, Sample, Verdict
from mnemolab.analysis.claims.power import ALPHA, LEAST, power_of, seeds_needed, seeds_to_bound
from mnemolab.analysis.statistics import holm, sign_flip, tost
from mnemolab.errors import BadRequest

__all__ = ["FAMILY", "contrasts", "decide", "interval", "judged", "passes"]

FAMILY = 10


def contrasts(samples: Sequence[Sample], margin: float, rule: str) -> list[Contrast]:
    """Judge the contrasts of one claim. Raises BadRequest for more than FAMILY of them or for values that are not finite."""
    if len(samples) > FAMILY:
        raise BadRequest(f"{len(samples)} contrasts in one claim; the most is {FAMILY}")
    if not samples:
        return []
    family = 1 if rule == "intersection" else len(samples)
    margins = [margin if s.margin is None else s.margin for s in samples]
    raw = [_p(sample, m) for sample, m in zip(samples, margins, strict=True)]
    adjusted = raw if family == 1 else [float(p) for p in holm(raw)]
    return [
        _grounded(_contrast(*each, family), each[0].ground)
        for each in zip(samples, margins, raw, adjusted, strict=True)
    ]


def decide(found: Sequence[Contrast]) -> str:
    """`supported` when all contrasts are, `refuted` when one is, else `inconclusive`."""
    outcomes = [c.outcome for c in found]
    if outcomes and all(o == "supported" for o in outcomes):
        return "supported"
    return "refuted" if "refuted" in outcomes else "inconclusive"


def passes(samples: Sequence[Sample], margin: float, rule: str) -> bool:
    """Whether the rule says "supported" of these samples: what a placebo must not."""
    return decide(contrasts(samples, margin, rule)) == "supported"


def judged(claim: Claim, judgement: Judgement) -> Verdict:
    """The verdict on a claim that trained models decide."""
    found = contrasts(judgement.samples, claim.margin, claim.rule)
    placebo = contrasts(judgement.placebo, claim.margin, claim.rule)
    twins = [contrasts([sample], claim.margin, claim.rule)[0] for sample in judgement.twins]
    verdict, fooled = decide(found), decide(placebo) == "supported"
    if verdict == "supported" and fooled:
        verdict, why = "inconclusive", "the placebo passes the same rule, so the effect may not be what it is named for"
    else:
        why = _why(verdict, found)
    if claim.reservation and verdict == "inconclusive":
        verdict, why = "undecidable here", claim.reservation
    key = _deciding(found, verdict)
    return Verdict(
        claim,
        verdict,
        why,
        _changes(verdict, found, fooled),
        None if key is None else key.effect,
        None if key is None else key.low,
        None if key is None else key.high,
        None if key is None else key.adjusted,
        # a contrast that asks for no margin has no least effect that could be missed
        min((c.power for c in found if c.margin > 0), default=None),
        seeds=key.n if key is not None and verdict == "refuted" else min((c.n for c in found), default=0),
        deciding="" if key is None else key.name,
        margin=None if key is None else key.margin,
        needed=None if fooled and verdict == "inconclusive" else _most_needed(found),
        contrasts=found,
        placebo=placebo,
        placebo_passed=fooled if placebo else None,
        twins=twins,
        numbers=judgement.numbers,
        runs=tuple(judgement.runs),
        note=judgement.note,
    )


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95% t interval of the mean over seeds; without end for one seed."""
    x = np.asarray(values, dtype=float)
    if len(x) < 2:
        return -math.inf, math.inf
    half = float(stats.t.isf(0.025, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x)))
    return float(x.mean()) - half, float(x.mean()) + half


def _values(sample: Sample) -> np.ndarray:
    x = np.array([sample.values[seed] for seed in sorted(sample.values)], dtype=float)
    if not np.isfinite(x).all():
        raise BadRequest(f"contrast {sample.name}: {int((~np.isfinite(x)).sum())} of {len(x)} values are not finite")
    return x


def _p(sample: Sample, margin: float) -> float:
    x = _values(sample)
    if not len(x):
        return 1.0
    if sample.p is not None:
        return sample.p
    if sample.test == "equivalent":
        return tost(x, margin).p
    return sign_flip(x, "greater", null=-margin if sample.test == "no worse" else 0.0).p


def _contrast(sample: Sample, margin: float, p: float, adjusted: float, family: int) -> Contrast:
    x = _values(sample)
    n = len(x)
    if not n:
        return Contrast(
            sample.name, sample.test, math.nan, -math.inf, math.inf, 1.0, 1.0, margin, 0, 0.0, None, "inconclusive"
        )
    effect, (low, high) = float(x.mean()), interval(x)  # type: ignore[arg-type]
    sd = float(x.std(ddof=1)) if n > 1 else math.nan
    significant = adjusted < ALPHA
    if sample.test in ("greater", "possible"):
        supported, refuted = significant and effect >= margin, high < margin and sample.test == "greater"
    elif sample.test == "no worse":
        supported, refuted = significant, high < -margin
    else:
        supported, refuted = significant, low > margin or high < -margin
    outcome = "supported" if supported else "refuted" if refuted and n >= LEAST else "inconclusive"
    # of a true effect of the margin; where the margin is the null, of no effect at all
    power = math.nan if n < 2 else power_of(margin, sd, n, family)
    return Contrast(
        sample.name, sample.test, effect, low, high, p, adjusted, margin, n, 0.0 if math.isnan(power) else power,
        n if outcome != "inconclusive" else None if n < 2 else _needed(sample.test, effect, margin, sd, family), outcome,
        values={str(seed): float(sample.values[seed]) for seed in sorted(sample.values)},
    )  # fmt: skip


def _grounded(found: Contrast, ground: Sample | None) -> Contrast:
    """`found`, but open where it is refuted by runs that could not have shown it."""
    if ground is None or found.outcome != "refuted":
        return found
    seen = contrasts([ground], 2 * found.margin, "family")[0]
    if seen.outcome == "supported":
        return found
    what = f"{seen.effect:.3g} ({seen.low:.3g} to {seen.high:.3g})" if seen.n else "of no seed"
    lacking = f"{ground.name}: {what}, to be at least {seen.margin:g}"
    return replace(found, outcome="inconclusive", needed=None, lacking=lacking)


def _needed(test: str, effect: float, margin: float, sd: float, family: int) -> int | None:
    """Seeds that would decide if the effect and its spread are as seen."""
    if test in ("greater", "possible"):
        return seeds_needed(effect, 0.0, margin, sd, family) or seeds_to_bound(margin - effect, sd)
    if test == "no worse":
        return seeds_needed(effect, -margin, -margin, sd, family) or seeds_to_bound(-margin - effect, sd)
    inside = margin - abs(effect)
    return seeds_needed(inside, 0.0, 0.0, sd, family) or seeds_to_bound(-inside, sd)


def reach(test: str, effect: float, margin: float) -> float:
    """How far an effect is beyond what its test asks for, in its unit; negative where it falls short."""
    return {"no worse": effect + margin, "equivalent": margin - abs(effect)}.get(test, effect - margin)


def _strength(c: Contrast) -> float:
    return reach(c.test, c.effect, c.margin) if c.n else -math.inf


def _deciding(found: Sequence[Contrast], verdict: str) -> Contrast | None:
    pool = [c for c in found if c.outcome == "refuted"] if verdict == "refuted" else list(found)
    pool = [c for c in pool if c.n] or list(pool)
    open_ = [c for c in pool if c.outcome == "inconclusive"]
    return min(open_ if verdict == "inconclusive" and open_ else pool, key=_strength, default=None)


def _most_needed(found: Sequence[Contrast]) -> int | None:
    """Seeds at which all open contrasts would be decided; None when one of them never would."""
    needed = [c.needed for c in found if c.outcome == "inconclusive"]
    if not needed:
        return max((c.n for c in found), default=None)
    return None if any(n is None for n in needed) else max(n for n in needed if n is not None)


def _why(verdict: str, found: Sequence[Contrast]) -> str:
    if not found:
        return "nothing was measured"
    if verdict == "supported":
        return f"all {len(found)} contrasts pass" if len(found) > 1 else "the contrast passes"
    if verdict == "refuted":
        named = [c.name for c in found if c.outcome == "refuted"]
        return f"the 95% interval lies wholly outside what was predicted: {'; '.join(named)}"
    least = min(c.n for c in found)
    if least == 0:
        named = [c.name for c in found if c.n == 0]
        return f"no seed meets the precondition, such as success at lag zero: {'; '.join(named)}"
    if least < LEAST:
        return f"with {least} seed{'s' * (least != 1)} no one-sided p can be below .05; it takes {LEAST} or more"
    lacking = [c.lacking for c in found if c.lacking]
    if lacking:
        return f"not shown, and these runs could not have shown it: {'; '.join(dict.fromkeys(lacking))}"
    named = [c.name for c in found if c.outcome == "inconclusive"]
    return f"neither shown nor excluded: {'; '.join(named)}"


def _changes(verdict: str, found: Sequence[Contrast], fooled: bool) -> str:
    """What would change the verdict, in words."""
    if fooled:
        return "a placebo that fails, as it must"
    if verdict == "supported":
        return "a replication in which a contrast's 95% interval lies below its margin, or whose placebo passes"
    if verdict == "refuted":
        return "a replication in which every contrast reaches its margin with an adjusted p below .05"
    if any(c.lacking for c in found):
        return "sizes or steps at which the ground is there; more seeds of these runs would not do"
    needed = _most_needed(found)
    if needed is not None and found:
        return f"about {needed} seeds, if effect and spread are as seen"
    if any(c.n < 2 for c in found) or not found:
        return "more seeds; so few say nothing about their spread"
    return "more than 999 seeds at this spread, or a sharper design: the effect lies at its margin"
