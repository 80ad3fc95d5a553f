"""Every contrast under the first seeds and under the other ones: how far it lies beyond its margin on each side."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import NullLocator
from matplotlib.transforms import Bbox
from scipy import stats

from mnemolab.analysis.figures.plot import NotApplicable, Plot
from mnemolab.analysis.style import PAGE, canvas, legend_above, paper

__all__ = ["alt", "caption", "replication"]

TITLE = "Every contrast under the first seeds and under the others"
# colour, marker and size of a contrast, by whether its outcome is the same on both sides, and of a placebo
_LOOKS = {
    "same outcome": ("#0072b2", "o", 4.6),
    "other outcome": ("#d55e00", "D", 4.6),
    "placebo": ("#8c8c8c", "^", 4.2),
}
# standard errors: linear up to the first, logarithmic to the last, where all that lies beyond is drawn
_LINEAR, _END = 4.0, 1000.0
# points: a name nearer than this needs no line to its point
_APART = 10
_STEPS = np.linspace(0.1, 1, 20)[:, None]
_SMALL: dict[str, Any] = {"fontsize": 6.5, "color": "#444444"}
_YES_OR_NO = ("placebo", "inside", "inside_alone", "decides")
_TICKS = (-1000, -100, -10, -3, 0, 3, 10, 100, 1000)


def replication(agreed: pd.DataFrame) -> Plot:
    """The rows of `claims.replication.agreement` as points: x the first seeds' and y the other seeds' distance from the margin, in
    standard errors. Claims with another verdict are named at the contrasts whose outcome changed (at the one that decides, where
    none did). Raises NotApplicable where nothing was measured on both sides.
    """
    shown = agreed[agreed["left_out"] == ""].reset_index(drop=True)
    if shown.empty:
        raise NotApplicable("replication: no contrast was measured under both seeds")
    same = shown["first_outcome"] == shown["again_outcome"]
    kind = np.where(shown["placebo"], "placebo", np.where(same, "same outcome", "other outcome"))
    at = shown[["first_distance", "again_distance"]].clip(-_END, _END).to_numpy(float)
    outside, own = ~shown["inside"].to_numpy(bool), ~shown["placebo"].to_numpy(bool)
    _, limit = _limit(shown)
    with paper():
        figure, axes = canvas(PAGE * 0.74, PAGE * 0.7 - 0.1)
        _ground(axes, limit)
        for name, (colour, marker, size) in _LOOKS.items():
            points = at[kind == name]
            axes.plot(
                *points.T, linestyle="", marker=marker, markersize=size, color=colour, label=f"{name} ({len(points)})",
                markerfacecolor="none" if name == "placebo" else colour, markeredgewidth=0.8 if name == "placebo" else 0.5,
                markeredgecolor=colour if name == "placebo" else "white", clip_on=False, zorder=3 if name == "placebo" else 4,
            )  # fmt: skip
        axes.plot(
            *at[outside].T, linestyle="", marker="o", markersize=9, markerfacecolor="none", markeredgecolor="#222222",
            markeredgewidth=0.8, clip_on=False, zorder=5, label=f"outside the prediction interval ({outside.sum()})",
        )  # fmt: skip
        # markers lie within the limits, and a kind without points would take room at the origin
        for line in axes.lines:
            line.set_in_layout(False)
        legend_above(figure, axes, 2, handletextpad=0.4)
        _count(axes, at)
        changed = _changed(shown, same)
        circled = {int(row): str(shown["claim"][row]) for row in np.flatnonzero(outside & own) if row not in changed}
        _name(figure, axes, at, {**circled, **changed}, {*circled}, limit)
    words = {name: shown[name].map({True: "yes", False: "no"}) for name in _YES_OR_NO}
    return Plot(
        "replication", TITLE, caption(shown), alt(shown), figure, shown.drop(columns="left_out").assign(**words)
    )


def caption(agreed: pd.DataFrame) -> str:
    """How to read the figure of `agreed`."""
    seeds, limit = _limit(agreed)
    return (
        "Distance of the effect from its margin in standard errors, positive where it is reached: linear to 4, then logarithmic; "
        "what lies beyond 1,000, or has no spread, is drawn at 1,000. Solid lines: the margin; dashed: below it the 95% interval "
        f"({limit:.1f} standard errors at {seeds} seeds) lies wholly short of the margin; dotted: the same on both sides. Named in "
        "black: claims with another verdict under the other seeds, at the contrasts whose outcome changed. Circled, and named in "
        "grey where no placebo: the second effect lies outside the 95% prediction interval of the first."
    )


def alt(agreed: pd.DataFrame) -> str:
    """What is seen in the figure of `agreed`."""
    shown = agreed[agreed["left_out"] == ""]
    own, outside = ~shown["placebo"], ~shown["inside"].astype(bool)
    other = shown["first_outcome"] != shown["again_outcome"]
    first, again = shown["first_distance"], shown["again_distance"]
    alike, beyond = np.sign(first) == np.sign(again), (first.abs() >= _END) | (again.abs() >= _END)
    verdicts = dict.fromkeys(shown.loc[shown["first_verdict"] != shown["again_verdict"], "claim"])
    return (
        f"Scatter of {own.sum()} contrasts and {(~own).sum()} placebos, {alike.sum()} of them on the same side of the margin both "
        f"times; {(own & other).sum()} contrasts with another outcome; {(own & outside).sum()} contrasts and "
        f"{(~own & outside).sum()} placebos outside the prediction interval; {beyond.sum()} at 1,000 standard errors or beyond. "
        f"Another verdict: {', '.join(verdicts) or 'none'}."
    )


def _limit(agreed: pd.DataFrame) -> tuple[int, float]:
    """(seeds, half of a 95% interval over them in standard errors) of most contrasts."""
    seeds = int(agreed.loc[agreed["left_out"] == "", "first_n"].mode().iloc[0])
    return seeds, float(stats.t.isf(0.025, seeds - 1))


def _ground(axes: Axes, limit: float) -> None:
    """Scales, the diagonal and the two thresholds of each side."""
    labels = [f"{abs(t):,}" for t in _TICKS]
    labels = [("−" if t < 0 else "") + said for t, said in zip(_TICKS, labels, strict=True)]
    labels[0], labels[-1] = f"≤ {labels[0]}", f"≥ {labels[-1]}"
    for axis, scale, limits in (
        (axes.xaxis, axes.set_xscale, axes.set_xlim),
        (axes.yaxis, axes.set_yscale, axes.set_ylim),
    ):
        scale("symlog", linthresh=_LINEAR, linscale=1.3)
        limits(-_END, _END)
        axis.set_ticks(_TICKS, labels)
        axis.set_minor_locator(NullLocator())
    axes.set_box_aspect(1)
    axes.plot([-_END, _END], [-_END, _END], color="#999999", linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1)
    for at, words, dash, side in ((0, "margin", "-", "left"), (-limit, "95% limit", (0, (4, 2)), "right")):
        for line in (axes.axhline, axes.axvline):
            line(at, color="#444444", linewidth=0.8, linestyle=dash, zorder=1.5)
        across = {"xycoords": ("data", "axes fraction"), "xytext": (0, 3), "ha": side}
        along = {"xycoords": ("axes fraction", "data"), "xytext": (6, 0), "va": "center"}
        for place, how in (((at, 1), across), ((1, at), along)):
            axes.annotate(words, place, textcoords="offset points", **how, **_SMALL)
    axes.set_xlabel("first seeds: beyond the margin, in standard errors")
    axes.set_ylabel("other seeds: beyond the margin, in standard errors")


def _changed(shown: pd.DataFrame, same: pd.Series) -> dict[int, str]:
    """Row -> name, for claims with another verdict."""
    found: dict[int, str] = {}
    other = shown[(shown["first_verdict"] != shown["again_verdict"]) & ~shown["placebo"]]
    for claim, rows in other.groupby("claim", sort=False):
        changed = rows.index[~same[rows.index]]
        chosen = changed if len(changed) else rows.index[rows["decides"]]
        found |= {int(row): str(claim) for row in chosen}
    return found


def _count(axes: Axes, at: np.ndarray) -> None:
    """Say how many points lie on one another in a corner."""
    places, counts = np.unique(at[(np.abs(at) >= _END).all(axis=1)], axis=0, return_counts=True)
    for place, count in zip(places[counts > 1], counts[counts > 1], strict=True):
        axes.annotate(
            f"{count} here",
            place,
            xytext=(6, 0 if place[0] > 0 else 4),
            textcoords="offset points",
            va="center",
            **_SMALL,
        )


def _name(
    figure: Figure, axes: Axes, at: np.ndarray, names: Mapping[int, str], soft: Collection[int], limit: float
) -> None:
    """Write names beside their points, each joined to its own by a line if it lies apart (`soft` ones in grey), where they cover
    no other name and as few points and lines as may be."""
    figure.draw_without_rendering()
    scale = figure.dpi / 72
    points, inside = axes.transData.transform(at), axes.get_window_extent()
    lines = axes.transData.transform([(0, 0), (-limit, -limit)])
    angles = np.deg2rad(np.arange(0, 360, 10))
    rays = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    reaches = np.arange(8, 125, 4)[:, None, None] * scale
    taken: list[Bbox] = []
    ways = np.empty((0, 2))  # points of the lines from names to their points
    for row, name in sorted(names.items(), key=lambda pair: -at[pair[0]].sum()):
        grey = row in soft
        text = axes.annotate(
            name, at[row], xytext=(0, 0), textcoords="offset points", ha="center", va="center", fontsize=7, zorder=6,
            color="#6e6e6e" if grey else "black",
            arrowprops={"arrowstyle": "-", "color": "#6e6e6e", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 5 if grey else 3.5},
        )  # fmt: skip
        text.set_in_layout(False)  # the axes are to stay where they are
        size = Text.get_window_extent(text)  # of the words, without the line
        half = np.array([size.width, size.height]) / 2
        offsets = (rays * (reaches + half)).reshape(-1, 2)  # of all places, nearer ones first
        low, high = points[row] + offsets - half - 2 * scale, points[row] + offsets + half + 2 * scale
        out = (low < inside.min).any(axis=1) | (high > inside.max).any(axis=1)
        # the thresholds, and the diagonal, which starts in the lower left corner
        crossed = ((low[:, None] < lines) & (lines < high[:, None])).sum(axis=(1, 2)) + (
            (low - inside.min)[:, ::-1] < (high - inside.min)
        ).all(axis=1)
        on = _held(low, high, points) + _between(points, points[row], offsets, 5 * scale)
        away = np.hypot(*(points[row] - np.clip(points[row], low, high)).T) / scale
        apart = away >= _APART
        steps = points[row] + offsets[:, None] * _STEPS
        through, over = _held(low, high, ways), np.zeros(len(offsets))
        for other in taken:
            through += np.where(apart, ((other.min < steps) & (steps < other.max)).all(axis=2).sum(axis=1), 0)
            over += ((low <= other.max) & (other.min <= high)).all(axis=1)
        best = int((1e4 * (out + over) + 300 * through + 60 * on + 50 * crossed + away).argmin())
        text.set_position(tuple(offsets[best] / scale))
        if text.arrow_patch is not None:
            text.arrow_patch.set_visible(bool(apart[best]))
        taken.append(Bbox([low[best], high[best]]))
        if apart[best]:
            ways = np.concatenate([ways, steps[best]])


def _held(low: np.ndarray, high: np.ndarray, points: np.ndarray) -> np.ndarray:
    """How many of the points lie within each box, of which `low` (P,2) and `high` (P,2) are the corners."""
    return ((low[:, None] < points) & (points < high[:, None])).all(axis=2).sum(axis=1)


def _between(points: np.ndarray, start: np.ndarray, ways: np.ndarray, near: float) -> np.ndarray:
    """How many of the points, but for that at the start, lie within `near` of each of the `ways` (P,2) from the start."""
    there = points - start
    share = np.clip(ways @ there.T / (ways**2).sum(axis=1, keepdims=True), 0, 1)
    away = np.linalg.norm(there - share[:, :, None] * ways[:, None], axis=2)
    return ((away < near) & (np.linalg.norm(there, axis=1) > near)).sum(axis=1)
