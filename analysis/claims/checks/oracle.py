"""What a memory rule alone does to random keys: crosstalk N/d of additive writes, and what erasing costs."""

from dataclasses import replace

import numpy as np

from mnemolab.analysis import oracle
from mnemolab.analysis.claims.checks.check import Check, first_seed, preset
from mnemolab.analysis.statistics.intervals import mean_interval

__all__ = ["additive_interference"]

CHANNELS = 64
# (writes N, repetitions, trials in each)
_SIZES = {"quick": ((16, 64, 128), 12, 12), "full": ((16, 32, 64, 128, 256), 16, 20)}
SIZES = {"cpu": _SIZES, "cuda": _SIZES}
# crosstalk over N/d: N - 1 others contribute, so at N = 16 the ratio is 15/16
CROSSTALK = (0.9, 1.05)
# the delta rule keeps at most nine tenths of what additive writes keep
FEWER = 0.9


def additive_interference(tier: str, device: str, *, additive: str = "additive", delta: str = "delta") -> list[Check]:
    """The oracle's part of the claim, simulated on the CPU: `additive` and `delta` name rules of `mnemolab.analysis.oracle`.

    Per N: crosstalk over N/d with additive writes. At N = d and above: values answered right after all writes, delta over
    additive, random keys. At N = d, orthonormal keys, which is what shaping them tends to: both rules keep everything.
    """
    loads, repetitions, trials = preset(SIZES, tier, device)
    rules = {"additive": oracle.RULES[additive], "delta": oracle.RULES[delta]}
    seeds = range(first_seed(tier), first_seed(tier) + repetitions)
    about = f"d={CHANNELS} key and value channels, {repetitions} x {trials} trials"
    checks = []
    for N in loads:
        tables = {
            name: [oracle.simulate(rule, N, key_channels=CHANNELS, trials=trials, seed=seed) for seed in seeds]
            for name, rule in rules.items()
        }
        scaled = [table["crosstalk"].mean() * CHANNELS / N for table in tables["additive"]]
        value, *interval = mean_interval(scaled)
        checks.append(_check(f"additive crosstalk over N/d, N={N}", value, *CROSSTALK, "ratio", about, interval))
        if CHANNELS <= N:
            kept = {name: np.asarray([table["accuracy"].mean() for table in found]) for name, found in tables.items()}
            value, *interval = mean_interval(kept["delta"] / kept["additive"])
            counts = ", ".join(f"{name} {N * share.mean():.0f}" for name, share in kept.items())
            detail = f"of {N} values kept: {counts}; {about}"
            checks.append(_check(f"kept, delta over additive, N={N}", value, None, FEWER, "ratio", detail, interval))
    for name, rule in rules.items():
        table = oracle.simulate(rule, CHANNELS, key_channels=CHANNELS, trials=trials, seed=seeds[0], orthonormal=True)
        least = float(table["accuracy"].min())
        label = f"{name}, {CHANNELS} orthonormal keys: least accuracy"
        checks.append(Check(label, least, 1, None, "share", f"any lag; {about}"))
    return checks


def _check(name, value, low, high, unit, detail, interval) -> Check:
    return replace(Check(name, value, low, high, unit, detail), interval=tuple(interval))
