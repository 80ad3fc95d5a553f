"""Tests on one number a run, paired by seed, and the effect sizes to report beside them.

Sources: sign-flip permutation (Fisher 1935), Holm (1979), Benjamini and Hochberg (1995), two one-sided tests (Schuirmann
1987), Hedges' g (1981), Cliff's delta (1993).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mnemolab.analysis.statistics.intervals import run_interval
from mnemolab.errors import BadRequest

__all__ = [
    "FEWEST_FOR_A_STAR",
    "Equivalence",
    "SignFlip",
    "benjamini_hochberg",
    "cliffs_delta",
    "hedges_g",
    "holm",
    "mark",
    "paired_difference",
    "probability_of_improvement",
    "sign_flip",
    "tost",
]

Alternative = Literal["two-sided", "greater", "less"]
# With 5 paired seeds the least two-sided p is 2/32 = .0625: no star can be earned.
FEWEST_FOR_A_STAR = 6
_EXACT_BELOW = 20
_DRAWS = 100_000


@dataclass(frozen=True)
class SignFlip:
    """`effect` is the mean difference; `least_p` the smallest p that so many runs could give."""

    p: float
    effect: float
    runs: int
    exact: bool
    least_p: float


@dataclass(frozen=True)
class Equivalence:
    """`p` is the larger of the two one-sided tests; equivalent within `margin` when it is below alpha."""

    p: float
    effect: float
    margin: float
    runs: int


def sign_flip(
    differences: ArrayLike, alternative: Alternative = "two-sided", *, null: float = 0.0, seed: int = 0
) -> SignFlip:
    """Paired sign-flip test that the mean of `differences` (one a run) is `null`. Exact below 20 runs, else 100,000 draws.

    Raises BadRequest for no runs, values that are not finite, or an unknown alternative.
    """
    d = _finite(differences, "sign-flip test") - null
    if alternative not in ("two-sided", "greater", "less"):
        raise BadRequest(f"alternative={alternative!r}; known: two-sided, greater, less")
    exact = len(d) < _EXACT_BELOW
    if exact:
        sums = np.zeros(1)
        for value in d:
            sums = np.concatenate([sums + value, sums - value])
    else:
        flips = np.random.default_rng(seed).integers(0, 2, size=(_DRAWS, len(d)), dtype=np.int8) * 2 - 1
        sums = np.concatenate([[d.sum()], flips @ d])  # the observed labelling counts as one draw
    observed, slack = d.sum(), 1e-9 * max(1e-300, np.abs(d).sum())  # equal sums that differ by rounding are ties
    extreme = {
        "two-sided": np.abs(sums) >= abs(observed) - slack,
        "greater": sums >= observed - slack,
        "less": sums <= observed + slack,
    }[alternative]
    least = min(1.0, (2 if alternative == "two-sided" else 1) / 2.0 ** len(d))
    return SignFlip(
        float(extreme.mean()), float(d.mean() + null), len(d), exact, max(least, 0 if exact else 1 / _DRAWS)
    )


def tost(differences: ArrayLike, margin: float, *, seed: int = 0) -> Equivalence:
    """Equivalence within +-margin by two one-sided sign-flip tests. Raises BadRequest unless margin > 0."""
    if not margin > 0:
        raise BadRequest(f"margin={margin}: an equivalence margin must be above 0")
    above = sign_flip(differences, "greater", null=-margin, seed=seed)
    below = sign_flip(differences, "less", null=margin, seed=seed)
    return Equivalence(max(above.p, below.p), above.effect, margin, above.runs)


def holm(p: ArrayLike) -> NDArray[np.float64]:
    """Holm's adjusted p-values, in the order given: reject where they are below alpha."""
    p, order = _probabilities(p)
    adjusted = np.maximum.accumulate(np.minimum(1, p[order] * np.arange(len(p), 0, -1)))
    return adjusted[np.argsort(order)]


def benjamini_hochberg(p: ArrayLike) -> NDArray[np.float64]:
    """Adjusted p-values that control the false discovery rate, for exploratory grids."""
    p, order = _probabilities(p)
    scaled = p[order] * len(p) / np.arange(1, len(p) + 1)
    adjusted = np.minimum(1, np.minimum.accumulate(scaled[::-1])[::-1])
    return adjusted[np.argsort(order)]


def mark(p: float, runs: int) -> str:
    """`***`, `**`, `*` or `n.s.` at .001, .01, .05; below 6 runs no star is given, whatever p is."""
    if runs < FEWEST_FOR_A_STAR:
        return f"no star: {runs} runs, need {FEWEST_FOR_A_STAR}"
    return "***" if p < 0.001 else "**" if p < 0.01 else "*" if p < 0.05 else "n.s."


def paired_difference(a: ArrayLike, b: ArrayLike, *, seed: int = 0) -> tuple[float, float, float]:
    """Mean of a - b over paired runs, with a 95% interval (`run_interval`). Equal differences give a point."""
    x, y = _finite(a, "paired difference"), _finite(b, "paired difference")
    if len(x) != len(y):
        raise BadRequest(f"paired difference: {len(x)} runs against {len(y)}; pair them by seed first")
    return run_interval(x - y, seed=seed)


def hedges_g(a: ArrayLike, b: ArrayLike) -> float:
    """Standardised mean difference with the small-sample correction. No spread at all: 0 for equal means, else +-inf."""
    x, y = _finite(a, "Hedges' g"), _finite(b, "Hedges' g")
    df = len(x) + len(y) - 2
    if df < 1:
        raise BadRequest("Hedges' g: needs at least 3 runs in all")
    variance = (((x - x.mean()) ** 2).sum() + ((y - y.mean()) ** 2).sum()) / df
    difference = x.mean() - y.mean()
    if variance == 0:
        return 0.0 if difference == 0 else float(np.copysign(np.inf, difference))
    return float(difference / np.sqrt(variance) * (1 - 3 / (4 * df - 1)))


def cliffs_delta(a: ArrayLike, b: ArrayLike) -> float:
    """P(a > b) - P(a < b), from -1 to 1."""
    x, y = _finite(a, "Cliff's delta"), _finite(b, "Cliff's delta")
    return float(np.sign(x[:, None] - y[None, :]).mean())


def probability_of_improvement(a: ArrayLike, b: ArrayLike) -> float:
    """P(a > b) + P(a = b) / 2 over pairs of runs (Agarwal et al. 2021)."""
    return (cliffs_delta(a, b) + 1) / 2


def _finite(values: ArrayLike, what: str) -> NDArray[np.float64]:
    x = np.atleast_1d(np.asarray(values, dtype=float))
    if x.size == 0:
        raise BadRequest(f"{what}: no runs")
    if not np.isfinite(x).all():
        raise BadRequest(f"{what}: {int((~np.isfinite(x)).sum())} of {x.size} values are not finite")
    return x


def _probabilities(p: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    x = _finite(p, "adjusted p-values")
    if ((x < 0) | (x > 1)).any():
        raise BadRequest("adjusted p-values: a p lies outside 0 to 1")
    return x, np.argsort(x, kind="stable")
