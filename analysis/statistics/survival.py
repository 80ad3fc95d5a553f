"""Times to an event that some never reach: steps to criterion, half-lives longer than the sequence.

Kaplan and Meier (1958) with log-log limits (Kalbfleisch and Prentice); log-rank (Mantel 1966).
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from mnemolab.errors import BadRequest

__all__ = ["LogRank", "kaplan_meier", "log_rank", "survival_quantile"]


@dataclass(frozen=True)
class LogRank:
    """`p` from chi-square with one degree of freedom; `p_permuted` from relabelling the runs; `hazard` above 1: a is faster."""

    statistic: float
    p: float
    p_permuted: float
    hazard: float


def kaplan_meier(times: ArrayLike, observed: ArrayLike, confidence: float = 0.95) -> pd.DataFrame:
    """Share without the event after each event time: columns time, survival, low, high, at_risk, events.

    `observed` is False for a censored time (still without the event when watching ended). The first row is time 0.
    """
    t, seen = _checked(times, observed)
    z = stats.norm.ppf(0.5 + confidence / 2)
    rows = [(0.0, 1.0, 1.0, 1.0, len(t), 0)]
    survival, greenwood = 1.0, 0.0
    for time in np.unique(t[seen]):
        at_risk, events = int((t >= time).sum()), int(((t == time) & seen).sum())
        survival *= 1 - events / at_risk
        if survival == 0:
            rows.append((float(time), 0.0, 0.0, rows[-1][3], at_risk, events))
            break
        greenwood += events / (at_risk * (at_risk - events))
        half = z * np.sqrt(greenwood) / np.log(survival)
        low, high = sorted((survival ** np.exp(half), survival ** np.exp(-half)))
        rows.append((float(time), survival, float(low), float(high), at_risk, events))
    return pd.DataFrame(rows, columns=["time", "survival", "low", "high", "at_risk", "events"])


def survival_quantile(times: ArrayLike, observed: ArrayLike, quantile: float = 0.5) -> float:
    """Time by which a share `quantile` has had the event; infinity when censoring hides it."""
    curve = kaplan_meier(times, observed)
    reached = curve[curve["survival"] <= 1 - quantile + 1e-12]
    return float(reached["time"].iloc[0]) if len(reached) else float("inf")


def log_rank(
    times_a: ArrayLike,
    observed_a: ArrayLike,
    times_b: ArrayLike,
    observed_b: ArrayLike,
    *,
    draws: int = 5000,
    seed: int = 0,
) -> LogRank:
    """Whether two groups reach the event at the same rate. No event in either group: p = 1."""
    (ta, oa), (tb, ob) = _checked(times_a, observed_a), _checked(times_b, observed_b)
    t, seen = np.concatenate([ta, tb]), np.concatenate([oa, ob])
    first = np.arange(len(t)) < len(ta)
    if not seen.any():
        return LogRank(0.0, 1.0, 1.0, 1.0)
    events = np.unique(t[seen])
    here = (t[None, :] == events[:, None]) & seen[None, :]  # (events, runs)
    risk = t[None, :] >= events[:, None]
    statistic, hazard = _statistic(here, risk, first[None, :])
    rng = np.random.default_rng(seed)
    shuffled = rng.permuted(np.tile(first, (draws, 1)), axis=1)
    null, _ = _statistic(here, risk, shuffled)
    permuted = (1 + int((null >= statistic[0] - 1e-9).sum())) / (1 + draws)
    return LogRank(float(statistic[0]), float(stats.chi2.sf(statistic[0], 1)), permuted, float(hazard[0]))


def _statistic(here: NDArray, risk: NDArray, first: NDArray) -> tuple[NDArray, NDArray]:
    """Log-rank chi-square and hazard ratio for each labelling in `first` (L, runs)."""
    d, n = here.sum(1), risk.sum(1)  # (events,)
    n_a, seen_a = first.astype(float) @ risk.T, first.astype(float) @ here.T  # (L, events)
    expected = d * n_a / n
    variance = np.where(n > 1, d * (n_a / n) * (1 - n_a / n) * (n - d) / np.maximum(n - 1, 1), 0).sum(1)
    gap = seen_a.sum(1) - expected.sum(1)
    chi = np.divide(gap**2, variance, out=np.zeros_like(gap), where=variance > 0)
    o_b, e_b = d.sum() - seen_a.sum(1), d.sum() - expected.sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        hazard = (seen_a.sum(1) / expected.sum(1)) / (o_b / e_b)
    return chi, np.where(np.isnan(hazard), 1.0, hazard)


def _checked(times: ArrayLike, observed: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    t, seen = np.asarray(times, dtype=float), np.asarray(observed, dtype=bool)
    if t.size == 0 or t.shape != seen.shape:
        raise BadRequest(f"survival: {t.size} times and {seen.size} flags; need equally many, at least one")
    if not np.isfinite(t).all() or (t < 0).any():
        raise BadRequest("survival: times must be finite and >= 0; give a censored time with observed=False")
    return t, seen
