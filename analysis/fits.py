"""Fits of forgetting curves: P = g + (1 - g - lapse) f(lag), by binomial or beta-binomial likelihood, run by run.

g is the known chance of each cell and `lapse` a fixed share of answers lost for reasons that are not memory. Families are
compared by AICc over cells. Averages of runs are never fitted: a mean of exponentials looks like a power law.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats

from mnemolab.analysis.cells import per_run
from mnemolab.analysis.families import FAMILIES, LARGEST, Family, half_life_of, natural, unconstrained
from mnemolab.analysis.records import complete, require
from mnemolab.errors import BadRequest, unknown

__all__ = ["Cells", "Fit", "fit", "fit_all", "fit_runs", "predict"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Cells:
    """What was seen at each lag: `right` of `n` queries were answered right, `chance` of them by guessing."""

    lag: Array
    right: Array
    n: Array
    chance: Array

    @classmethod
    def of(cls, lag: ArrayLike, right: ArrayLike, n: ArrayLike, chance: ArrayLike = 0.0) -> "Cells":
        """Checked: lags >= 0, 0 <= right <= n, 0 <= chance <= 1, all finite. Cells without queries, and cells in which
        guessing is always right, are dropped: they say nothing."""
        x, k, m, g = np.broadcast_arrays(*(np.atleast_1d(np.asarray(a, dtype=float)) for a in (lag, right, n, chance)))
        for name, values in (("lag", x), ("right", k), ("n", m), ("chance", g)):
            if not np.isfinite(values).all():
                raise BadRequest(
                    f"fit: {name} is not a number in {int((~np.isfinite(values)).sum())} of {len(x)} cells"
                )
        keep = (m > 0) & (g < 1 - 1e-9)
        x, k, m, g = x[keep], k[keep], m[keep], g[keep]
        if (x < 0).any() or (k < 0).any() or (k > m + 1e-9).any() or (g < 0).any() or (g >= 1).any():
            raise BadRequest("fit: need lag >= 0, 0 <= right <= n and 0 <= chance <= 1")
        if len(np.unique(x)) < 3:
            raise BadRequest(f"fit: {len(np.unique(x))} different lags with something to know; need at least 3")
        return cls(x, k, m, g)


@dataclass(frozen=True)
class Fit:
    """One family fitted to one run. `half_life` in lags; `extrapolated`: beyond the longest lag seen, or short of the first.

    `dispersion` is the beta-binomial's intra-cell correlation (0: binomial). `note` says why a number is missing or infinite.
    """

    family: str
    parameters: dict[str, float]
    log_likelihood: float
    aicc: float
    dispersion: float
    half_life: float
    low: float
    high: float
    extrapolated: bool
    note: str = ""
    weight: float = float("nan")


def predict(fitted: Fit, lag: ArrayLike, chance: ArrayLike = 0.0, lapse: float = 0.0) -> Array:
    """Accuracy that `fitted` expects at each lag."""
    family = FAMILIES[fitted.family]
    values = [fitted.parameters[name] for name in family.parameters]
    return _accuracy(family.curve(np.asarray(lag, dtype=float), *values), np.asarray(chance, dtype=float), lapse)


def fit(
    cells: Cells,
    family: str = "exponential",
    *,
    lapse: float = 0.0,
    overdispersion: bool | None = None,
    interval: bool = True,
    seed: int = 0,
) -> Fit:
    """Fit one family. `overdispersion=None` goes beta-binomial where a binomial fit leaves too much (Pearson p < .01).

    Raises BadRequest for an unknown family, a lapse outside 0 to 1 - chance, or fewer than 3 lags.
    """
    if family not in FAMILIES:
        raise unknown("family", family, FAMILIES)
    if not 0 <= lapse < 1 - cells.chance.max():
        raise BadRequest(f"lapse={lapse}: must be at least 0 and below 1 - chance")
    shape = FAMILIES[family]
    found = _best(shape, cells, lapse, None, seed)
    wide = _too_wide(shape, cells, lapse, found[0]) if overdispersion is None else overdispersion
    if wide:
        found = _best(shape, cells, lapse, found[0], seed)
    return _fit_at(shape, cells, lapse, found, wide, interval)


def _fit_at(shape: Family, cells: Cells, lapse: float, found: tuple[Array, float], wide: bool, interval: bool) -> Fit:
    """The Fit at a minimum: coordinates, with the dispersion last when `wide`, and the cost there."""
    free, value = found
    rho = float(special.expit(free[-1])) if wide else 0.0
    free = free[:-1] if wide else free
    params = natural(shape, free)
    k, n = len(free) + bool(wide), len(cells.lag)
    aicc = 2 * value + 2 * k + 2 * k * (k + 1) / (n - k - 1) if n > k + 1 else float("inf")
    named = dict(zip(shape.parameters, map(float, params), strict=True))
    named |= {key: float(v) for key, v in shape.derived(*params).items()}
    half = half_life_of(shape, params)
    out = Fit(shape.name, named, -value, aicc, rho, half, half, half, False)
    return _describe(out, shape, cells, lapse, free, value, interval)


def fit_all(
    cells: Cells, families: Iterable[str] | None = None, *, interval: str = "best", lapse: float = 0.0, seed: int = 0
) -> list[Fit]:
    """All families, best first, with Akaike weights over AICc. Intervals for the `best` family, for `all`, or for `none`.

    Every family gets the same likelihood: beta-binomial for all if the richest binomial fit leaves too much.
    """
    names = list(FAMILIES) if families is None else list(families)
    for name in names:
        if name not in FAMILIES:
            raise unknown("family", name, FAMILIES)
    if not 0 <= lapse < 1 - cells.chance.max():
        raise BadRequest(f"lapse={lapse}: must be at least 0 and below 1 - chance")
    least = {name: _best(FAMILIES[name], cells, lapse, None, seed) for name in names}
    richest = min(names, key=lambda name: least[name][1])
    wide = _too_wide(FAMILIES[richest], cells, lapse, least[richest][0])
    if wide:
        least = {name: _best(FAMILIES[name], cells, lapse, found[0], seed) for name, found in least.items()}
    found = [_fit_at(FAMILIES[name], cells, lapse, least[name], wide, interval == "all") for name in names]
    found.sort(key=lambda f: f.aicc)
    best = found[0].aicc
    raw = np.array([np.exp((best - f.aicc) / 2) if np.isfinite(f.aicc) else 0.0 for f in found])
    total = raw.sum()
    weights = raw / total if total > 0 else np.full(len(raw), 1 / len(raw))
    if interval == "best":
        name = found[0].family
        found[0] = _fit_at(FAMILIES[name], cells, lapse, least[name], wide, True)
    if total <= 0:
        why = (
            f"{len(cells.lag)} lags are too few to compare families: the weights are equal and the order means nothing"
        )
        found = [replace(f, note="; ".join(filter(None, (f.note, why)))) for f in found]
    return [replace(f, weight=float(w)) for f, w in zip(found, weights, strict=True)]


def fit_runs(
    records: pd.DataFrame,
    axis: str = "lag_tokens",
    by: Sequence[str] = ("arm",),
    families: Iterable[str] | None = None,
    *,
    lapse: float = 0.0,
    interval: str = "best",
    where: NDArray[np.bool_] | None = None,
) -> pd.DataFrame:
    """`fit_all` for each run: columns `by`, run_id, family, parameters, aicc, weight, best, half_life, low, high,
    extrapolated, dispersion, note. `where` chooses queries. Runs with fewer than 3 lags get one row whose note says so."""
    require(records, [axis, "correct", "chance", "run_id"], "fits")
    known = records[axis].to_numpy() >= 0  # -1: the query has no such lag, as when the answer is NONE
    known = known if where is None else known & where
    complete(records[known] if known.any() else records, ["chance", "correct"], "fits")
    seen = per_run(records, axis, "correct", by, bins=60, where=known)
    chance = per_run(records, axis, "chance", by, bins=60, where=known)
    seen["chance"] = chance["mean"].to_numpy()
    rows = []
    for key, run in seen.groupby([*by, "run_id"], sort=False, observed=True):
        named_run = dict(zip([*by, "run_id"], key, strict=True))
        try:
            cells = Cells.of(run[axis], run["successes"], run["queries"], run["chance"])
        except BadRequest as reason:
            rows.append({**named_run, "family": "", "note": str(reason), "best": False})
            continue
        for at, found in enumerate(fit_all(cells, families, interval=interval, lapse=lapse)):
            flat = {k: v for k, v in vars(found).items() if k != "parameters"}
            rows.append({**named_run, **flat, **found.parameters, "half_life": found.half_life, "best": at == 0})
    return pd.DataFrame(rows)


def _accuracy(f: Array, chance: Array, lapse: float) -> Array:
    return chance + (1 - chance - lapse) * f


def _cost(shape: Family, cells: Cells, lapse: float, beta: bool) -> Callable[[Array], Array]:
    """Negative log-likelihood of unconstrained coordinates (..., P [+1]), without constants; vectorised over starts."""

    def cost(free: Array) -> Array:
        free = np.asarray(free, dtype=float)
        values = natural(shape, free[..., : len(shape.kinds)])
        p = _accuracy(shape.curve(cells.lag, *np.moveaxis(values[..., None], -2, 0)), cells.chance, lapse)
        p = np.clip(p, 1e-9, 1 - 1e-9)
        wrong = cells.n - cells.right
        if not beta:
            return -(cells.right * np.log(p) + wrong * np.log1p(-p)).sum(-1)
        rho = np.clip(special.expit(free[..., -1:]), 1e-7, 1 - 1e-7)
        a, b = p * (1 - rho) / rho, (1 - p) * (1 - rho) / rho
        return -(special.betaln(cells.right + a, wrong + b) - special.betaln(a, b)).sum(-1)

    return cost


def _best(shape: Family, cells: Cells, lapse: float, start: Array | None, seed: int) -> tuple[Array, float]:
    """Minimum over several starts; with `start` (a binomial fit) the beta-binomial's, one coordinate longer."""
    beta = start is not None
    cost = _cost(shape, cells, lapse, beta)
    if start is None:
        rng = np.random.default_rng(seed)
        grid = rng.uniform(0.02, 0.98, size=(400, len(shape.kinds)))
        reach = np.log(max(cells.lag.max(), 1.0)) + 2
        for at, kind in enumerate(shape.kinds):
            if kind in ("scale", "vast"):
                grid[:, at] = np.exp(rng.uniform(-1, reach, 400))
            if kind == "vast":  # a third of the starts are slow powers
                grid[::3, at] = np.expm1(np.log(2) / np.exp(rng.uniform(np.log(0.002), np.log(0.2), len(grid[::3]))))
            elif kind == "positive":
                grid[:, at] = np.exp(rng.uniform(-1.5, 2, 400))
        if shape.name == "wickelgren":  # and a third are plain powers, beta = 1
            grid[::3, 2] = np.exp(rng.uniform(np.log(0.002), 1, len(grid[::3])))
            grid[::3, 1] = np.expm1(np.log(2) / grid[::3, 2])
        grid[::2, 0] = 0.97
        grid = unconstrained(shape, grid)
        starts = grid[np.argsort(cost(grid))[[0, 3, 12]]]
    else:
        starts = [np.append(start, r) for r in (-3.0, -6.0)]
    return min((_minimise(cost, s) for s in starts), key=lambda found: found[1])


