"""The six families of forgetting curves f(lag), each from its amplitude at lag 0 downwards.

Every family but one is written in its half-life h, the lag at which f has lost half of its amplitude, so that a profile of
the likelihood along h gives the interval of the half-life itself. Sources: exponential and power (Wixted and Ebbesen 1991),
Wickelgren (1974), logistic in log lag (a thresholded signal-to-noise memory), two exponentials (Rubin, Hinton and Wenzel
1999).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["FAMILIES", "LARGEST", "Family", "half_life_of", "natural", "unconstrained"]

Array = NDArray[np.float64]
_LN2 = float(np.log(2))
# ln of the longest `vast` half-life: a power of .001 halves after e^693 lags.
LARGEST = 690.0


@dataclass(frozen=True)
class Family:
    """`curve(lag, *parameters)` with values in 0 to 1. `kinds` says where each parameter lives: `unit` (0, 1), `positive`,
    `scale` (positive, in lags), or `vast` (a scale that may be 1e300: slow powers halve only after so many lags). `derived(*parameters)`: the parameters by which the literature knows the curve."""

    name: str
    parameters: tuple[str, ...]
    kinds: tuple[str, ...]
    curve: Callable[..., Array]
    derived: Callable[..., dict[str, float]]


def _exponential(lag, a, h):
    return a * np.exp2(-lag / h)


def _floor(lag, a, tau, floor):
    return a * ((1 - floor) * np.exp(-lag / tau) + floor)


def _power(lag, a, h):
    return a * np.exp2(-np.log1p(lag) / np.log1p(h))


def _wickelgren(lag, a, h, psi):
    # (1 + beta lag)^-psi with ln beta = ln(2^(1/psi) - 1) - ln h, in logarithms: 2^(1/psi) overflows for small psi
    u = _LN2 / psi
    with np.errstate(divide="ignore"):
        log_term = np.log(lag) - np.log(h) + u + np.log(-np.expm1(-u))
    return a * np.exp(-psi * np.logaddexp(0, log_term))


def _logistic(lag, a, h, slope):
    with np.errstate(divide="ignore"):
        return a / (1 + np.exp(np.clip(slope * (np.log(lag) - np.log(h)), -500, 500)))


def _two(lag, a, h, weight, ratio):
    # the fast part has time constant fast = h / u, the slow one fast / ratio, where u is where the sum has halved
    fast = h / _halving(weight, ratio)
    return a * (weight * np.exp(-lag / fast) + (1 - weight) * np.exp(-lag * ratio / fast))


def _halving(weight, ratio) -> Array:
    """u with w e^-u + (1-w) e^(-ratio u) = 1/2; broadcasts. By Newton's steps on the logarithm of the sum, which is convex: from
    ln 2, where the sum is 1/2 or more, they come to u from below."""
    weight, ratio = np.broadcast_arrays(np.asarray(weight, float), np.asarray(ratio, float))
    u = np.full(weight.shape, _LN2)
    for _ in range(100):
        fast, slow = weight * np.exp(-u), (1 - weight) * np.exp(-ratio * u)
        step = (fast + slow) * np.log(2 * (fast + slow)) / (fast + ratio * slow)
        u = u + step
        if (np.abs(step) <= 1e-14 * u).all():
            break
    return u


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("exponential", ("a", "half_life"), ("unit", "scale"), _exponential, lambda a, h: {"tau": h / _LN2}),
        Family("exponential_floor", ("a", "tau", "floor"), ("unit", "scale", "unit"), _floor, lambda a, tau, c: {}),
        Family("power", ("a", "half_life"), ("unit", "vast"), _power, lambda a, h: {"b": _LN2 / np.log1p(h)}),
        Family(
            "wickelgren",
            ("a", "half_life", "psi"),
            ("unit", "vast", "positive"),
            _wickelgren,
            lambda a, h, psi: {"beta": np.exp(min(_LN2 / psi + np.log(-np.expm1(-_LN2 / psi)) - np.log(h), 700))},
        ),
        Family("logistic", ("a", "half_life", "slope"), ("unit", "vast", "positive"), _logistic, lambda a, h, s: {}),
        Family(
            "two_exponentials",
            ("a", "half_life", "weight", "ratio"),
            ("unit", "scale", "unit", "unit"),
            _two,
            lambda a, h, w, r: {"tau_fast": h / float(_halving(w, r)), "tau_slow": h / float(_halving(w, r)) / r},
        ),
    )
}


def half_life_of(family: Family, parameters: Array) -> float:
    """The lag at which the curve has lost half of its amplitude; infinity when its floor is too high for that."""
    if family.name != "exponential_floor":
        return float(parameters[1])
    _, tau, floor = parameters
    return float("inf") if floor >= 0.5 else float(tau * np.log((1 - floor) / (0.5 - floor)))


def natural(family: Family, free: Array) -> Array:
    """Unconstrained coordinates (...,P) to parameters: logistic for `unit`, exp(exp(x)) - 1 for `vast`, exp for the rest."""
    free = np.asarray(free, dtype=float)
    unit, vast = (np.array([kind == which for kind in family.kinds]) for which in ("unit", "vast"))
    grown = np.exp(np.clip(free, -30, 30))
    with np.errstate(over="ignore"):
        return np.where(unit, 1 / (1 + 1 / grown), np.where(vast, np.expm1(np.minimum(grown, LARGEST)), grown))


def unconstrained(family: Family, parameters: Array) -> Array:
    """The inverse of `natural`; the ends of the unit interval are moved in by 1e-9."""
    parameters = np.asarray(parameters, dtype=float)
    unit, vast = (np.array([kind == which for kind in family.kinds]) for which in ("unit", "vast"))
    inside = np.clip(parameters, 1e-9, 1 - 1e-9)
    positive = np.maximum(parameters, 1e-12)
    positive = np.where(vast, np.log1p(positive), positive)
    return np.where(unit, np.log(inside) - np.log1p(-inside), np.log(positive))
