"""Retention curves with fitted forgetting curves and, where it applies, the random-key oracle."""

import numpy as np
import pandas as pd

from mnemolab.analysis import retention
from mnemolab.analysis.families import FAMILIES
from mnemolab.analysis.figures.draw import (
    chance_line,
    extremes,
    ordered,
    plain_log,
    runs_said,
    some,
    tasks_with,
    unit_axis,
    words,
)
from mnemolab.analysis.figures.plot import Plot
from mnemolab.analysis.fits import fit_runs
from mnemolab.analysis.paradigms import latest_mask
from mnemolab.analysis.records import Study
from mnemolab.analysis.style import COLUMN, canvas, label, legend_above, look, paper

__all__ = ["retention_with_fits"]


def retention_with_fits(study: Study, axis: str = "lag_tokens") -> list[Plot]:
    """Points: accuracy by lag. Lines: the mean over runs of each run's curve of the family that AICc prefers in all."""
    plots = []
    for task, records in tasks_with(study, axis, "chance"):
        asked = latest_mask(records) if "ask" in records else None
        if records[axis].nunique() < 4:
            continue
        points = retention.curve(records, axis, bins=10, where=asked)
        fits = fit_runs(records, axis, interval="none", where=asked)
        fits = fits[fits["family"] != ""]
        looks = look(points["arm"])
        ends = points[axis].min(), points[axis].max()
        grid = np.linspace(*ends, 120) if ends[0] < 1 else np.geomspace(*ends, 120)
        lines = []
        chance = float(records["chance"].mean())
        with paper():
            figure, axes = canvas(COLUMN, 2.1 + 0.14 * len(looks))
            chance_line(axes, points, axis)
            for arm, rows, style in ordered(points, looks):
                error = np.stack([rows["mean"] - rows["low"], rows["high"] - rows["mean"]])
                face = {
                    "marker": style.marker,
                    "color": style.color,
                    "linestyle": "",
                    "elinewidth": 0.7,
                    "capsize": 1.2,
                }
                axes.errorbar(
                    rows[axis], rows["mean"], yerr=np.maximum(error, 0), markersize=3, clip_on=False, zorder=3, **face
                )
                mine = fits[fits["arm"].astype(str) == arm]
                if mine.empty:
                    continue
                family, predicted = _mean_fit(mine, grid, chance)
                name = f"{label(arm)} ({family.replace('_', ' ')})"
                axes.plot(grid, predicted, color=style.color, linestyle=style.dash, label=name, zorder=2)
                lines.append(pd.DataFrame({"arm": arm, axis: grid, "mean": predicted, "family": family, "what": "fit"}))
            unit_axis(axes)
            if ends[0] > 0 and ends[1] / ends[0] > 30:
                axes.set_xscale("log", base=2)
                plain_log(axes.xaxis, 2)
            axes.set_xlabel(words(axis))
            axes.set_title("Retention and its best curve")
            legend_above(figure, axes)
        far = points[points[axis] >= points[axis].max() * 0.8]
        plots.append(
            Plot(
                f"fits-{task}",
                f"Fitted forgetting curves ({task})",
                "Points: accuracy by lag, with 95% intervals. Lines: mean over runs of the curves fitted run by run, of the "
                f"family with the least AICc summed over runs. Mean over {runs_said(points)}.",
                f"Retention with fitted curves. {extremes(far, 'accuracy at the longest lags')}",
                figure,
                pd.concat([points.assign(what="points"), *lines], ignore_index=True),
            )
        )
    return some(plots, f"fits: no task here has 4 or more values of {axis}")


def _mean_fit(fits: pd.DataFrame, grid: np.ndarray, chance: float) -> tuple[str, np.ndarray]:
    """The family with the least summed AICc, and the mean over runs of its predictions."""
    total = fits.groupby("family")["aicc"].sum()
    name = str(total.idxmin())
    family = FAMILIES[name]
    curves = []
    for _, row in fits[fits["family"] == name].iterrows():
        # a run at chance has half-life 0: nothing is left at any lag
        kept = family.curve(grid, *(row[p] for p in family.parameters)) if row["half_life"] > 0 else np.zeros(len(grid))
        curves.append(chance + (1 - chance) * kept)
    return name, np.mean(curves, axis=0)
