"""Intervals, tests and survival curves whose unit is the training run."""

from mnemolab.analysis.statistics.intervals import (
    hierarchical_bootstrap,
    iqm,
    mean_interval,
    performance_profile,
    run_interval,
    wilson,
)
from mnemolab.analysis.statistics.significance import (
    FEWEST_FOR_A_STAR,
    Equivalence,
    SignFlip,
    benjamini_hochberg,
    cliffs_delta,
    hedges_g,
    holm,
    mark,
    paired_difference,
    probability_of_improvement,
    sign_flip,
    tost,
)
from mnemolab.analysis.statistics.survival import LogRank, kaplan_meier, log_rank, survival_quantile

__all__ = [
    "FEWEST_FOR_A_STAR",
    "Equivalence",
    "LogRank",
    "SignFlip",
    "benjamini_hochberg",
    "cliffs_delta",
    "hedges_g",
    "hierarchical_bootstrap",
    "holm",
    "iqm",
    "kaplan_meier",
    "log_rank",
    "mark",
    "mean_interval",
    "paired_difference",
    "performance_profile",
    "probability_of_improvement",
    "run_interval",
    "sign_flip",
    "survival_quantile",
    "tost",
    "wilson",
]
