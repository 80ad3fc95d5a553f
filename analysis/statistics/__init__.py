"""Intervals, tests and survival curves whose unit is the training run."""

from mnemolab.analysis.statistics.intervals import (
    hierarchical_bootstrap,
    iqm,
    mean_interval,
    performance_profile,
    run_interval,
    wilson,
)

__all__ = [
    "hierarchical_bootstrap",
    "iqm",
    "mean_interval",
    "performance_profile",
    "run_interval",
    "wilson",
]
