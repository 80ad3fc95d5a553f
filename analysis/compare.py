"""Every pair of arms, paired by seed: difference, interval, test and effect size."""

from itertools import combinations

import pandas as pd

from mnemolab.analysis.records import require
from mnemolab.analysis.statistics import hedges_g, holm, mark, paired_difference, sign_flip
from mnemolab.analysis.style import look

__all__ = ["compare_arms"]


def compare_arms(runs: pd.DataFrame, value: str = "test.accuracy") -> pd.DataFrame:
    """One row a pair of arms that share at least 2 seeds, within a task: columns task, a, b, difference (a - b), low, high, g,
    runs, p (two-sided sign-flip), p_holm (within the task), star. No star is given below 6 runs.

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
            found = sign_flip((both[a] - both[b]).to_numpy())
            row = {"task": task, "a": a, "b": b, "difference": difference, "low": low, "high": high}
            rows.append(row | {"g": hedges_g(both[a], both[b]), "runs": len(both), "p": found.p})
        if rows:
            table = pd.DataFrame(rows)
            table["p_holm"] = holm(table["p"])
            table["star"] = [mark(p, n) for p, n in zip(table["p_holm"], table["runs"], strict=True)]
            tables.append(table)
    columns = ["task", "a", "b", "difference", "low", "high", "g", "runs", "p", "p_holm", "star"]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=columns)
