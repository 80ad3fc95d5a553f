"""Figures whose points are runs: performance profiles, and how many steps it took to reach the criterion."""

import numpy as np
import pandas as pd

from mnemolab.analysis.compare import steps_to_criterion
from mnemolab.analysis.figures.draw import extremes, runs_said, some, unit_axis
from mnemolab.analysis.figures.plot import Plot
from mnemolab.analysis.records import Study
from mnemolab.analysis.statistics import kaplan_meier, performance_profile, survival_quantile
from mnemolab.analysis.style import COLUMN, canvas, label, legend_above, look, paper

__all__ = ["performance_profiles", "solved_by_step"]

# Fewer runs of an arm than this make no distribution.
_FEWEST = 4


def performance_profiles(study: Study) -> list[Plot]:
    """Share of runs whose test accuracy lies above each threshold (Agarwal et al. 2021), one line an arm, one plot a task."""
    runs, plots = study.runs, []
    if "test.accuracy" not in runs:
        return some([], "performance profiles: the results lack test accuracy")
    for task, frame in runs.dropna(subset=["test.accuracy"]).groupby("task"):
        counts = frame["arm"].value_counts()
        frame = frame[frame["arm"].isin(counts[counts >= _FEWEST].index)]
        if frame["arm"].nunique() < 2:
            continue
        thresholds = np.linspace(0, 1, 101)
        parts = [
            pd.DataFrame({"arm": arm, "accuracy": thresholds, "mean": performance_profile(rows["test.accuracy"], thresholds), "runs": len(rows)})
            for arm, rows in frame.groupby("arm", observed=True)
        ]  # fmt: skip
        table = pd.concat(parts, ignore_index=True)
        looks = look(table["arm"])
        with paper():
            figure, axes = canvas(COLUMN, 2.6)
            for arm, style in looks.items():
                rows = table[table["arm"] == arm]
                axes.plot(
                    rows["accuracy"],
                    rows["mean"],
                    color=style.color,
                    linestyle=style.dash,
                    label=label(arm),
                    drawstyle="steps-post",
                )
            unit_axis(axes, "share of runs above it")
            axes.set_xlim(0, 1)
            axes.set_xlabel("test accuracy")
            axes.set_title("Performance profile")
            legend_above(figure, axes)
        plots.append(
            Plot(
                f"profile-{task}",
                f"Performance profiles ({task})",
                f"Share of runs whose test accuracy lies above each value; a line that lies higher everywhere is better. {runs_said(table)}.",
                f"Falling steps by model. {extremes(table, 'mean height')}",
                figure,
                table,
            )
        )
    return some(plots, f"performance profiles: no task here has two models of {_FEWEST} runs each")


def solved_by_step(study: Study) -> list[Plot]:
    """Share of runs that have reached the criterion by each step, (Kaplan-Meier), one plot a task; 95% limits are in the
    data, and drawn where one or two arms are compared."""
    runs, plots = study.runs, []
    if "steps_to_solved" not in runs:
        return some([], "steps to criterion: the results lack steps_to_solved")
    for task, frame in runs.groupby("task"):
        if frame["steps_to_solved"].isna().all() or frame.groupby("arm", observed=True).size().max() < _FEWEST:
            continue
        looks, parts = look(frame["arm"]), []
        with paper():
            figure, axes = canvas(COLUMN, 2.6)
            for arm, style in looks.items():
                times, seen = steps_to_criterion(frame[frame["arm"].astype(str) == arm])
                curve = kaplan_meier(times, seen)
                end = curve.tail(1).assign(time=max(times.max(), curve["time"].max()), events=0)
                curve = pd.concat([curve, end], ignore_index=True)
                step, solved = curve["time"].to_numpy(), 1 - curve["survival"].to_numpy()
                low, high = 1 - curve["high"].to_numpy(), 1 - curve["low"].to_numpy()
                if len(looks) <= 2:  # more bands than two hide each other
                    axes.fill_between(step, low, high, step="post", color=style.color, alpha=0.15, linewidth=0)
                axes.plot(
                    step,
                    solved,
                    color=style.color,
                    linestyle=style.dash,
                    drawstyle="steps-post",
                    label=label(arm),
                    clip_on=False,
                )
                table = pd.DataFrame(
                    {"arm": arm, "step": step, "mean": solved, "low": low, "high": high, "runs": len(times)}
                )
                parts.append(table.assign(median=survival_quantile(times, seen)))
            unit_axis(axes, "share of runs that solved it")
            axes.set_xlim(left=0)
            axes.set_xlabel("training step")
            axes.set_title("Steps to the criterion")
            legend_above(figure, axes)
        table = pd.concat(parts, ignore_index=True)
        last = table.groupby("arm", observed=True).tail(1)
        plots.append(
            Plot(
                f"solved-{task}",
                f"Steps to the criterion ({task})",
                "Share of runs that had reached the criterion by each step (Kaplan-Meier). Runs that never did "
                f"are censored at their last step. {runs_said(table)}.",
                f"Rising steps by model. {extremes(last, 'share solved in the end')}",
                figure,
                table,
            )
        )
    return some(plots, f"steps to criterion: no task here has {_FEWEST} runs of a model, one of which solved it")
