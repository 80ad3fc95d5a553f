"""Every pair of arms: accuracy paired by seed, and steps to the criterion with runs that never reach it censored."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mnemolab.analysis.records import require
from mnemolab.analysis.statistics import (
    hedges_g,
    holm,
    log_rank,
    mark,
    paired_difference,
    probability_of_improvement,
    sign_flip,
    survival_quantile,
    tost,
)
from mnemolab.analysis.style import look

__all__ = ["MARGIN", "compare_arms", "compare_steps", "steps_to_criterion"]

# Differences in accuracy within this are called none: two points.
MARGIN = 0.02


def compare_arms(runs: pd.DataFrame, value: str = "test.accuracy", margin: float = MARGIN) -> pd.DataFrame:
    """One row a pair of arms that share at least 2 seeds, within a task: columns task, a, b, difference (a - b), low, high, g,
    better (chance that a run of a beats one of b), runs, p (two-sided sign-flip), p_holm (within the task), star, p_equal
    (TOST within `margin`, Holm within the task). No star is given below 6 runs.

    Where an arm has several runs of a seed, their mean counts. Raises BadRequest when `value` is missing.
    """
    require(runs, ["task", "arm", "seed", value], "comparison")
    tables = []
    for task, frame in runs.dropna(subset=[value]).groupby("task", sort=True, observed=True):
        wide = frame.pivot_table(index="seed", columns="arm", values=value, observed=True)
        rows = []
        for a, b in combinations(look(wide.columns), 2):
            both = wide[[a, b]].dropna()
            if len(both) < 2:
                continue
            difference, low, high = paired_difference(both[a], both[b])
            gap = (both[a] - both[b]).to_numpy()
            row = {"task": task, "a": a, "b": b, "difference": difference, "low": low, "high": high}
            row |= {"g": hedges_g(both[a], both[b]), "better": probability_of_improvement(both[a], both[b])}
            rows.append(row | {"runs": len(both), "p": sign_flip(gap).p, "p_equal": tost(gap, margin).p})
        tables += [_adjusted(rows)] if rows else []
    columns = ["task", "a", "b", "difference", "low", "high", "g", "better", "runs", "p", "p_holm", "star", "p_equal"]
    return pd.concat(tables, ignore_index=True)[columns] if tables else pd.DataFrame(columns=columns)


def compare_steps(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a pair of arms of at least 2 runs each: columns task, a, b, steps_a, steps_b (Kaplan-Meier medians), solved_a,
    solved_b, hazard (above 1: a is faster), runs (of the smaller arm), p (log-rank, by relabelling runs), p_holm, star.

    Empty when the runs do not say when they were solved, or none was.
    """
    columns = ["task", "a", "b", "steps_a", "steps_b", "solved_a", "solved_b", "hazard", "runs", "p", "p_holm", "star"]
    tables = []
    for task, frame in runs.groupby("task", sort=True, observed=True) if "steps_to_solved" in runs else ():
        if frame["steps_to_solved"].isna().all():
            continue
        rows = []
        for (a, one), (b, other) in _pairs(frame):
            found = log_rank(*one, *other)
            row = {"task": task, "a": a, "b": b, "hazard": found.hazard, "p": found.p_permuted}
            row |= {f"steps_{n}": survival_quantile(*x) for n, x in (("a", one), ("b", other))}
            row |= {f"solved_{n}": int(x[1].sum()) for n, x in (("a", one), ("b", other))}
            rows.append(row | {"runs": min(len(one[0]), len(other[0]))})
        tables += [_adjusted(rows)] if rows else []
    return pd.concat(tables, ignore_index=True)[columns] if tables else pd.DataFrame(columns=columns)


def steps_to_criterion(runs: pd.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Steps (R,) and whether the criterion was reached by then; False: censored at the run's last step."""
    steps = pd.to_numeric(runs["steps_to_solved"], errors="coerce").to_numpy(dtype=float)
    seen = np.isfinite(steps)
    last = next((runs[c] for c in ("steps", "budget.steps") if c in runs), pd.Series(0, index=runs.index))
    return np.where(seen, steps, pd.to_numeric(last, errors="coerce").fillna(0).to_numpy(dtype=float)), seen


def _pairs(frame: pd.DataFrame) -> Iterator[tuple]:
    groups = {str(arm): steps_to_criterion(rows) for arm, rows in frame.groupby("arm", observed=True) if len(rows) > 1}
    for a, b in combinations(look(groups), 2):
        yield (a, groups[a]), (b, groups[b])


def _adjusted(rows: list[dict]) -> pd.DataFrame:
    table = pd.DataFrame(rows)
    table["p_holm"] = holm(table["p"])
    table["star"] = [mark(p, n) for p, n in zip(table["p_holm"], table["runs"], strict=True)]
    if "p_equal" in table:
        table["p_equal"] = holm(table["p_equal"])
    return table
