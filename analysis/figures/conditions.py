"""Accuracy under each condition of a task, one panel a condition: means over seeds, and every seed, since seeds may be of two kinds."""

import numpy as np

from mnemolab.analysis.figures.draw import extremes, runs_said, some, tasks_with
from mnemolab.analysis.figures.plot import Plot
from mnemolab.analysis.records import Study
from mnemolab.analysis.style import PAGE, canvas, label, look, paper

__all__ = ["accuracy_by_condition"]


def accuracy_by_condition(study: Study) -> list[Plot]:
    """Accuracy by arm (rows) and condition (panels), one plot a task with several conditions."""
    plots = []
    for task, records in tasks_with(study, "condition"):
        names = list(dict.fromkeys(records["condition"].astype(str)))
        if len(names) < 2:
            continue
        runs = (
            records.groupby(["arm", "run_id", "condition"], observed=True)["correct"]
            .mean()
            .rename("value")
            .reset_index()
        )
        looks = look(runs["arm"])
        grouped = runs.groupby(["arm", "condition"], observed=True)["value"]
        means = grouped.agg(mean="mean", least="min", most="max", runs="size").reset_index()
        with paper():
            figure, axes = canvas(PAGE, 0.75 + 0.26 * len(looks), columns=len(names))
            for panel, name in zip(axes, sorted(names), strict=True):
                for row, (arm, shown) in enumerate(looks.items()):
                    own = runs.loc[(runs["arm"] == arm) & (runs["condition"] == name), "value"]
                    panel.plot(own, np.full(len(own), row), "|", color=shown.color, alpha=0.7, markersize=8)
                    panel.plot(
                        own.mean(),
                        row,
                        "o",
                        color=shown.color,
                        markersize=4.5,
                        markeredgecolor="white",
                        markeredgewidth=0.6,
                    )
                panel.set_yticks(range(len(looks)), [label(a) for a in looks])
                panel.set_ylim(len(looks) - 0.5, -0.5)
                panel.set_xlim(-0.03, 1.03)
                panel.set_title(name.replace("_", " "))
                panel.set_xlabel("accuracy")
                panel.grid(visible=False, axis="y")
                panel.label_outer()
        plots.append(
            Plot(
                f"conditions-{task}",
                f"Accuracy by condition ({task})",
                f"Accuracy of the queries of each condition: means (points) and single runs (bars), {runs_said(means)}.",
                f"Points by arm, one panel a condition. {extremes(means, 'accuracy')}",
                figure,
                means,
            )
        )
    return some(plots, "accuracy by condition: the task has one condition")
