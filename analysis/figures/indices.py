"""Proactive and retroactive interference side by side, and release where it was tested."""

import pandas as pd

from mnemolab.analysis import paradigms
from mnemolab.analysis.figures.draw import extremes, intervals, ordered, runs_said, some, tasks_with
from mnemolab.analysis.figures.plot import Plot
from mnemolab.analysis.records import Study
from mnemolab.analysis.style import COLUMN, PAGE, canvas, label, legend_above, look, paper
from mnemolab.errors import BadRequest

__all__ = ["interference_indices", "release_bars"]

_PANELS = (
    ("proactive", paradigms.proactive, "versions", "Proactive", "versions of the key"),
    ("retroactive", paradigms.retroactive, "later", "Retroactive, same key", "later rebindings of the key"),
    ("load", paradigms.load_interference, "lag_writes", "Retroactive, other keys", "later writes"),
)


def interference_indices(study: Study) -> list[Plot]:
    """Indices (p_control - p_experiment) / p_control, one panel a kind, for tasks with matched controls."""
    plots = []
    for task, records in tasks_with(study, "condition"):
        panels, absent = [], []
        for name, measure, axis, title, words in _PANELS:
            try:
                frame = measure(records)
            except BadRequest:
                continue
            known = frame["index"].notna() & ~frame["note"].str.startswith("unstable")
            absent += _absent(title, frame, known)
            frame = frame[known].rename(columns={axis: "x", "index": "mean"})
            if len(frame):
                panels.append((name, title, words, frame.assign(panel=name)))
        if not any(name in ("proactive", "retroactive") for name, *_ in panels):
            continue
        data = pd.concat([frame for *_, frame in panels], ignore_index=True)
        looks = look(data["arm"])
        with paper():
            figure, axes = canvas(
                COLUMN if len(panels) == 1 else PAGE, 2.45, 1, len(panels), squeeze=False, sharey=True
            )
            for at, (ax, (_, title, words, frame)) in enumerate(zip(axes[0], panels, strict=True)):
                ax.axhline(0, color="#666666", linewidth=0.8, zorder=1)
                intervals(ax, frame, "x", looks, dodge=0.03 * frame["x"].nunique())
                ax.set_title(title)
                ax.set_xlabel(words)
                if frame["x"].nunique() <= 6:
                    ax.set_xticks(sorted(frame["x"].unique()))
                if at == 0:
                    ax.set_ylabel("interference index")
            legend_above(figure, axes[0], order=map(label, looks))
        most = data[(data["panel"] == panels[0][0])]
        most = most[most["x"] == most["x"].max()]
        caption = (
            "(control minus experiment) / control accuracy; 0: no interference, 1: all is lost. Controls have the same lag and "
            "length, with the key's other bindings given to other keys; for other keys, queries of the same lag with the fewest "
            f"later writes. Mean over {runs_said(data)}; bars: 95% intervals."
        )
        plots.append(
            Plot(
                f"interference-{task}",
                f"Interference against matched controls ({task})",
                " ".join([caption, *absent]),
                " ".join(["Interference indices.", extremes(most, "interference"), *absent]),
                figure,
                data,
            )
        )
    return some(plots, "interference indices: no task here has matched controls (key_overwrite with control=True)")


def _absent(title: str, frame: pd.DataFrame, known: pd.Series) -> list[str]:
    """Sentences on the arms of `frame` that a panel cannot show at all, and why: what the notes say of their controls."""
    lost = frame[~frame["arm"].isin(frame.loc[known, "arm"])]
    arms: dict[str, list[str]] = {}
    for arm, rows, _ in ordered(lost, look(lost["arm"])):
        # how many runs it is differs from cell to cell
        reasons = (note.removeprefix("unstable: ").partition(" in ") for note in rows["note"])
        reasons = dict.fromkeys(said + (" in some runs" if of else "") for said, of, _ in reasons)
        arms.setdefault(" or ".join(reasons), []).append(label(arm))
    what = "no curve" if known.any() else "no panel; nothing"
    return [f"{title}: {what} for {'; '.join(names)}, since {why}." for why, names in arms.items()]


def release_bars(study: Study) -> list[Plot]:
    """Release from proactive interference at a shift, and at the return to the first topic."""
    plots = []
    for task, records in tasks_with(study, "condition"):
        try:
            frame = paradigms.release_from_interference(records)
        except BadRequest:
            continue
        frame = frame.rename(columns={"difference": "mean"})
        looks = look(frame["arm"])
        kinds = list(dict.fromkeys(frame["condition"]))
        with paper():
            figure, axes = canvas(COLUMN, 1.0 + 0.3 * len(looks))
            axes.axvline(0, color="#666666", linewidth=0.8, zorder=1)
            for row, (_, rows, style) in enumerate(ordered(frame, looks)):
                for k, kind in enumerate(kinds):
                    one = rows[rows["condition"] == kind].iloc[0]
                    error = [[one["mean"] - one["difference_low"]], [one["difference_high"] - one["mean"]]]
                    where = row + 0.16 * (k - (len(kinds) - 1) / 2)
                    face = style.color if k == 0 else "white"
                    axes.errorbar(
                        one["mean"], where, xerr=error, color=style.color, marker=style.marker, markerfacecolor=face,
                        elinewidth=0.8, capsize=1.6, label=kind if row == 0 else None, linestyle="",
                    )  # fmt: skip
            axes.set_yticks(range(len(looks)), [label(a) for a in looks])
            axes.invert_yaxis()
            axes.set_xlabel("accuracy gained over no shift")
            if len(kinds) > 1:
                legend_above(figure, axes)
        plots.append(
            Plot(
                f"release-{task}",
                f"Release from proactive interference ({task})",
                "Accuracy on the last block after a shift of topic (filled) or a return to the first (open), minus that "
                f"without a shift. Mean over {runs_said(frame)}; bars: 95% intervals.",
                f"Gains by model. {extremes(frame[frame['condition'] == 'shift'], 'gain at a shift')}",
                figure,
                frame,
            )
        )
    return some(plots, "release: no task here has the conditions single, no_shift and shift")
