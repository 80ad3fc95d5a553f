"""The bare recurrence on random keys: what a memory rule alone keeps, before any training shapes the keys.

N pairs of random unit keys (K channels) and Gaussian values (V channels, variance 1/V) are written one after another; then every key is
read. A read is a sum of stored values, r_i = sum_j c_ij v_j: `signal` is c_ii, `crosstalk` the power sum over j != i of
c_ij^2, and an answer is right when r_i is nearest, by dot product, to v_i among the N values. Lags count writes after the
target. The simulation is the oracle; the closed forms give signal and crosstalk in expectation over the keys.
"""

from dataclasses import dataclass
from math import log

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
    if versions < 1 or gap < 1:
        raise BadRequest(f"versions={versions}, gap={gap}; both must be at least 1")
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
    kept = rule.per_channel(key_channels) * (1 - rule.erase / key_channels)
    return rule.write * (kept ** np.asarray(lag)[..., None]).mean(-1)


def expected_crosstalk(rule: Rule, lag: np.ndarray | int, writes: int, key_channels: int = 64) -> np.ndarray:
    """Mean of the power sum over j != i of c_ij^2 for the key written `lag` writes before the last of `writes`.

    It takes E (k.w)^2 for a write on the way at its mean over directions, which is low by about 1/K under erasure (15% at K = 4,
    5% at 16, 1% at 64); with additive writes it is exact.

    A read vector w (the key carried back through later writes) has channel energies b_c = E w_c^2; one write further back,
        b_c <- r_c^2 [b_c (1 - 2 e/K + 2 e^2/(K(K+2))) + e^2/(K(K+2)) sum_d b_d],
    with e the erase strength and r_c the retention: the fourth moments of a random unit key. Each write on the way adds
    write^2/K of the energy that reaches it. Before the target the vector has lost what the target's own write erases:
    (s_c - e s) k_c replaces s_c k_c, where s_c is the mean kept along the key; there E (k.w)^2 is taken as its mean squared.
    Additive: (N-1)/K. Delta, e = 1: 1-(1-1/K)^m + [(1-1/K)^m-(1-1/K)^2m][1-(1-1/K)^(N-1-m)].
    """
    K, e, r = key_channels, rule.erase, rule.per_channel(key_channels)
    fourth = e**2 / (K * (K + 2))
    step = np.diag(r**2) @ ((1 - 2 * e / K + 2 * fourth) * np.eye(K) + fourth * np.ones((K, K)))
    # after[m]: energies after m writes; reached[n] @ energies: the energy met over the next n writes
    after, reached = [np.full(K, 1 / K)], [np.zeros(K)]
    for _ in range(writes):
        after.append(step @ after[-1])
        reached.append(1 + reached[-1] @ step)
    results = []
    for m in np.atleast_1d(lag):
        later = reached[m] @ after[0]
        kept = (r * (1 - e / K)) ** m
        own = r**2 * (after[m] + ((kept - e * kept.mean()) ** 2 - kept**2) / K)
        results.append(rule.write**2 / K * (later + reached[writes - 1 - m] @ own))
    return np.asarray(results).reshape(np.shape(lag))


def stale_ratio(rule: Rule, gap: int, key_channels: int = 64, age: int = 1) -> float:
    """Weight of the version `age` rewrites old over that of the newest, rewrites `gap` writes apart.

    Additive 1; gated retention^gap; delta 1 - erase for each rewrite; the writes between, gap - 1 random keys, take
    (1 - erase/K) each. With a decay per channel the key's energy is carried by its slow channels, and each erasure along the
    key, which has equal energy on all of them in the mean, takes from all alike (right to 1/K).
    """
    kept = rule.per_channel(key_channels) ** gap * (1 - rule.erase / key_channels) ** (gap - 1)
    weight = np.ones(key_channels)
    for _ in range(age):
        weight = kept * weight
        weight = weight - rule.erase * weight.mean()
    return float(weight.mean())


def half_life(rule: Rule, key_channels: int = 64) -> float:
    """Writes until the expected signal is half; infinite when nothing decays. Delta, erase 1: about 0.69 K."""
    kept = rule.per_channel(key_channels) * (1 - rule.erase / key_channels)
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
    return key_channels * (value_channels / (2 * log(candidates)) - 1)
