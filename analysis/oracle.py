"""The bare recurrence on random keys: what a memory rule alone keeps, before any training shapes the keys.

N pairs of random unit keys (K channels) and Gaussian values (V channels, variance 1/V) are written one after another; then every key is
read. A read is a sum of stored values, r_i = sum_j c_ij v_j: `signal` is c_ii, `crosstalk` the power sum over j != i of
c_ij^2, and an answer is right when r_i is nearest, by dot product, to v_i among the N values. Lags count writes after the
target. The simulation is the oracle; the closed forms give signal and crosstalk in expectation over the keys.
"""

from dataclasses import dataclass
from math import isfinite, log

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.kernels import memory_scan

__all__ = [
    "RULES",
    "Rule",
    "critical_load",
    "expected_crosstalk",
    "expected_signal",
    "half_life",
    "simulate",
    "simulate_overwrite",
    "stale_ratio",
]


@dataclass(frozen=True)
class Rule:
    """S <- (I - erase k k^T) diag(retention) S + write k v^T, with constant strengths.

    `retention` is the decay per write, one number or one for each key channel; `erase` 0 is the additive rule and 1 the
    full delta rule.
    """

    erase: float = 0.0
    write: float = 1.0
    retention: float | tuple[float, ...] = 1.0

    def __post_init__(self):
        if not 0 <= self.erase <= 2:
            raise BadRequest(f"erase={self.erase}; a delta rule is stable for 0 to 2")
        if not isfinite(self.write):
            raise BadRequest(f"write={self.write}; it must be a finite number")
        if not np.size(self.retention):
            raise BadRequest("retention is empty; give one number, or one for each key channel")
        if not all(0 < r <= 1 for r in np.atleast_1d(self.retention)):
            raise BadRequest(f"retention={self.retention}; it must lie above 0 and at most at 1")

    def per_channel(self, key_channels: int) -> np.ndarray:
        """(K,) retention of every key channel."""
        held = np.atleast_1d(np.asarray(self.retention, dtype=float))
        if held.size not in (1, key_channels):
            raise BadRequest(
                f"retention has {held.size} channels; key_channels={key_channels} wants 1 or {key_channels}"
            )
        return np.broadcast_to(held, key_channels)


RULES = {
    "additive": Rule(),
    "gated": Rule(retention=0.98),
    "delta": Rule(erase=1.0),
    "gated_delta": Rule(erase=1.0, retention=0.98),
    # rates spread evenly in the logarithm: half-lives of 3 to 300 writes
    "per_channel_delta": Rule(erase=1.0, retention=tuple(float(2 ** (-1 / h)) for h in np.geomspace(3, 300, 64))),
}


# ---- simulation


def simulate(
    rule: Rule,
    writes: int,
    *,
    key_channels: int = 64,
    value_channels: int = 64,
    trials: int = 50,
    seed: int = 0,
    orthonormal: bool = False,
) -> pd.DataFrame:
    """One row a lag, 0 (newest) to writes - 1 (oldest), averaged over trials.

    Columns: lag, accuracy, signal, crosstalk, each of the three with `_error`, its standard error over trials; and
    expected_signal, expected_crosstalk, the closed forms (for random keys). `orthonormal` keys need writes <= key_channels.
    """
    _counts(writes=writes, key_channels=key_channels, value_channels=value_channels, trials=trials)
    if orthonormal and writes > key_channels:
        raise BadRequest(f"writes={writes} orthonormal keys do not fit in key_channels={key_channels}")
    generator = torch.Generator().manual_seed(seed)
    keys = _unit(trials, writes, key_channels, generator)
    if orthonormal:
        keys = torch.linalg.qr(keys.mT)[0].mT.contiguous()
    values = _gaussian(trials, writes, value_channels, generator) / value_channels**0.5
    coefficients = keys @ _stored(rule, keys, torch.arange(writes), writes)
    answers = (coefficients @ values @ values.mT).argmax(-1)
    own = coefficients.diagonal(dim1=1, dim2=2)
    measured = {
        "accuracy": (answers == torch.arange(writes)).double(),
        "signal": own,
        "crosstalk": coefficients.square().sum(-1) - own.square(),
    }
    lags = np.arange(writes)
    table = {"lag": lags}
    for name, x in measured.items():
        newest_first = x.flip(1)
        table[name] = newest_first.mean(0).numpy()
        table[f"{name}_error"] = newest_first.std(0).numpy() / trials**0.5
    table["expected_signal"] = expected_signal(rule, lags, key_channels)
    table["expected_crosstalk"] = expected_crosstalk(rule, lags, writes, key_channels)
    return pd.DataFrame(table)


