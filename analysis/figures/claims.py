"""The claims at a glance: one row a claim, its effect with interval and the margin that it has to reach."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mnemolab.analysis.figures.plot import Plot
from mnemolab.analysis.style import PAGE, canvas, paper
from mnemolab.errors import BadRequest

__all__ = ["VERDICTS", "claim_summary"]

# Colour and marker of each verdict: told apart in grey and by the colour-blind.
VERDICTS = {
    "supported": ("#009e73", "o"),
    "refuted": ("#d55e00", "X"),
    "inconclusive": ("#4d4d4d", "D"),
    "undecidable here": ("#949494", "s"),
}
_NEEDED = ("id", "statement", "verdict", "effect", "low", "high", "margin", "unit")


def claim_summary(claims: Sequence[Mapping[str, Any]]) -> Plot:
    """A forest plot of objects of claims.json, of which it reads id, statement, verdict, effect, low, high, margin and unit.

    Effects of different units are on one axis in multiples of their margin: 1 is the margin, 0 no effect. A claim without a
    margin or an effect has its verdict alone; an interval that leaves the axis ends in an arrow. Raises BadRequest for an empty
    list, a missing entry or an unknown verdict.
    """
    if not claims:
        raise BadRequest("claim summary: no claims")
    for claim in claims:
        missing = [name for name in _NEEDED if name not in claim]
        if missing:
            raise BadRequest(f"claim summary: {claim.get('id', 'a claim')} lacks {', '.join(missing)}")
        if claim["verdict"] not in VERDICTS:
            raise BadRequest(
                f"claim summary: verdict={claim['verdict']!r} of {claim['id']}; known: {', '.join(VERDICTS)}"
            )
    order = list(VERDICTS)
    table = pd.DataFrame([{name: claim[name] for name in _NEEDED} for claim in claims])
    table = table.sort_values("verdict", key=lambda v: v.map(order.index), kind="stable").reset_index(drop=True)
    for name in ("effect", "low", "high", "margin"):
        table[name] = pd.to_numeric(table[name], errors="coerce")
    scale = table["margin"].abs().where(table["margin"].abs() > 0)
    for name in ("effect", "low", "high"):
        table[f"{name}_margins"] = table[name] / scale
    ends = table[["low_margins", "high_margins", "effect_margins"]].abs().to_numpy()
    ends = ends[np.isfinite(ends)]
    reach = float(np.clip(np.ceil(np.quantile(ends, 0.9)), 2, 8)) if len(ends) else 2.0
    with paper():
        figure, axes = canvas(PAGE, 0.75 + 0.19 * len(table))
        axes.axvline(0, color="#666666", linewidth=0.8, zorder=1)
        axes.axvline(1, color="#666666", linewidth=0.8, linestyle=(0, (2, 2)), zorder=1, label="margin")
        seen = set()
        for row, claim in table.iterrows():
            verdict = str(claim["verdict"])
            color, marker = VERDICTS[verdict]
            name = verdict if verdict not in seen else None
            seen.add(verdict)
            if np.isnan(claim["effect_margins"]):
                axes.plot(
                    [], [], color=color, marker=marker, linestyle="", markersize=4.5, markeredgewidth=0, label=name
                )
                axes.annotate(
                    verdict,
                    (0, row),
                    xytext=(4, 0),
                    textcoords="offset points",
                    fontsize=6.5,
                    color=color,
                    va="center",
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
                )
                continue
            low, middle, high = (np.clip(claim[f"{n}_margins"], -reach, reach) for n in ("low", "effect", "high"))
            low, high = (middle if np.isnan(end) else end for end in (low, high))
            axes.plot([low, high], [row, row], color=color, linewidth=1.2, solid_capstyle="butt", zorder=2)
            for end, side in ((claim["low_margins"], "<"), (claim["high_margins"], ">")):
                if abs(end) > reach:
                    axes.plot(
                        np.sign(end) * reach, row, marker=side, color=color, markersize=3.5, clip_on=False, zorder=3
                    )
            beyond = abs(claim["effect_margins"]) > reach  # the arrow stands for it
            axes.plot(
                [] if beyond else middle, [] if beyond else row, color=color, marker=marker, markersize=4.5, linestyle="", markeredgecolor="white",
                markeredgewidth=0.4, label=name, zorder=4,
            )  # fmt: skip
            said = f"{claim['effect']:.3g}" + (f" {claim['unit']}" if claim["unit"] else "")
            axes.annotate(
                said, (1, row), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
                fontsize=6, va="center", color="#333333",
            )  # fmt: skip
        axes.set_yticks(range(len(table)), list(table["id"]))
        axes.set_ylim(len(table) - 0.4, -0.6)
        lowest = float(np.nanmin([*table["low_margins"], *table["effect_margins"], -1.0]))
        axes.set_xlim(max(-reach, np.floor(lowest)) * 1.02, reach * 1.02)
        axes.set_xlabel("effect, in multiples of the margin that matters")
        axes.grid(visible=False, axis="y")
        figure.legend(loc="outside upper left", ncols=5, handletextpad=0.5)
    counts = table["verdict"].value_counts().reindex(order).dropna().astype(int)
    alt = "; ".join(f"{n} {verdict}" for verdict, n in counts.items())
    return Plot(
        "claims",
        "Claims and their verdicts",
        "Effect of each claim with its 95% interval, in multiples of its margin (dashed); right: the effect in its own unit. "
        "Arrows: the interval goes on.",
        f"Forest plot of {len(table)} claims: {alt}.",
        figure,
        table,
    )