def _minimise(cost: Callable[[Array], Array], start: Array) -> tuple[Array, float]:
    """L-BFGS-B with central differences, all of them in one call of `cost`."""
    step = 1e-5 * np.concatenate([np.eye(len(start)), -np.eye(len(start))])

    def both(x: Array) -> tuple[float, Array]:
        values = cost(np.concatenate([x[None], x + step]))
        slope = (values[1 : len(x) + 1] - values[len(x) + 1 :]) / 2e-5
        return float(values[0]), slope

    found = optimize.minimize(both, start, jac=True, method="L-BFGS-B", bounds=[(-20, 25)] * len(start))
    return found.x, float(found.fun)


def _too_wide(shape: Family, cells: Cells, lapse: float, free: Array) -> bool:
    """Whether cells scatter more around the fit than binomial cells do."""
    p = np.clip(_accuracy(shape.curve(cells.lag, *natural(shape, free)), cells.chance, lapse), 1e-6, 1 - 1e-6)
    df = len(cells.lag) - len(free)
    if df < 1:
        return False
    pearson = float(((cells.right - cells.n * p) ** 2 / (cells.n * p * (1 - p))).sum())
    return bool(stats.chi2.sf(pearson, df) < 0.01)


def _describe(out: Fit, shape: Family, cells: Cells, lapse: float, free: Array, value: float, interval: bool) -> Fit:
    """Half-life interval, the extrapolated flag and the note."""
    above = cells.right.sum() - (cells.n * cells.chance).sum()
    spread = np.sqrt((cells.n * cells.chance * (1 - cells.chance)).sum()) + 1e-12
    if above < 2 * spread and out.parameters["a"] < 0.1:
        return replace(
            out, half_life=0.0, low=0.0, high=0.0, extrapolated=True, note="at chance at every lag: nothing to forget"
        )
    half, note = out.half_life, ""
    if (cells.right >= cells.n).all():
        half, note = float("inf"), "every answer right: no forgetting seen"
    low = high = half
    if interval:
        low, high = _half_life_interval(shape, cells, lapse, free, value, out.dispersion)
        low, high = min(low, half), max(high, half)
        if np.isinf(high) and not note:
            note = "the upper end of the half-life is open"
    outside = not cells.lag.min() <= half <= cells.lag.max()
    return replace(out, half_life=half, low=low, high=high, extrapolated=bool(outside), note=note)


