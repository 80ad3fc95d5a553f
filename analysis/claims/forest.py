"""The forest of a claim: its contrasts with intervals against their margins, from an object of claims.json alone."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mnemolab.analysis.figures.plot import NotApplicable, Plot
from mnemolab.analysis.style import PAGE, canvas, paper

__all__ = ["forest"]

_COLOURS = {"supported": "#0072b2", "refuted": "#d55e00", "inconclusive": "#444444"}
_MARKS = {"supported": "o", "refuted": "X", "inconclusive": "D"}
_GREY, _MARGIN = "#9a9a9a", "#cc79a7"
_Pair = tuple[Mapping[str, Any], Mapping[str, Any] | None, str]  # a contrast, the same under other seeds, its kind
_LEAST = 1e-12
_KINDS = {"contrasts": "contrast", "placebo_contrasts": "placebo", "twins": "A/A"}
_APART = 8  # effects that differ by more than this factor are not read off one axis
_AGAIN = 0.3  # how far below its contrast, in rows, other seeds stand


def forest(claim: Mapping[str, Any], again: Mapping[str, Any] | None = None) -> Plot:
    """Effects of `claim`, an object of claims.json, with 95% intervals against their margins; placebos and A/A pairs below, in
    grey. With `again`, the same claim under other seeds, each contrast has its second effect right below it, thinner. Effects of
    very different size have a panel each.

    Raises NotApplicable where no contrast was measured.
    """
    rows = [(c, kind) for part, kind in _KINDS.items() for c in claim[part] if c["n"]]
    if not any(kind == "contrast" for _, kind in rows):
        raise NotApplicable(f"{claim['id']}: no contrast was measured")
    others = {(c["name"], kind): c for part, kind in _KINDS.items() for c in (again or {}).get(part, ()) if c["n"]}
    pairs = [(c, others.get((c["name"], kind)), kind) for c, kind in rows]
    seconds = any(second is not None for _, second, _ in pairs)
    panels, margins = _panels(pairs), {c["margin"] for c, kind in rows if kind == "contrast"}
    names = [_said(c, kind) for c, kind in rows]
    step = 0.31 if any("\n" in name for name in names) or seconds else 0.23
    with paper():
        height = 0.2 + 0.45 * len(panels) + step * len(rows)
        ratios = [len(panel) for panel in panels]
        figure, grid = canvas(PAGE * 0.9, height, len(panels), squeeze=False, height_ratios=ratios)
        for axes, panel in zip(grid[:, 0], panels, strict=True):
            _panel(axes, panel)
            # a contrast with a margin of its own may have a unit of its own too, which only its name tells
            own = len(margins) > 1 and any(c["margin"] != claim["margin"] for c, _, kind in panel if kind == "contrast")
            axes.xaxis.set_major_locator(MaxNLocator(6))  # numbers such as -0.015 beside one another
            axes.set_xlabel("effect" if own else f"effect ({claim['unit']})")
        if seconds:
            lines = [
                Line2D([], [], color="#444444", linewidth=1.4 * f, marker="o", markersize=4.5 * f) for f in (1.0, 0.6)
            ]
            figure.legend(lines, ["first seeds", "other seeds"], loc="outside upper right", ncols=2)
    caption = (
        f"Mean over seeds with 95% intervals (unit: {claim['unit']}, unless a contrast names another); filled: supported, cross: refuted, open: inconclusive. "
        "Pink ticks: the margin. "
        "Grey: placebos and A/A pairs, which must not be supported."
    )
    if any(c.get("values") for c, _ in rows):
        caption += " Small dots: single seeds."
    if len(panels) > 1:
        caption += " An axis each for effects of very different size."
    alt = f"{claim['id']}: {_listed(claim)}"
    if seconds:
        caption += " Below each and thinner: the same under other seeds."
        alt += f". Under other seeds: {_listed(again or {})}"
    data = pd.DataFrame([_row(c, kind, seeds) for pair in pairs for c, kind, seeds in _both(*pair)])
    title = f"{claim['id']}: {claim['verdict']}"
    if again is not None and again["verdict"] != claim["verdict"]:
        title += f" (other seeds: {again['verdict']})"
    return Plot(f"claim-{claim['id']}", title, caption, alt, figure, data)


def _panels(pairs: Sequence[_Pair]) -> list[list[_Pair]]:
    """`pairs` in one panel, or in two where one axis would squash some contrasts onto 0; the first contrast is in the first.

    Contrasts are parted at the widest gap between their extents; placebos and A/A pairs join those they are nearest to, and part
    from contrasts that are all of one size only if far larger.
    """
    own = sorted(_extent(pair) for pair in pairs if pair[2] == "contrast")
    if own[-1] > _APART * own[0]:
        small = max(pairwise(own), key=lambda ends: ends[1] / ends[0])[0]
        bound, middle = small, math.sqrt(small * own[-1])
    else:
        bound, middle = own[-1], own[-1] * _APART
    large = [_extent(pair) > (bound if pair[2] == "contrast" else middle) for pair in pairs]
    parts = [[pair for pair, far in zip(pairs, large, strict=True) if far is side] for side in (large[0], not large[0])]
    return [part for part in parts if part]


def _extent(pair: _Pair) -> float:
    """How far from 0 a row reaches, its margin and its other seeds included."""
    first, second, _ = pair
    values = [c[name] for c in (first, second) if c is not None for name in ("effect", "low", "high", "margin")]
    values += [value for c in (first, second) if c is not None for value in c.get("values", {}).values()]
    return max(_LEAST, *(abs(value) for value in values if value is not None))


def _panel(axes: Axes, pairs: Sequence[_Pair]) -> None:
    axes.axvline(0, color="#999999", linewidth=0.7, zorder=1)
    for at, (c, second, kind) in enumerate(pairs):
        _draw(axes, at, c, kind, 1.0)
        if second is not None:
            _draw(axes, at + _AGAIN, second, kind, 0.6)
        for bound in _bounds(c):
            axes.plot([bound, bound], [at - 0.32, at + 0.32], color=_MARGIN, linewidth=1.4, zorder=2)
    axes.set_yticks(range(len(pairs)), [_said(c, kind) for c, _, kind in pairs])
    axes.set_ylim(len(pairs) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def _draw(axes: Any, at: float, c: Mapping[str, Any], kind: str, size: float) -> None:
    own = kind == "contrast"
    colour = _COLOURS[c["outcome"]] if own else _GREY
    low, high = (c["effect"] if c[name] is None else c[name] for name in ("low", "high"))  # one seed has no interval
    if seeds := list(c.get("values", {}).values()):
        axes.plot(
            seeds, [at] * len(seeds), "o", color=colour, markersize=2.6 * size, markeredgewidth=0, alpha=0.45, zorder=2
        )  # fmt: skip
    axes.plot([low, high], [at, at], color=colour, linewidth=1.4 * size, zorder=3)
    face = colour if c["outcome"] == "supported" else "white"
    axes.plot(
        c["effect"], at, _MARKS[c["outcome"]], color=colour, markerfacecolor=face, markersize=4.5 * size**0.5, zorder=4
    )  # fmt: skip


def _both(
    c: Mapping[str, Any], second: Mapping[str, Any] | None, kind: str
) -> list[tuple[Mapping[str, Any], str, str]]:
    return [(c, kind, "first"), *([] if second is None else [(second, kind, "other")])]


def _row(c: Mapping[str, Any], kind: str, seeds: str) -> dict[str, Any]:
    shown = {name: c[name] for name in ("test", "effect", "low", "high", "margin")}
    return {
        "what": kind,
        "contrast": c["name"],
        "which": seeds,
        **shown,
        "p": c["adjusted"],
        "seeds": c["n"],
        "outcome": c["outcome"],
    }


def _listed(claim: Mapping[str, Any]) -> str:
    number = lambda v: "?" if v is None else f"{v:.3f}"
    return "; ".join(
        f"{c['name']}, {number(c['effect'])} ({number(c['low'])} to {number(c['high'])}), {c['outcome']}"
        for c in claim["contrasts"]
        if c["n"]
    )


def _bounds(c: Mapping[str, Any]) -> tuple[float, ...]:
    return {"no worse": (-c["margin"],), "equivalent": (-c["margin"], c["margin"])}.get(c["test"], (c["margin"],))


def _said(c: Mapping[str, Any], kind: str) -> str:
    return "\n".join(wrap(c["name"] if kind == "contrast" else f"{kind}: {c['name']}", 58))
