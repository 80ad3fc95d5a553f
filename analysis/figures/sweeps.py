"""Figures over a sweep's factors: size of state, learning rate, length and depth."""

import numpy as np
import pandas as pd
from matplotlib.ticker import FixedLocator, NullLocator

from mnemolab.analysis.cells import curve
from mnemolab.analysis.figures.draw import (
    extremes,
    intervals,
    ordered,
    plain_log,
    runs_said,
    some,
    tasks_with,
    unit_axis,
)
from mnemolab.analysis.figures.plot import Plot
from mnemolab.analysis.records import Study, arms
from mnemolab.analysis.statistics import mean_interval
from mnemolab.analysis.style import COLUMN, PAGE, canvas, label, legend_above, look, paper

__all__ = ["learning_rate_robustness", "needle_map", "state_frontier"]


def state_frontier(study: Study) -> list[Plot]:
    """Test accuracy against floating-point elements of state, one line a stage (Zoology's frontier).

    A stage of one size beside others of several is a ceiling or a floor: its point, and a dashed line through it.
    """
    runs = study.runs
    if "state_elements" not in runs or "test.accuracy" not in runs:
        return some([], "frontier: the results lack state_elements or test accuracy")
    plots = []
    runs = runs.assign(line=arms(runs, apart=_sizes(runs)))
    for task, frame in runs.dropna(subset=["test.accuracy", "state_elements"]).groupby("task"):
        if frame.groupby("line")["state_elements"].nunique().max() < 2:
            continue
        # a point is an arm: two shapes of one size are two points
        table = _means(frame, ["line", "arm", "state_elements"]).drop(columns="arm").sort_values("state_elements")
        looks = look(table["line"])
        with paper():
            many = len(looks) > 6  # a legend of several rows
            figure, axes = canvas(PAGE * 0.75 if many else COLUMN, 3.2 if many else 2.6)
            for stage, rows, style in ordered(table, looks, "line"):
                error = np.stack([rows["mean"] - rows["low"], rows["high"] - rows["mean"]])
                axes.errorbar(
                    rows["state_elements"], rows["mean"], yerr=np.maximum(error, 0), elinewidth=0.8, capsize=1.6,
                    clip_on=False, **style.line(label=label(stage)),
                )  # fmt: skip
                if rows["state_elements"].nunique() == 1:
                    axes.axhline(rows["mean"].mean(), color=style.color, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
            axes.set_xscale("log", base=2)
            _size_ticks(axes, table["state_elements"])
            unit_axis(axes, "test accuracy")
            axes.set_xlabel("state (elements after the whole sequence)")
            axes.set_title("State against recall")
            legend_above(figure, axes)
        caption = (
            f"Test accuracy against the size of the state. Mean over {runs_said(table)}; bars: 95% intervals over runs."
        )
        if (table.groupby("line")["state_elements"].nunique() == 1).any():
            caption += " Dashed: a stage of one size."
        table = table.rename(columns={"line": "arm"})
        alt = f"Accuracy against size of state. {extremes(table, 'accuracy')}"
        plots.append(Plot(f"frontier-{task}", f"State against recall ({task})", caption, alt, figure, table))
    return some(plots, "frontier: no stage was trained at several sizes of state")


def learning_rate_robustness(study: Study) -> list[Plot]:
    """Accuracy against learning rate: how wide the window is in which each stage works."""
    runs, column = study.runs, "optimiser.learning_rate"
    name = "validation.accuracy" if "validation.accuracy" in study.runs else "test.accuracy"
    if column not in runs or name not in runs:
        return some([], "learning rate: the configs lack a learning rate, or the results an accuracy")
    plots = []
    runs = runs.assign(line=arms(runs, apart=[column]))
    for task, frame in runs.dropna(subset=[name]).groupby("task"):
        if frame.groupby("line")[column].nunique().max() < 3:
            continue
        table = _means(frame, ["line", column], name).rename(columns={"line": "arm"})
        looks = look(table["arm"])
        with paper():
            figure, axes = canvas(COLUMN, 2.6)
            intervals(axes, table, column, looks)
            axes.set_xscale("log")
            unit_axis(axes, name.replace(".", " "))
            axes.set_xlabel("learning rate")
            axes.set_title("Robustness to learning rate")
            legend_above(figure, axes)
        caption = f"Accuracy by learning rate. Mean over {runs_said(table)}; bars: 95% intervals over runs."
        alt = f"Accuracy against learning rate. {extremes(table, 'mean accuracy')}"
        plots.append(
            Plot(f"learning-rate-{task}", f"Robustness to learning rate ({task})", caption, alt, figure, table)
        )
    return some(plots, "learning rate: no stage was trained at 3 or more of them")


def needle_map(study: Study) -> list[Plot]:
    """Accuracy by length (across) and depth of the needle (down), one panel a model."""
    plots = []
    for task, records in tasks_with(study, "query_depth"):
        if task != "needle":
            continue
        lengths = "task.length" if "task.length" in records else None
        if lengths:  # one map a model, not one a length
            model = dict(zip(study.runs["run_id"].astype(str), arms(study.runs, apart=[lengths]), strict=True))
            records = records.assign(arm=records["run_id"].astype(str).map(model))
        by = ["arm", *([lengths] if lengths else [])]
        table = curve(records, "query_depth", by=by, draws=200).rename(columns={"query_depth": "depth"})
        table["length"] = table[lengths] if lengths else 0
        looks = look(table["arm"])
        columns = min(4, len(looks))
        rows = -(-len(looks) // columns)
        with paper():
            figure, axes = canvas(
                PAGE if columns > 1 else COLUMN,
                0.6 + 1.5 * rows,
                rows,
                columns,
                squeeze=False,
                sharex=True,
                sharey=True,
            )
            images = []
            for ax in axes.ravel()[len(looks) :]:
                ax.set_visible(False)
            for ax, arm in zip(axes.ravel(), looks, strict=False):
                grid = table[table["arm"] == arm].pivot_table(index="depth", columns="length", values="mean")
                images.append(ax.imshow(grid, vmin=0, vmax=1, cmap="cividis", aspect="auto", origin="upper"))
                ax.grid(visible=False)
                ax.set_title(label(arm))
                ax.set_xticks(range(grid.shape[1]), [f"{v:g}" for v in grid.columns])
                ax.set_yticks(range(grid.shape[0]), [f"{v:.0f}" for v in grid.index])
                for (y, x), value in np.ndenumerate(grid.to_numpy()):
                    ax.text(
                        x,
                        y,
                        f"{value:.2f}",
                        ha="center",
                        va="center",
                        fontsize=6,
                        color="white" if value < 0.5 else "black",
                    )
            for ax in axes[:, 0]:
                ax.set_ylabel("depth (%)")
            for ax in axes[-1]:
                ax.set_xlabel("length (tokens)" if lengths else "")
            figure.colorbar(images[0], ax=axes, label="accuracy", fraction=0.03, pad=0.02)
        plots.append(
            Plot(
                f"needle-map-{task}",
                f"Needle by length and depth ({task})",
                f"Accuracy by length of the sequence and depth of the needle (0: at the start). Mean over {runs_said(table)}.",
                f"One map a model. {extremes(table, 'accuracy')}",
                figure,
                table,
            )
        )
    return some(plots, "needle map: no needle task here")


def _sizes(runs: pd.DataFrame) -> list[str]:
    """Fields of the model that set the size of its state, and those of training, which may be chosen anew for each size."""
    sizes = ("model.width", "model.depth", "model.heads", "model.head_dim", "model.state")
    return [c for c in map(str, runs.columns) if c in sizes or c.startswith(("optimiser.", "budget."))]


def _size_ticks(axes, sizes: pd.Series) -> None:
    """Ticks at the sizes themselves while they are few, but for those too near the one before; at powers of two otherwise; a
    little room at the ends."""
    plain = np.sort(sizes.unique())
    apart = max(1.4, (plain[-1] / plain[0]) ** (1 / 7))  # a column holds some seven numbers
    shown = [plain[0]]
    for size in plain[1:]:
        shown += [size] if size / shown[-1] >= apart else []
    axes.set_xlim(plain[0] / 1.25, plain[-1] * 1.25)
    if len(plain) <= 7:
        axes.xaxis.set_major_locator(FixedLocator([float(v) for v in shown]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    else:
        plain_log(axes.xaxis, 2)


def _means(frame: pd.DataFrame, by: list[str], value: str = "test.accuracy") -> pd.DataFrame:
    rows = []
    for key, group in frame.groupby(by):
        mean, low, high = mean_interval(pd.to_numeric(group[value]))
        if "accuracy" in value:
            low, high = max(low, 0.0), min(high, 1.0)
        where = dict(zip(by, key if isinstance(key, tuple) else (key,), strict=True))
        rows.append({**where, "mean": mean, "low": low, "high": high, "runs": len(group)})
    return pd.DataFrame(rows)
