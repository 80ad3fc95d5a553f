"""Figures of what models answer: retention, versions, intrusions, learning."""

import pandas as pd
from matplotlib.ticker import MaxNLocator

from mnemolab.analysis import interference, retention
from mnemolab.analysis.cells import curve
from mnemolab.analysis.figures.draw import (
    chance_line,
    extremes,
    intervals,
    log_if_wide,
    ordered,
    runs_said,
    some,
    tasks_with,
    unit_axis,
    words,
)
from mnemolab.analysis.figures.plot import NotApplicable, Plot
from mnemolab.analysis.oracle import RULES, simulate, simulate_overwrite
from mnemolab.analysis.paradigms import with_twins
from mnemolab.analysis.records import Study, arms
from mnemolab.analysis.style import COLUMN, PAGE, canvas, label, legend_above, look, paper

__all__ = [
    "accuracy_by_versions",
    "answers_by_class",
    "intrusions_by_age",
    "learning_curves",
    "query_order",
    "retention_by_lag",
]


_DOTS = (0, (1, 1.4))
# Stages whose bare rule has no gate to choose.
_BARE = {"linear_attention": "additive", "deltanet": "delta"}


def accuracy_by_versions(study: Study) -> list[Plot]:
    """Accuracy (left) and share of stale answers (right) against the number of versions, one plot a task with versions."""
    plots = []
    for task, records in tasks_with(study, "version"):
        if records["version"].nunique() < 2:
            continue
        if not interference.latest_mask(records).any():
            continue
        right = interference.accuracy_by_versions(records)
        if right["versions"].nunique() < 2:
            continue
        share = interference.intrusions(records)
        stale = share[share["outcome"] == "stale"]
        looks = look(right["arm"])
        oracle = _overwrite_oracle(list(looks), int(right["versions"].max()))
        with paper():
            figure, (left, other) = canvas(PAGE * 0.78, 2.45, 1, 2)
            dodge = 0.05
            chance_line(left, right, "versions")
            intervals(left, right, "versions", looks, dodge=dodge)
            for arm, rows in oracle.groupby("arm"):
                left.plot(rows["versions"], rows["mean"], color=looks[str(arm)].color, linestyle=_DOTS, zorder=2)
            if len(oracle):
                left.plot([], [], color="#555555", linestyle=_DOTS, label="random-key oracle")
            unit_axis(left, "accuracy")
            left.set_title("Right answers")
            chance_line(other, stale, "versions")
            intervals(other, stale, "versions", looks, dodge=dodge)
            unit_axis(other, "share of answers")
            other.set_title("Stale answers")
            for axes in (left, other):
                axes.set_xlabel(words("versions"))
                axes.set_xticks(sorted(right["versions"].unique()))
            legend_above(figure, left)
        data = [right.assign(panel="accuracy"), stale.assign(panel="stale"), oracle.assign(panel="oracle")]
        data = pd.concat([d for d in data if len(d)], ignore_index=True)
        most = right["versions"].max()
        seen = extremes(stale[stale["versions"] == most], f"stale answers at {int(most)} versions")
        plots.append(
            Plot(
                f"versions-{task}",
                f"Accuracy and stale answers against versions ({task})",
                "Each key is bound 1 to "
                f"{int(most)} times; the latest value is asked. Mean over {runs_said(right)}; bars: 95% intervals over "
                "runs and sequences. Dashed: chance, guessing among the values presented."
                + (" Dotted: the bare rule on random keys, simulated." if len(oracle) else ""),
                f"Two panels against versions of the key. {seen}",
                figure,
                data,
            )
        )
    return some(plots, "accuracy by versions: no task here has keys with several versions")


def intrusions_by_age(study: Study) -> list[Plot]:
    """Stale answers by how many versions back they were right, against guessing."""
    plots = []
    for task, records in tasks_with(study, "stale_age", "n_stale"):
        ages = interference.stale_ages(records)
        if ages.empty:
            continue
        looks = look(ages["arm"])
        with paper():
            figure, axes = canvas(COLUMN, 2.6)
            chance_line(axes, ages, "age")
            intervals(axes, ages, "age", looks, dodge=0.07)
            axes.set_xlabel(words("age"))
            axes.set_ylabel("share of queries")
            axes.set_ylim(bottom=-0.01)
            axes.set_xticks(sorted(ages["age"].unique()))
            axes.set_title("Intrusions of overwritten values")
            legend_above(figure, axes)
        plots.append(
            Plot(
                f"intrusions-{task}",
                f"Intrusions by age ({task})",
                "Share of queries answered with the value that the key had so many versions ago, among queries whose key has "
                f"one. Mean over {runs_said(ages)}; bars: 95% intervals over runs and sequences. Dashed: chance.",
                f"Share of stale answers against age. {extremes(ages[ages['age'] == 1], 'answers one version old')}",
                figure,
                ages,
            )
        )
    return some(plots, "intrusions by age: no query here asks for a key that was overwritten")


