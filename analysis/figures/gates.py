"""Figures of what is inside: half-lives, retained writes, decay over tokens, attention, predictions, interventions."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from scipy import stats

from mnemolab.analysis.figures.draw import extremes, ordered, plain_log, words
from mnemolab.analysis.figures.plot import Plot
from mnemolab.analysis.style import COLUMN, PAGE, canvas, label, legend_above, look, paper

__all__ = ["attention_by_lag", "decay_map", "half_lives", "intervention_effects", "predicted_ratio", "retained_writes"]

_LONGEST = 1e4


def half_lives(table: pd.DataFrame) -> list[Plot]:
    """Half-life ln 2 / mean rate of every channel by head: filled, trained; open, initial. One panel an arm with gates."""
    plots = []
    for task, frame in table[table["rate"] > 0].groupby("task"):
        looks = look(frame["arm"])
        data = frame.assign(half_life=np.minimum(np.log(2) / frame["rate"], _LONGEST))
        spots = sorted(set(zip(data["layer"].astype(int), data["head"].astype(int), strict=True)))
        places = {spot: i for i, spot in enumerate(spots)}
        with paper():
            width = COLUMN if len(looks) == 1 else PAGE
            figure, axes = canvas(width, 2.5, 1, len(looks), squeeze=False, sharey=True)
            for ax, (arm, rows, style) in zip(axes[0], ordered(data, looks), strict=True):
                for spot, group in rows.groupby(["layer", "head"]):
                    place = places[tuple(map(int, spot))]  # type: ignore[arg-type]
                    for when, side in (("initial", -1), ("trained", 1)):
                        values = group[group["when"] == when]["half_life"].to_numpy()
                        if len(values):
                            _half_violin(ax, place, np.log10(values), side, style.color, when == "trained")
                ax.set_title(label(arm))
                ax.set_xticks(list(places.values()), [f"{layer}.{head}" for layer, head in places])
                ax.set_xlabel("layer.head")
                ax.set_yticks(range(-1, 5), ["0.1", "1", "10", "100", "1,000", "≥10,000"])
            axes[0, 0].set_ylabel("half-life of the gate (tokens)")
            axes[0, 0].plot([], [], color="#777777", linewidth=5, alpha=0.35, label="initial")
            axes[0, 0].plot([], [], color="#222222", linewidth=5, label="trained")
            legend_above(figure, axes[0, 0])
        middle = data[data["when"] == "trained"].groupby("arm", observed=True)["half_life"].median()
        said = "; ".join(f"{label(str(a))} {v:.1f}" for a, v in middle.items())
        caption = (
            "Distribution over key channels (over runs, for scalar gates) of ln 2 over the mean rate of decay, by head: left "
            "half, at initialisation; right half, after training; bars: medians."
        )
        alt = f"Half-lives by head. Median trained half-life in tokens: {said}."
        plots.append(Plot(f"half-lives-{task}", f"Half-lives of the gates ({task})", caption, alt, figure, data))
    return plots


def _half_violin(ax, place: int, values: np.ndarray, side: int, color: str, strong: bool) -> None:
    """A kernel density on one side of `place`, points where there are few values, and the median."""
    alpha = 0.75 if strong else 0.3
    if len(values) >= 8 and np.ptp(values) > 1e-3:
        grid = np.linspace(values.min() - 0.15, values.max() + 0.15, 100)
        density = stats.gaussian_kde(values)(grid)
        ax.fill_betweenx(
            grid, place, place + side * 0.4 * density / density.max(), color=color, alpha=alpha, linewidth=0
        )
    else:
        at = place + side * np.linspace(0.08, 0.3, len(values))
        ax.plot(at, values, "o", color=color, markersize=2.6, alpha=alpha, linestyle="")
    middle = float(np.median(values))
    ax.plot([place, place + side * 0.4], [middle, middle], color="black" if strong else "#777777", linewidth=1)


def retained_writes(table: pd.DataFrame) -> list[Plot]:
    """What is left of a write by lag: the gates alone (dotted), the erasures alone (dashed), both (solid)."""
    plots = []
    dashes = {"both": "-", "erasures": (0, (4, 1.5)), "gates": (0, (1.2, 1.2))}
    for task, frame in table.groupby("task"):
        mean = pd.DataFrame(frame.groupby(["arm", "what", "lag"], observed=True)["kept"].mean()).reset_index()
        looks = look(mean["arm"])
        with paper():
            figure, axes = canvas(COLUMN if len(looks) == 1 else PAGE, 2.4, 1, len(looks), squeeze=False, sharey=True)
            for ax, (arm, rows, style) in zip(axes[0], ordered(mean, looks), strict=True):
                ax.axhline(0.5, color="#999999", linewidth=0.6, zorder=1)
                for what, dash in dashes.items():
                    line = rows[rows["what"] == what]
                    ax.plot(line["lag"], line["kept"], color=style.color, linestyle=dash, clip_on=False)
                ax.set_ylim(-0.02, 1.02)
                ax.set_title(label(arm))
                ax.set_xlabel("tokens after the write")
            axes[0, 0].set_ylabel("share of the write left")
            for what, dash in dashes.items():
                axes[0, 0].plot([], [], color="#444444", linestyle=dash, label=what)
            legend_above(figure, axes[0, 0])
        last = mean[(mean["what"] == "both") & (mean["lag"] == mean["lag"].max())].rename(columns={"kept": "mean"})
        caption = (
            "What a read with the written key still finds, as a share of what it finds at once: by the gates alone, the "
            "erasures alone, and both as the recurrence applies them. Mean over heads, writes, sequences and runs."
        )
        alt = f"Share of a write left against lag. {extremes(last, 'left at the longest lag')}"
        plots.append(Plot(f"retained-{task}", f"What is left of a write ({task})", caption, alt, figure, mean))
    return plots


def decay_map(log_decay: NDArray, tokens: Sequence[str], arm: str, task: str, layer: int) -> list[Plot]:
    """Decay of every channel at every token of one sequence, log_decay (T,H,K); channels sorted by mean rate, a panel a head."""
    g = np.asarray(log_decay, dtype=float)
    T, H, _ = g.shape
    shown = min(H, 2)
    frames, images = [], []
    with paper():
        figure, axes = canvas(PAGE, 0.8 + 1.35 * shown, shown, 1, squeeze=False, sharex=True)
        for head, ax in enumerate(axes[:, 0]):
            order = np.argsort(-g[:, head].mean(0))
            image = np.exp(g[:, head, order]).T
            images.append(ax.imshow(image, aspect="auto", cmap="cividis", vmin=0, vmax=1, interpolation="nearest"))
            ax.set_ylabel(f"head {head}: channel")
            ax.grid(visible=False)
            token, channel = np.meshgrid(np.arange(T), order, indexing="ij")
            flat = {"head": head, "token": token.ravel(), "channel": channel.ravel(), "decay": image.T.ravel()}
            frames.append(pd.DataFrame(flat))
        last = axes[-1, 0]
        if T <= 80:
            last.set_xticks(range(T), list(tokens), rotation=90, fontsize=4.5)
        last.set_xlabel("token")
        figure.colorbar(images[0], ax=axes, label="decay per token", fraction=0.025, pad=0.01)
    caption = (
        f"exp(log-decay) of each key channel at each token of one test sequence ({label(arm)}, layer {layer}); the slowest "
        "channels are at the top."
    )
    alt = f"Heat maps of decay, {shown} heads; mean decay {np.exp(g).mean():.2f}."
    return [Plot(f"decay-map-{task}", f"Decay by channel and token ({task})", caption, alt, figure, pd.concat(frames))]


def attention_by_lag(table: pd.DataFrame) -> list[Plot]:
    """Mean share of a read by lag, one line an arm."""
    plots = []
    for task, frame in table.groupby("task"):
        mean = pd.DataFrame(frame.groupby(["arm", "lag"], observed=True)["per_token"].mean()).reset_index()
        looks = look(mean["arm"])
        with paper():
            figure, axes = canvas(COLUMN, 2.6)
            for arm, rows, style in ordered(mean, looks):
                axes.plot(rows["lag"] + 1, rows["per_token"], **style.line(label=label(arm)))
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            plain_log(axes.xaxis, 2)
            plain_log(axes.yaxis)
            axes.set_xlabel("lag + 1 (tokens)")
            axes.set_ylabel("share of the read, per token")
            axes.set_title("Where reads look")
            legend_above(figure, axes)
        near = mean[mean["lag"] == mean["lag"].min()].rename(columns={"per_token": "mean"})
        caption = (
            "Attention weight (softmax) or absolute weight of the recurrence, as a share of its sum, by lag, at the first "
            "queries. Mean over layers, heads and runs."
        )
        alt = f"Share of the read against lag. {extremes(near, 'share at lag 0')}"
        plots.append(Plot(f"attention-{task}", f"Where reads look ({task})", caption, alt, figure, mean))
    return plots


def predicted_ratio(table: pd.DataFrame) -> list[Plot]:
    """Log odds of the stale value in the logits against the stale/new weight that the traces predict."""
    plots = []
    for task, frame in table.groupby("task"):
        frame = frame[np.isfinite(frame["predicted"])].assign(predicted=lambda f: f["predicted"].clip(1e-3, 1e3))
        if frame.empty:
            continue
        looks = look(frame["arm"])
        with paper():
            figure, axes = canvas(COLUMN, 2.7)
            axes.axhline(0, color="#999999", linewidth=0.6, zorder=1)
            axes.axvline(1, color="#999999", linewidth=0.6, zorder=1)
            for arm, rows, style in ordered(frame, looks):
                axes.plot(
                    rows["predicted"], rows["log_odds"], marker=style.marker or "o", linestyle="", color=style.color,
                    markersize=2.2, alpha=0.4, markeredgewidth=0,
                )  # fmt: skip
                axes.plot(
                    [], [], marker=style.marker or "o", linestyle="", color=style.color, markersize=3, label=label(arm)
                )
            axes.set_xscale("log")
            plain_log(axes.xaxis)
            axes.set_xlabel("stale / new weight, from the traces")
            axes.set_ylabel("stale minus right logit")
            axes.set_title("Predicted against measured")
            legend_above(figure, axes)
        ranks = [(arm, float(np.corrcoef(stats.rankdata(r["predicted"]), stats.rankdata(r["log_odds"]))[0, 1])) for arm, r, _ in ordered(frame, looks)
                 if len(r) > 3 and r["predicted"].nunique() > 1]  # fmt: skip
        said = "; ".join(f"{label(a)} {r:.2f}" for a, r in ranks) or "too few queries"
        middle = frame.groupby("arm", observed=True)["predicted"].median().rename("mean").reset_index()
        caption = (
            "Each point is a first query of a rebound key. Across: weight of the stale over the new value, exact from the traced "
            f"keys and gates. Up: their difference in the logits. Rank correlation: {said}."
        )
        alt = f"Scatter of measured against predicted. {extremes(middle, 'median predicted ratio')}"
        name = f"predicted-ratio-{task}"
        plots.append(Plot(name, f"Stale over new, predicted and measured ({task})", caption, alt, figure, frame))
    return plots


def intervention_effects(table: pd.DataFrame) -> list[Plot]:
    """Paired change in accuracy by intervention, with intervals."""
    plots = []
    for task, frame in table.groupby("task"):
        looks, names = look(frame["arm"]), list(dict.fromkeys(frame["intervention"]))
        with paper():
            figure, axes = canvas(COLUMN * 1.25, 0.9 + 0.13 * len(names) * (1 + len(looks)) / 1.6)
            axes.axvline(0, color="#666666", linewidth=0.8, zorder=1)
            for n, (arm, rows, style) in enumerate(ordered(frame, looks)):
                at = np.array([names.index(i) for i in rows["intervention"]]) + 0.7 * ((n + 0.5) / len(looks) - 0.5)
                error = np.stack([rows["change"] - rows["low"], rows["high"] - rows["change"]])
                axes.errorbar(
                    rows["change"], at, xerr=np.maximum(error, 0), color=style.color, marker=style.marker or "o", linestyle="",
                    elinewidth=0.8, capsize=1.4, markersize=3, label=label(arm),
                )  # fmt: skip
            axes.set_yticks(range(len(names)), [words(n.replace("-", " ")) for n in names])
            axes.invert_yaxis()
            low, high = axes.get_xlim()
            axes.set_xlim(min(low, -0.02), max(high, 0.02))  # a change of two points is the least that matters
            axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
            axes.set_xlabel("change in accuracy")
            legend_above(figure, axes)
        worst = frame.sort_values("change").iloc[0]
        alt = f"Largest loss: {label(str(worst['arm']))}, {worst['intervention']}, {worst['change']:+.2f}."
        caption = "Change in accuracy of the same test queries when one thing in the trained model is changed; bars: 95% intervals."
        plots.append(Plot(f"interventions-{task}", f"Interventions ({task})", caption, alt, figure, frame))
    return plots
