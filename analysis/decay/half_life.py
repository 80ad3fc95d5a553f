"""Half-lives of the gates: time to half of each write, right-censored where the sequence ends first.

For constant gates this is ln 2 / |log-decay|, rounded up to whole tokens. Medians are Kaplan-Meier's, never means: a mean
of half-lives is owned by its largest member, and the mean decay is not the decay of the mean.
"""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import special
from torch import Tensor

from mnemolab.errors import BadRequest

if TYPE_CHECKING:
    from mnemolab.analysis.decay.traces import Trace

__all__ = ["channel_table", "discrete_quantiles", "dispersion", "gamma_fit", "gate_half_lives"]

_LN2 = float(np.log(2))
# A log-decay at which nothing is left, small enough for a sum over a million tokens to keep its digits.
_CLOSED = -1e4


def gate_half_lives(log_decay: Tensor, starts: int = 32) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Smallest D with -sum of log-decay over s+1 .. s+D >= ln 2, for `starts` writes s spread over the sequence.

    log_decay (B,T,H) or (B,T,H,K) -> times and observed (B,S,H,K), K = 1 for scalar gates. Where the sequence ends first,
    the time is how long was watched and `observed` is False. The least half-life is 1 token, that of a gate that closes
    (log-decay -inf) at once. Raises BadRequest for log-decays that are positive or NaN, or T < 2.
    """
    g = (log_decay.unsqueeze(-1) if log_decay.dim() == 3 else log_decay).double()
    B, T, H, K = g.shape
    if T < 2:
        raise BadRequest(f"half-lives: T={T}; need at least 2 tokens")
    if not bool((g <= 0).all()):
        raise BadRequest("half-lives: a log-decay is above 0 or not a number")
    g = g.clamp(min=_CLOSED)  # a sum that went through -inf never rises again, and differences of it are NaN
    lost = (-g).cumsum(1).permute(0, 2, 3, 1).reshape(-1, T).contiguous()  # (B*H*K, T), never falls
    at = torch.linspace(0, T - 2, min(starts, T - 1)).round().long().unique()
    goal = lost[:, at] + _LN2 * (1 - 1e-7)  # a half-life of exactly n tokens must not round to n + 1
    reached = torch.searchsorted(lost, goal)
    observed = reached < T
    times = torch.where(observed, reached, T - 1) - at
    shape = (B, H, K, len(at))
    times, observed = (x.reshape(shape).permute(0, 3, 1, 2).numpy() for x in (times, observed))
    return times, observed


def discrete_quantiles(
    times: NDArray, observed: NDArray, quantiles: ArrayLike = (0.25, 0.5, 0.75)
) -> NDArray[np.float64]:
    """Kaplan-Meier quantiles of whole-number times (N,C) with flags (N,C), for C groups at once -> (len(quantiles), C).

    Infinite where censoring hides the quantile.
    """
    t, seen = np.asarray(times), np.asarray(observed, dtype=bool)
    if t.ndim != 2 or t.shape != seen.shape or not len(t):
        raise BadRequest(f"quantiles: times {t.shape} and flags {seen.shape}; need equal (N,C) with N >= 1")
    longest, groups = int(t.max()) + 1, t.shape[1]
    flat = t * groups + np.arange(groups)
    ended = np.bincount(flat.ravel(), minlength=longest * groups).reshape(longest, groups)
    events = np.bincount(flat[seen], minlength=longest * groups).reshape(longest, groups)
    at_risk = ended[::-1].cumsum(0)[::-1]
    survival = np.cumprod(1 - np.divide(events, at_risk, out=np.zeros(events.shape), where=at_risk > 0), 0)
    below = survival[None] <= 1 - np.asarray(quantiles, dtype=float)[:, None, None] + 1e-12
    return np.where(below.any(1), below.argmax(1), np.inf).astype(float)


def channel_table(traces: "list[Trace]", starts: int = 32) -> pd.DataFrame:
    """One row a layer, head and key channel: q25, median, q75 of the half-life, censored (share), rate (mean -log-decay).

    Scalar gates have one row a head (channel -1); layers without decay have median infinite and rate 0.
    """
    rows = []
    for found in traces:
        if found.kind != "memory":
            continue
        heads = found.k.shape[2]
        if found.log_decay is None:
            for head in range(heads):
                row = {
                    "layer": found.layer,
                    "head": head,
                    "channel": -1,
                    "q25": np.inf,
                    "median": np.inf,
                    "q75": np.inf,
                }
                rows.append(row | {"censored": 1.0, "rate": 0.0})
            continue
        times, observed = gate_half_lives(found.log_decay, starts)
        _, _, _, K = times.shape
        flat, flags = times.reshape(-1, heads * K), observed.reshape(-1, heads * K)
        low, middle, high = discrete_quantiles(flat, flags)
        gate = found.log_decay if found.log_decay.dim() == 4 else found.log_decay.unsqueeze(-1)
        rate = gate.double().mean((0, 1)).reshape(-1).abs().cpu().numpy()
        for at in range(heads * K):
            rows.append(
                {
                    "layer": found.layer,
                    "head": at // K,
                    "channel": at % K if K > 1 else -1,
                    "q25": low[at],
                    "median": middle[at],
                    "q75": high[at],
                    "censored": 1 - float(flags[:, at].mean()),
                    "rate": float(rate[at]),
                }
            )
    if not rows:
        raise BadRequest("half-lives: no layer of this model is a memory recurrence")
    return pd.DataFrame(rows)


def dispersion(channels: pd.DataFrame) -> pd.DataFrame:
    """Spread within each head: columns layer, head, channels, log_sd (standard deviation of ln rate over channels with a
    finite rate above 0), ratio (90th over 10th percentile of those rates), still (channels without decay), closed (channels
    whose gate closes, so that their mean rate is infinite). One channel: log_sd 0."""
    rows = []
    for (layer, head), group in channels.groupby(["layer", "head"]):
        rate = group["rate"].to_numpy()
        moving = rate[(rate > 0) & np.isfinite(rate)]
        spread = float(np.log(moving).std(ddof=1)) if len(moving) > 1 else 0.0
        low, high = np.quantile(moving, [0.1, 0.9]) if len(moving) else (1.0, 1.0)
        row = {"layer": layer, "head": head, "channels": len(rate), "log_sd": spread, "ratio": float(high / low)}
        rows.append(row | {"still": int((rate <= 0).sum()), "closed": int(np.isinf(rate).sum())})
    return pd.DataFrame(rows)


def gamma_fit(rates: ArrayLike, draws: int = 500, seed: int = 0) -> dict[str, float]:
    """Gamma distribution of decay rates by maximum likelihood: shape, scale, ks (Kolmogorov-Smirnov distance), p, n, still,
    closed.

    If rates are gamma, the mean of exp(-rate * lag) over channels is exactly Wickelgren's (1 + scale lag)^(-shape). p is from
    the parametric bootstrap: `draws` samples of the fitted gamma, each fitted anew, since the table of Kolmogorov and Smirnov
    holds only for a distribution given beforehand (Lilliefors 1967). Rates of 0 are counted as `still`, infinite ones as
    `closed`, and left out. Raises BadRequest for NaN and for fewer than 3 finite rates above 0.
    """
    x = np.asarray(rates, dtype=float)
    if np.isnan(x).any():
        raise BadRequest(f"gamma fit: {int(np.isnan(x).sum())} of {x.size} rates are not numbers")
    moving = x[(x > 0) & np.isfinite(x)]
    left = {"n": float(len(moving)), "still": float((x <= 0).sum()), "closed": float(np.isinf(x).sum())}
    if len(moving) < 3:
        raise BadRequest(f"gamma fit: {len(moving)} finite rates above 0; need at least 3")
    if np.ptp(moving) < 1e-12 * moving.max():
        return {"shape": float("inf"), "scale": 0.0, "ks": 0.0, "p": 1.0, **left}
    shape = _gamma_shape(moving[None])
    ks = _gamma_distance(moving[None], shape)[0]
    # the distance does not depend on the scale, so samples of scale 1 will do
    again = np.random.default_rng(seed).gamma(shape[0], size=(draws, len(moving))) + 1e-300
    null = _gamma_distance(again, _gamma_shape(again))
    p = (1 + int((null >= ks).sum())) / (1 + draws)
    fitted = {"shape": float(shape[0]), "scale": float(moving.mean() / shape[0]), "ks": float(ks), "p": p}
    return {**fitted, **left}


def _gamma_shape(x: NDArray) -> NDArray[np.float64]:
    """Maximum-likelihood shape of each row (R,n): ln shape - digamma(shape) = ln mean - mean ln, by Newton in ln shape."""
    gap = np.maximum(np.log(x.mean(1)) - np.log(x).mean(1), 1e-12)
    shape = (3 - gap + np.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)  # Minka's start, good to 2%
    for _ in range(8):
        error = np.log(shape) - special.digamma(shape) - gap
        shape = shape * np.exp(np.clip(-error / (1 - shape * special.polygamma(1, shape)), -1, 1))
    return shape


def _gamma_distance(x: NDArray, shape: NDArray) -> NDArray[np.float64]:
    """Kolmogorov-Smirnov distance of each row (R,n) from the gamma with that shape and the row's mean."""
    n = x.shape[1]
    u = special.gammainc(shape[:, None], np.sort(x, 1) * (shape / x.mean(1))[:, None])
    steps = np.arange(n)
    return np.maximum((u - steps / n).max(1), ((steps + 1) / n - u).max(1))
