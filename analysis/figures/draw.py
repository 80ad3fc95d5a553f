"""The few strokes that the figures share."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from mnemolab.analysis.figures.plot import NotApplicable, Plot
from mnemolab.analysis.records import Study
from mnemolab.analysis.style import Look, label

__all__ = [
    "band",
    "chance_line",
    "extremes",
    "intervals",
    "log_if_wide",
    "ordered",
    "plain_log",
    "runs_said",
    "some",
    "tasks_with",
    "unit_axis",
    "words",
]

_WORDS = {
    "lag_tokens": "lag (tokens since the write)",
    "lag_writes": "lag (later writes)",
    "serial_position": "serial position (writes before)",
    "load": "load (bindings written)",
    "versions": "versions of the key",
    "version": "earlier versions of the key",
    "query_index": "queries asked before",
    "age": "age of the stale value (versions back)",
    "step": "training step",
    "fan": "fan (values bound to the key)",
    "spacing": "spacing of the two writes (writes)",
    "depth": "depth of the needle",
    "length": "length (tokens)",
}


def words(axis: str) -> str:
    """The axis label of a column."""
    return _WORDS.get(axis, axis.replace("task.", "").replace("_", " "))


def ordered(frame: pd.DataFrame, looks: Mapping[str, Look], column: str = "arm"):
    """(arm, its rows, its look) in the order of the lineage."""
    for arm, look in looks.items():
        rows = frame[frame[column].astype(str) == arm]
        if len(rows):
            yield arm, rows, look


def intervals(
    axes: Axes,
    frame: pd.DataFrame,
    x: str,
    looks: Mapping[str, Look],
    y: Sequence[str] = ("mean", "low", "high"),
    dodge: float = 0.0,
) -> None:
    """One line an arm with error bars; `dodge` moves arms apart along x, in units of x, so that bars do not hide each other."""
    mean, low, high = y
    present = [a for a, _, _ in ordered(frame, looks)]
    for n, (arm, rows, look) in enumerate(ordered(frame.sort_values(x), looks)):
        shift = dodge * (n - (len(present) - 1) / 2)
        at, m = rows[x].to_numpy(dtype=float) + shift, rows[mean].to_numpy(dtype=float)
        error = np.maximum(0, np.stack([m - rows[low].to_numpy(float), rows[high].to_numpy(float) - m]))
        style = look.line(label=label(arm))
        axes.errorbar(
            at, m, yerr=error, elinewidth=0.8, capsize=1.6, capthick=0.8, clip_on=False, zorder=3 + 0.01 * n, **style
        )


def band(
    axes: Axes,
    frame: pd.DataFrame,
    x: str,
    looks: Mapping[str, Look],
    y: Sequence[str] = ("mean", "low", "high"),
    markers: int = 8,
) -> None:
    """One line an arm inside a shaded interval, for dense x; about `markers` markers a line."""
    mean, low, high = y
    for n, (arm, rows, look) in enumerate(ordered(frame.sort_values(x), looks)):
        at = rows[x].to_numpy(dtype=float)
        axes.fill_between(
            at, rows[low].to_numpy(float), rows[high].to_numpy(float), color=look.color, alpha=0.15, linewidth=0
        )
        every = max(1, len(rows) // markers)
        style: dict[str, Any] = look.line(label=label(arm), markevery=(n * every // max(1, len(looks)), every))
        axes.plot(at, rows[mean].to_numpy(float), zorder=3 + 0.01 * n, **style)


def chance_line(axes: Axes, frame: pd.DataFrame, x: str, column: str = "chance") -> None:
    """Chance against x, the same for all arms (their mean): dashed grey, named in the legend so that it covers no data."""
    if column not in frame:
        return
    level = frame.groupby(x, observed=True)[column].mean().sort_index()
    style = {"color": "#666666", "linewidth": 0.8, "linestyle": (0, (2, 2)), "zorder": 1}
    axes.plot(level.index.to_numpy(float), level.to_numpy(float), label="chance", **style)


def plain_log(axis, base: float = 10.0) -> None:
    """Plain numbers at 1, 2 and 5 of each decade (or powers of `base`) on a log axis whose limits are set; at 1 alone where
    the labels would run into each other."""
    low, high = axis.get_view_interval()
    decades = np.log10(high / low) if 0 < low < high else 0.0
    crowded = decades > (2.5 if axis.axis_name == "x" else 4)
    subs = (1.0, 2.0, 5.0) if base == 10 and not crowded else (1.0,)
    axis.set_major_locator(LogLocator(base, subs=subs))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def unit_axis(axes: Axes, name: str = "accuracy") -> None:
    """A y axis from 0 to 1 with room for markers at both ends."""
    axes.set_ylim(-0.02, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_yticklabels(["0", ".25", ".5", ".75", "1"])
    axes.set_ylabel(name)


def tasks_with(study: Study, *columns: str):
    """(task, its records) for tasks whose records have `columns`; raises NotApplicable when the table lacks them."""
    missing = [c for c in columns if c not in study.records]
    if missing:
        raise NotApplicable(f"the records lack the column {', '.join(missing)}")
    for task, records in study.by_task.items():
        if all(c in records for c in columns):
            yield task, records


def some(plots: list[Plot], why: str) -> list[Plot]:
    """`plots`, or NotApplicable with the reason when there are none."""
    if not plots:
        raise NotApplicable(why)
    return plots


def runs_said(frame: pd.DataFrame) -> str:
    """How many runs stand behind a curve, in words."""
    low, high = int(frame["runs"].min()), int(frame["runs"].max())
    return f"{high} run{'s' if high > 1 else ''} per model" if low == high else f"{low} to {high} runs per model"


def extremes(frame: pd.DataFrame, what: str) -> str:
    """One sentence for the alternative text: who has the most and who the least."""
    mean = frame.groupby("arm", observed=True)["mean"].mean().sort_values()
    if mean.empty:
        return ""
    most, least = mean.index[-1], mean.index[0]
    if most == least:
        return f"{label(str(most))}: {what} {mean.iloc[-1]:.2f}."
    return f"Most {what}: {label(str(most))}, {mean.iloc[-1]:.2f}; least: {label(str(least))}, {mean.iloc[0]:.2f}."


def log_if_wide(axes: Axes, x: np.ndarray) -> None:
    """A log2 x axis, with plain numbers, when x spans more than a factor 30."""
    if x.min() > 0 and x.max() / x.min() > 30:
        axes.set_xscale("log", base=2)
        plain_log(axes.xaxis, 2)