def simulate_overwrite(
    rule: Rule,
    versions: int,
    gap: int,
    *,
    key_channels: int = 64,
    value_channels: int = 64,
    trials: int = 200,
    seed: int = 0,
) -> pd.DataFrame:
    """One key bound `versions` times, `gap` writes apart, with other random keys between; read after the last write.

    One row a version age, 0 (the newest) to versions - 1: weight (mean of its coefficient in the read), weight_error,
    ratio (weight over that of the newest), expected_ratio, and chosen, the share of trials whose answer among the
    versions of this key it is.
    """
    _counts(versions=versions, gap=gap, key_channels=key_channels, value_channels=value_channels, trials=trials)
    if rule.write == 0:
        raise BadRequest("write=0 stores nothing, so that versions have no ratio; give a strength")
    generator = torch.Generator().manual_seed(seed)
    writes = (versions - 1) * gap + 1
    keys = _unit(trials, writes, key_channels, generator)
    keys[:, ::gap] = keys[:, :1].clone()
    held = torch.full((writes,), versions)  # the others share one last column
    held[::gap] = torch.arange(versions)
    own = _stored(rule, keys, held, versions + 1)[..., :versions]
    weights = (keys[:, :1] @ own).squeeze(1).flip(1)
    values = _gaussian(trials, versions, value_channels, generator) / value_channels**0.5
    read = (weights.unsqueeze(1) @ values).squeeze(1)
    # ties, exact for the additive rule before noise, are broken by the random values
    chosen = (values @ read.unsqueeze(-1)).squeeze(-1).argmax(-1)
    weight = weights.mean(0).numpy()
    return pd.DataFrame(
        {
            "age": np.arange(versions),
            "weight": weight,
            "weight_error": weights.std(0).numpy() / trials**0.5,
            "ratio": weight / weight[0],
            "expected_ratio": [stale_ratio(rule, gap, key_channels, age) for age in range(versions)],
            "chosen": torch.bincount(chosen, minlength=versions).numpy() / trials,
        }
    )


def _counts(**given: int) -> None:
    for name, count in given.items():
        least = 2 if name == "trials" else 1  # one trial has no standard error
        if count < least:
            raise BadRequest(f"{name}={count}; it must be at least {least}")


def _unit(trials: int, count: int, channels: int, generator: torch.Generator) -> Tensor:
    return torch.nn.functional.normalize(_gaussian(trials, count, channels, generator), dim=-1)


def _gaussian(trials: int, count: int, channels: int, generator: torch.Generator) -> Tensor:
    return torch.randn(trials, count, channels, generator=generator, dtype=torch.float64)


def _stored(rule: Rule, keys: Tensor, held: Tensor, columns: int, block: int = 256) -> Tensor:
    """(trials,K,columns): the final state when write t stores the one-hot value held[t], so its columns are coefficients.

    Value channels do not mix, so they are taken in blocks that the kernel accepts.
    """
    trials, writes, channels = keys.shape
    decay = torch.from_numpy(np.log(rule.per_channel(channels))).expand(trials, writes, 1, channels)
    one = keys.new_ones(trials, writes, 1)
    states = []
    for start in range(0, columns, block):
        width = min(block, columns - start)
        values = (held[:, None] == torch.arange(start, start + width)).to(keys.dtype)
        _, state = memory_scan(
            keys.unsqueeze(2), keys.unsqueeze(2), values[None, :, None].expand(trials, writes, 1, width),
            log_decay=decay, erase=rule.erase * one, write=rule.write * one, output_final_state=True,
        )  # fmt: skip
        assert isinstance(state, Tensor)
        states.append(state.squeeze(1))
    return torch.cat(states, -1)


# ---- closed forms


def expected_signal(rule: Rule, lag: np.ndarray | int, key_channels: int = 64) -> np.ndarray:
    """Mean of c_ii after `lag` later writes: write * mean over channels of (retention (1 - erase/K))^lag. Exact."""
    if np.size(lag) and np.min(lag) < 0:
        raise BadRequest(f"lag={lag}; it counts later writes, from 0")
    kept = rule.per_channel(key_channels) * (1 - rule.erase / key_channels)
    return rule.write * (kept ** np.asarray(lag)[..., None]).mean(-1)


def expected_crosstalk(rule: Rule, lag: np.ndarray | int, writes: int, key_channels: int = 64) -> np.ndarray:
    """Mean of the power sum over j != i of c_ij^2 for the key written `lag` writes before the last of `writes`. Exact.

    The read vector w starts as the key and is carried back through the writes, w <- R (I - e k k^T) w with R = diag(retention);
    each write that it meets adds write^2 (k.w)^2, in the mean write^2/K of its energy. Mean channel energies b_c = E w_c^2 obey
        b_c <- r_c^2 [b_c (1 - 2 e/K + 2 f) + f sum_d b_d],  f = e^2/(K(K+2)),
    the fourth moments of a random unit key. At the target's own write w is not independent of the key: `_past_own_write`.
    Additive: (N-1)/K. Delta, e = 1: 1 - a^m + a (a^m - b^m)(1 - a^(N-1-m)), a = 1-1/K, b = 1-2/K+2/(K(K+2)).
    """
    lags = np.atleast_1d(lag)
    if lags.size and not (0 <= lags.min() and lags.max() < writes):
        raise BadRequest(f"lag={lag}; with writes={writes} it lies in 0 to {writes - 1}")
    K, e, r = key_channels, rule.erase, rule.per_channel(key_channels)
    fourth = e**2 / (K * (K + 2))
    step = np.diag(r**2) @ ((1 - 2 * e / K + 2 * fourth) * np.eye(K) + fourth * np.ones((K, K)))
    # reached[n] @ energies: the energy met over the next n writes
    reached = [np.zeros(K)]
    for _ in range(writes):
        reached.append(1 + reached[-1] @ step)
    own = _past_own_write(rule, int(lags.max(initial=0)), K)
    results = [rule.write**2 / K * (reached[m].mean() + reached[writes - 1 - m] @ own[m]) for m in lags]
    return np.asarray(results).reshape(np.shape(lag))