def retention_by_lag(study: Study, axis: str = "lag_tokens") -> list[Plot]:
    """Accuracy against lag, one plot a task."""
    plots = []
    for task, records in tasks_with(study, axis):
        if records[axis].nunique() < 2:
            continue
        # where several values of a key can be asked, which one is asked would be confounded with the lag
        asked = interference.latest_mask(records) if "ask" in records else None
        if axis == "load":  # a sweep over loads is one curve a model, not one point an arm
            records = records.assign(arm=records["run_id"].astype(str).map(_beside_load(study, records)))
        frame = retention.curve(records, axis, bins=10, where=asked)
        looks = look(frame["arm"])
        oracle = _retention_oracle(study, records, list(looks)) if axis == "lag_writes" else pd.DataFrame()
        with paper():
            figure, axes = canvas(COLUMN, 2.6)
            chance_line(axes, frame, axis)
            intervals(axes, frame, axis, looks)
            for arm, rows in oracle.groupby("arm") if len(oracle) else ():
                axes.plot(rows[axis], rows["mean"], color=looks[str(arm)].color, linestyle=_DOTS, zorder=2)
            if len(oracle):
                axes.plot([], [], color="#555555", linestyle=_DOTS, label="random-key oracle")
            unit_axis(axes)
            axes.set_xlabel(words(axis))
            log_if_wide(axes, frame[axis].to_numpy(float))
            axes.set_title("Retention")
            legend_above(figure, axes)
        far = frame[frame[axis] >= frame[axis].max() * 0.8]
        plots.append(
            Plot(
                f"retention-{axis.replace('_', '-')}-{task}",
                f"Retention by {words(axis).partition(' (')[0]} ({task})",
                f"Accuracy by {words(axis)}; cells hold about equal numbers of queries. Mean over {runs_said(frame)}; intervals: "
                "95% over runs and sequences. Dashed: chance, guessing among the values presented."
                + (
                    " Dotted: the bare rule on as many random keys as are written, with the model's key channels, simulated."
                    if len(oracle)
                    else ""
                ),
                f"Accuracy against lag. {extremes(far, 'accuracy at the longest lags')}",
                figure,
                pd.concat([frame.assign(panel="records"), oracle.assign(panel="oracle")]) if len(oracle) else frame,
            )
        )
    return some(plots, f"retention: no task here varies {axis}")