def _allowed_drop(cells: int, parameters: int, beta: bool) -> float:
    """Of the log-likelihood, at the ends of a 95% interval. A scatter estimated from few cells is too small and uncertain:
    as in regression, F takes the place of chi-square and the variance is that over cells - parameters."""
    df = cells - parameters
    if not beta or df < 1:
        return float(stats.chi2.ppf(0.95, 1) / 2)
    return float(stats.f.ppf(0.95, 1, df) / 2 * cells / df)


def _half_life_interval(
    shape: Family, cells: Cells, lapse: float, free: Array, value: float, rho: float
) -> tuple[float, float]:
    """95% profile-likelihood interval of the half-life: where the best fit with that half-life is 1.92 nats worse."""
    beta = rho > 0
    cost = _cost(shape, cells, lapse, beta)
    full = np.append(free, special.logit(rho)) if beta else free
    others = [i for i in range(len(full)) if i != 1]
    floor = shape.name == "exponential_floor"

    def place(rest: Array, log_half: float) -> Array:
        """The other coordinates (...,P-1) with the half-life put in."""
        rest = np.asarray(rest, dtype=float)
        vast = shape.kinds[1] == "vast"  # whose coordinate is ln ln(1 + h)
        x = np.insert(rest, 1, np.log(np.logaddexp(0, log_half)) if vast else log_half, axis=-1)
        if floor:  # a floor below 1/2, and the time constant that gives this half-life
            c = special.expit(rest[..., 1]) / 2
            x[..., 2] = special.logit(np.clip(c, 1e-9, 1 - 1e-9))
            x[..., 1] = log_half - np.log(np.log((1 - c) / np.maximum(0.5 - c, 1e-9)))
        return x

    allowed = _allowed_drop(len(cells.lag), len(full), beta)
    start = full[others].copy()
    if floor:
        c = min(float(special.expit(free[2])), 0.499)
        start[1] = special.logit(np.clip(2 * c, 1e-9, 1 - 1e-9))
    middle = float(np.log(half_life_of(shape, natural(shape, free))))
    if not np.isfinite(middle):
        middle = float(np.log(cells.lag.max() * 1e4))

    # curves of three parameters and more have several valleys: where the one at hand ends, the others are looked at
    others_at = np.clip(start, -4, 4) + np.random.default_rng(0).normal(0, 2, (200, len(start)))

    def least(log_half: float, rest: Array) -> tuple[Array, float]:
        """Coordinates and drop of the best fit with that half-life, from `rest` or from the best of many."""

        def at(r: Array) -> Array:
            return cost(place(r, log_half))

        found, drop = _minimise(at, rest)
        # with scatter the limit by F is wide as it stands: other valleys on top of it would cover more than 98%
        if drop - value > allowed and len(rest) > 1 and not beta:
            found, drop = min((found, drop), _minimise(at, others_at[at(others_at).argmin()]), key=lambda f: f[1])
        return found, drop - value

    def walk(direction: int) -> float:
        """March outwards until the profile has dropped, then bisect; the nuisance coordinates follow along."""
        rest, inside, width = start, middle, 0.1
        # beyond this no lag that was seen tells half-lives apart; a slow power changes by the power itself, to the very end
        furthest = LARGEST if shape.kinds[1] == "vast" else np.log(cells.lag.max() + 1) + 16
        nearest = np.log(cells.lag.max() + 1) - 16
        for _ in range(60):
            outside = inside + direction * width
            if outside < nearest:
                return outside
            last = outside >= furthest
            outside = min(outside, furthest)
            follow, drop = least(outside, rest)
            if drop > allowed:
                break
            if last:
                return float("inf")
            rest, inside, width = follow, outside, width * 1.6
        for _ in range(14):
            between = (inside + outside) / 2
            follow, drop = least(between, rest)
            if drop > allowed:
                outside = between
            else:
                inside, rest = between, follow
        return (inside + outside) / 2

    return float(np.exp(walk(-1))), float(np.exp(walk(+1)))
