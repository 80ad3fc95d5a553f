"""How fast a rule is learned: steps to criterion, with runs that never get there."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from mnemolab.analysis.claims.claim import Judgement, Sample
from mnemolab.analysis.claims.evidence import Evidence, Ran, Values
from mnemolab.analysis.statistics import log_rank, wilson

__all__ = ["TASKS", "lineage_order", "race"]

TASKS = ("recall", "palindrome", "stack")
ORDER = ("delta channel", "delta scalar", "mamba2")


def lineage_order(evidence: Evidence) -> Judgement:
    """Steps to criterion: KDA before Gated DeltaNet before Mamba-2, on each task.

    The effect is the ln of the ratio of steps, later over earlier stage, runs that never solve the task counting the whole
    budget; p is the log-rank test's, one-sided. Ground: the later one takes longer than the earliest run of all by twice the
    margin and more, as it must to be behind by it (or is ahead by as much). Placebo: KDA against its twin.
    """
    samples, placebo, numbers, twins = [], [], [], []
    for task in TASKS:
        times = evidence.values("learning", _steps, task)
        budget = float(evidence.runs("learning", task)[0].plan.config.budget.steps)
        earliest = min((value for arm in times.arms for value in times.of(arm).values()), default=budget)
        for first, second in pairwise(ORDER):
            ground = _room(
                f"{task}: {second} behind the earliest run", times.of(first), times.of(second), earliest, budget
            )
            found = race(f"{task}: {first} before {second}", times.of(first), times.of(second), budget)
            samples.append(replace(found, ground=ground))
        for arm, double in times.doubles.items():
            twin = race(f"{task}: {arm} before itself", times.of(arm), dict(double), budget)
            placebo.append(twin)
            twins.append(twin)
        numbers += [*_solved(times, budget, task), *_accuracy(evidence, task)]
    return Judgement(samples=samples, placebo=placebo, twins=twins, numbers=numbers)


def race(name: str, first: Mapping[int, float], second: Mapping[int, float], budget: float) -> Sample:
    """A contrast of two arms' steps; a run that is censored has more than the budget. One-sided log-rank, paired effect."""
    both = [seed for seed in first if seed in second]
    values = {seed: float(np.log(min(second[seed], budget) / min(first[seed], budget))) for seed in both}
    if not both:
        return Sample(name, {}, p=1.0)
    a, b = (np.array([arm[seed] for seed in both]) for arm in (first, second))
    found = log_rank(np.minimum(a, budget), a <= budget, np.minimum(b, budget), b <= budget)
    half = found.p_permuted / 2
    return Sample(name, values, p=half if found.hazard > 1 else 1 - half)


def _room(name: str, first: Mapping[int, float], second: Mapping[int, float], earliest: float, budget: float) -> Sample:
    """By how much `second` could have been behind: its distance from the earliest run, or how far it is ahead of `first`."""
    a, b = ({seed: min(value, budget) for seed, value in arm.items()} for arm in (first, second))
    room = {seed: float(np.log(max(b[seed] / earliest, a[seed] / b[seed]))) for seed in a if seed in b}
    return Sample(name, room)


def _steps(run: Ran) -> float:
    """Steps to criterion; twice the budget when it was never met."""
    steps = run.result["steps_to_solved"]
    return float(2 * run.plan.config.budget.steps if steps is None else steps)


def _solved(times: Values, budget: float, task: str) -> list[dict]:
    rows = []
    for arm in times.arms:
        values = list(times.of(arm).values())
        share, low, high = wilson(sum(v <= budget for v in values), len(values))
        row = {"measure": f"{task}: share of runs that solve it", "arm": arm, "mean": share, "low": low, "high": high}
        rows.append(row | {"seeds": len(values)})
    return rows


def _accuracy(evidence: Evidence, task: str) -> list[dict]:
    """Accuracy of the runs that solved the task, which comes second."""
    solved = evidence.values(
        "learning",
        lambda run: run.result["test"]["accuracy"] if run.result["steps_to_solved"] is not None else float("nan"),
        task,
    )
    return solved.rows(f"{task}: test accuracy of solved runs")
