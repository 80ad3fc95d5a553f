"""How much so many seeds can show: power of the one-sided test, and the seeds that would decide.

Paired differences are taken as normal with the standard deviation that was seen (noncentral t); the sign-flip test adds a
floor, since n seeds cannot give a p below 2^-n.
"""

import math
from collections.abc import Callable

from scipy import stats

__all__ = ["ALPHA", "LEAST", "MOST", "TARGET", "fewest", "power_of", "seeds_needed", "seeds_to_bound"]

ALPHA = 0.05
TARGET = 0.8
MOST = 999


def fewest(family: int = 1) -> int:
    """The least number of seeds whose smallest one-sided p, times the family, is below ALPHA: 5 for one contrast."""
    return math.floor(math.log2(family / ALPHA)) + 1


# fewer seeds than this decide nothing, in either direction
LEAST = fewest()


def power_of(distance: float, sd: float, n: int, family: int = 1) -> float:
    """Chance that n seeds reject "the mean is 0" at ALPHA / family when it is `distance` (> 0 in the right direction)."""
    return 0.0 if n < fewest(family) else _beyond(distance, sd, n, ALPHA / family)


def seeds_needed(effect: float, null: float, bound: float, sd: float, family: int = 1) -> int | None:
    """Seeds at which a true mean `effect` is supported with power TARGET: p < ALPHA against `null`, mean at least `bound`."""
    if effect <= bound:
        return None

    def both(n: int) -> float:
        above = 1.0 if sd <= 0 else float(stats.norm.cdf((effect - bound) / sd * n**0.5))
        return power_of(effect - null, sd, n, family) * above

    return _search(both, fewest(family))


def seeds_to_bound(gap: float, sd: float) -> int | None:
    """Seeds at which a 95% interval around a mean that lies `gap` outside the margin excludes it, with power TARGET."""
    if gap <= 0:
        return None
    return _search(lambda n: _beyond(gap, sd, n, ALPHA / 2), LEAST)


def _beyond(distance: float, sd: float, n: int, alpha: float) -> float:
    """Power of the one-sided t test at `alpha`."""
    if distance <= 0:
        return 0.0
    if sd <= 0:
        return 1.0
    return float(stats.nct.sf(stats.t.isf(alpha, n - 1), n - 1, distance / sd * math.sqrt(n)))


def _search(power: Callable[[int], float], start: int) -> int | None:
    """The least n >= start with enough power; power grows with n."""
    if power(MOST) < TARGET:
        return None
    low, high = start, MOST
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle) >= TARGET else (middle + 1, high)
    return low