def learning_curves(study: Study) -> list[Plot]:
    """Validation accuracy against training step: thin lines are runs, the thick line their mean."""
    plots = []
    metrics = study.metrics
    if metrics.empty or "accuracy" not in metrics:
        raise NotApplicable("learning curves: no metrics.jsonl here holds accuracies")
    metrics = metrics[(metrics["split"] == "validation") & metrics["accuracy"].notna()]
    for task, frame in metrics.groupby("task", sort=True):
        grouped = frame.groupby(["arm", "step"])["accuracy"]
        mean = pd.DataFrame(grouped.agg(["mean", "min", "max", "size"])).reset_index()
        mean = mean.rename(columns={"min": "low", "max": "high", "size": "runs"})
        looks = look(mean["arm"])
        with paper():
            figure, axes = canvas(COLUMN, 2.6)
            for arm, rows, style in ordered(frame, looks):
                for _, run in rows.sort_values("step").groupby("run_id"):
                    axes.plot(run["step"], run["accuracy"], color=style.color, linewidth=0.5, alpha=0.45, zorder=2)
                rows = mean[mean["arm"] == arm].sort_values("step")
                every = max(1, len(rows) // 7)
                axes.plot(rows["step"], rows["mean"], zorder=3, **style.line(label=label(arm), markevery=every))
            unit_axis(axes, "validation accuracy")
            axes.set_xlabel(words("step"))
            axes.set_xlim(left=0)
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            axes.set_title("Learning")
            legend_above(figure, axes)
        last = mean[mean["step"] == mean["step"].max()]
        plots.append(
            Plot(
                f"learning-{task}",
                f"Learning curves ({task})",
                f"Accuracy on the validation stream during training. Thin: single runs; thick: mean over {runs_said(mean)}.",
                f"Validation accuracy against training step. {extremes(last, 'final accuracy')}",
                figure,
                mean,
            )
        )
    return some(plots, "learning curves: no validation rows in metrics.jsonl")


def answers_by_class(study: Study) -> list[Plot]:
    """Stacked shares of answer classes, one bar an arm."""
    plots = []
    for task, records in tasks_with(study, "outcome"):
        shares = interference.intrusions(records, axis=None)
        looks = look(shares["arm"])
        fills = dict(zip(interference.CLASSES, ["#d9d9d9", "#d55e00", "#0072b2", "#cc79a7", "#000000"], strict=True))
        with paper():
            figure, axes = canvas(COLUMN, 0.9 + 0.22 * len(looks))
            for row, arm in enumerate(looks):
                left = 0.0
                mine = shares[shares["arm"] == arm].set_index("outcome")["mean"]
                for name, fill in fills.items():
                    width = float(mine.get(name, 0.0))
                    text = name.replace("_", " ") if row == 0 else None
                    axes.barh(row, width, left=left, color=fill, height=0.7, label=text, linewidth=0)
                    left += width
            axes.set_yticks(range(len(looks)), [label(a) for a in looks])
            axes.invert_yaxis()
            axes.set_xlim(0, 1)
            axes.set_xlabel("share of answers")
            axes.grid(visible=False, axis="y")
            legend_above(figure, axes, columns=5, handletextpad=0.4, handlelength=1.0)
        plots.append(
            Plot(
                f"answers-{task}",
                f"What was answered ({task})",
                "Answers by class: right; stale (a value that the key had before); a value of another key; absent, a value never "
                f"presented or a wrong verdict (higher, lower, none); no value at all. Mean over {runs_said(shares)}.",
                f"Stacked bars of answer classes. {extremes(shares[shares['outcome'] == 'correct'], 'right answers')}",
                figure,
                shares,
            )
        )
    return some(plots, "answers by class: the records lack outcomes")


def query_order(study: Study) -> list[Plot]:
    """Accuracy against the number of queries asked before: output interference, for sequential scoring."""
    plots = []
    every = study.all_records
    if "scoring" not in every or "query_index" not in every:
        raise NotApplicable("output interference: the records lack scoring or query_index")
    for task, records in every.groupby("task", observed=True):
        if not (records["scoring"] == "sequential").any():
            continue
        pairs = with_twins(records)
        alone = records[records["scoring"] == "sequential"] if pairs is None else pairs
        frame = curve(alone, "query_index", "correct" if pairs is None else "change")
        looks = look(frame["arm"])
        with paper():
            figure, axes = canvas(COLUMN, 2.6)
            intervals(axes, frame, "query_index", looks)
            if pairs is None:
                unit_axis(axes)
            else:
                axes.axhline(0, color="#666666", linewidth=0.8, zorder=1)
                axes.set_ylabel("accuracy, sequential minus forked")
            axes.set_xlabel(words("query_index"))
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
            axes.set_title("Output interference")
            legend_above(figure, axes)
        seen = extremes(frame[frame["query_index"] == frame["query_index"].max()], "accuracy at the last query")
        caption = (
            "Accuracy by queries asked before, each of which the model also read; later queries lie further from their writes, so "
            "this is an upper bound of what the reading cost."
            if pairs is None
            else "What the queries read before cost: accuracy with them minus accuracy of the same query asked of the saved state."
        )
        caption += f" Mean over {runs_said(frame)}; bars: 95% intervals."
        plots.append(Plot(f"query-order-{task}", f"Output interference ({task})", caption, seen, figure, frame))
    return some(plots, "output interference: no run here was scored sequentially")


def _overwrite_oracle(arms: list[str], most: int, gap: int = 4) -> pd.DataFrame:
    """How often the bare additive and delta rules answer the newest of n versions of a random key (64 channels)."""
    rows = []
    for arm in arms:
        rule = _BARE.get(arm.partition(",")[0])
        if rule is None:
            continue
        for n in range(1, most + 1):
            newest = simulate_overwrite(RULES[rule], n, gap, trials=1500)["chosen"].iloc[0]
            rows.append({"arm": arm, "versions": n, "mean": float(newest)})
    return pd.DataFrame(rows, columns=["arm", "versions", "mean"])


def _retention_oracle(study: Study, records: pd.DataFrame, named: list[str]) -> pd.DataFrame:
    """Accuracy of the bare rules by lag in writes, for the median load and the key channels of each arm."""
    rows = []
    for arm in named:
        rule, mine = _BARE.get(arm.partition(",")[0]), study.runs[study.runs["arm"].astype(str) == arm]
        if rule is None or "load" not in records or mine.empty:
            continue
        here = records[records["arm"].astype(str) == arm]
        writes, lags = int(here["load"].median()), here["lag_writes"]
        channels = int(mine["model.head_dim"].iloc[0]) if "model.head_dim" in mine else 64
        if writes < 2:
            continue
        found = simulate(RULES[rule], writes, key_channels=channels, value_channels=channels, trials=400)
        found = found[(found["lag"] >= lags.min()) & (found["lag"] <= lags.max())]
        rows.append(pd.DataFrame({"arm": arm, "lag_writes": found["lag"], "mean": found["accuracy"]}))
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame()


def _beside_load(study: Study, records: pd.DataFrame) -> dict[str, str]:
    """Run -> its arm without the fields of the task that set the load."""
    fields = [c for c in map(str, records.columns) if c.startswith("task.")]
    loads = [
        c for c in fields if records.groupby(c, observed=True)["load"].mean().nunique() == records[c].nunique() > 1
    ]
    return dict(zip(study.runs["run_id"].astype(str), arms(study.runs, apart=loads), strict=True))