def _past_own_write(rule: Rule, lags: int, K: int) -> np.ndarray:
    """(lags+1,K): channel energies of the read vector just behind its own key's write, m = 0 ... lags writes further back.

    Given the key k, E w w^T after m writes is a (rho k)(rho k)^T + diag(M k^2), rho_c = r_c^m, with
        a <- a (1 - 2 e/K + 2 f),  M_cd <- r_c^2 [M_cd (1 - 2 e/K + 2 f) + f (a rho_d^2 + sum_b M_bd)],  rho <- r rho.
    The own write leaves w_c^2 - 2 e k_c w_c (k.w) + e^2 k_c^2 (k.w)^2 of it, whose means over k are fourth and sixth moments of
    a unit vector: E k_a^2 k_b^2 k_c^2 = (1 + 2 [a=b] + 2 [b=c] + 2 [a=c] + 8 [a=b=c]) / (K(K+2)(K+4)).
    """
    e, r = rule.erase, rule.per_channel(K)
    fourth = e**2 / (K * (K + 2))
    shrink = 1 - 2 * e / K + 2 * fourth
    a, rho, M = 1.0, np.ones(K), np.zeros((K, K))
    energies = []
    for _ in range(lags + 1):
        X = a * np.outer(rho, rho) + M
        before = (a * rho**2 + M.sum(1)) / K
        along = (a * rho * (2 * rho + rho.sum()) + 2 * M.diagonal() + M.sum(1)) / (K * (K + 2))
        square = X.sum() + 2 * (X.trace() + X.sum(1) + X.sum(0)) + 8 * X.diagonal()
        energies.append(r**2 * (before - 2 * e * along + e**2 * square / (K * (K + 2) * (K + 4))))
        M = r[:, None] ** 2 * (shrink * M + fourth * (a * rho**2 + M.sum(0)))
        a, rho = a * shrink, rho * r
    return np.asarray(energies)


def stale_ratio(rule: Rule, gap: int, key_channels: int = 64, age: int = 1) -> float:
    """Weight of the version `age` rewrites old over that of the newest, rewrites `gap` writes apart.

    Additive 1; gated retention^gap; delta 1 - erase for each rewrite; the writes between, gap - 1 random keys, take
    (1 - erase/K) each. With a decay per channel the key's energy is carried by its slow channels, and each erasure along the
    key, which has equal energy on all of them in the mean, takes from all alike (right to 1/K).
    """
    _counts(gap=gap, key_channels=key_channels)
    if age < 0:
        raise BadRequest(f"age={age}; it counts rewrites back from the newest, 0")
    kept = rule.per_channel(key_channels) ** gap * (1 - rule.erase / key_channels) ** (gap - 1)
    weight = np.ones(key_channels)
    for _ in range(age):
        weight = kept * weight
        weight = weight - rule.erase * weight.mean()
    return float(weight.mean())


def half_life(rule: Rule, key_channels: int = 64) -> float:
    """Writes until the expected signal is half; infinite when nothing decays. Delta, erase 1: about 0.69 K."""
    kept = rule.per_channel(key_channels) * (1 - rule.erase / key_channels)
    if kept.min() < 0:
        raise BadRequest(f"erase={rule.erase} with key_channels={key_channels} turns the signal's sign at every write")
    if kept.max() == 1 and (kept == 1).mean() >= 0.5:
        return float("inf")
    low, high = 0.0, 1.0
    while (kept**high).mean() > 0.5:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if (kept**middle).mean() > 0.5 else (low, middle)
    return high


def critical_load(key_channels: int = 64, value_channels: int = 64, candidates: int = 64) -> float:
    """Writes at which an additive memory's crosstalk drowns the signal: K (V / (2 ln candidates) - 1).

    The largest of `candidates` wrong scores grows like sqrt(2 ln candidates / V) times the crosstalk's root.
    """
    if candidates < 2:
        raise BadRequest(f"candidates={candidates}; with fewer than 2 nothing is confused")
    return key_channels * (value_channels / (2 * log(candidates)) - 1)
