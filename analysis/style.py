"""One look for every figure: sizes, fonts, and a fixed colour, marker and dash for each stage.

Colours are Okabe and Ito's (2008) where they go far enough; marker and dash repeat the distinction for print and for the
colour-blind. Additive rules are warm, delta rules cool, hybrids purple, softmax black, recurrent networks grey.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

__all__ = ["COLUMN", "LABELS", "PAGE", "Look", "canvas", "label", "legend_above", "look", "paper"]

# Inches: one column and a full page of a two-column paper.
COLUMN, PAGE = 3.25, 6.75
# a legend of more rows than this takes the width of a page; the height of a row in inches (7 points, half a line between)
MANY, LEGEND_ROW = 8, 0.146

_RC: dict[Any, Any] = {
    "font.size": 8,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "legend.columnspacing": 1.2,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.6,
    "figure.dpi": 100,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.hashsalt": "mnemolab",
}


@dataclass(frozen=True)
class Look:
    """How one stage is drawn."""

    color: str
    marker: str
    dash: Any

    def line(self, **more: Any) -> dict[str, Any]:
        """Keyword arguments for `Axes.plot`."""
        # a marker of strokes alone has no face: a white edge would be all of it
        drawn = {"markeredgecolor": self.color, "markeredgewidth": 1.0}
        face = drawn if self.marker in _STROKES else {"markeredgecolor": "white", "markeredgewidth": 0.4}
        return {"color": self.color, "marker": self.marker, "linestyle": self.dash, **face, **more}


_STROKES = ("x", "+", "1", "|")
_SOLID, _DASH, _DOT, _MIX = "-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.2, 1.2, 1.2))
_LOOKS = {
    "gpt2": Look("#000000", "s", _SOLID),
    "rnn": Look("#a6a6a6", "x", _DOT),
    "lstm": Look("#808080", "+", _DASH),
    "gru": Look("#5c5c5c", "1", _MIX),
    "linear_attention": Look("#d55e00", "o", _SOLID),
    "mamba2": Look("#e69f00", "^", _DASH),
    "gla": Look("#b38600", "v", _MIX),
    "deltanet": Look("#0072b2", "D", _SOLID),
    "gated_deltanet": Look("#56b4e9", "P", _DASH),
    "kda": Look("#009e73", "X", _MIX),
    "gated_deltanet2": Look("#00573f", "p", _DOT),
    "kimi_linear": Look("#cc79a7", "*", _DASH),
    "kimi_k3": Look("#7b3f98", "h", _SOLID),
    "oracle": Look("#7f7f7f", "", _DOT),
}
_OTHERS = [
    Look(color, marker, dash)
    for color, marker, dash in zip(
        ["#8c564b", "#17becf", "#bcbd22", "#e377c2", "#1f4e79", "#9467bd"],
        "<>8dH|",
        [_SOLID, _DASH, _MIX] * 2,
        strict=True,
    )
]
LABELS = {
    "gpt2": "GPT-2",
    "rnn": "RNN",
    "lstm": "LSTM",
    "gru": "GRU",
    "linear_attention": "Linear attention",
    "mamba2": "Mamba-2",
    "gla": "GLA",
    "deltanet": "DeltaNet",
    "gated_deltanet": "Gated DeltaNet",
    "kda": "KDA",
    "gated_deltanet2": "Gated DeltaNet-2",
    "kimi_linear": "Kimi Linear",
    "kimi_k3": "Kimi K3",
}
_ORDER = {
    name: i for i, name in enumerate(["rnn", "lstm", "gru", *[n for n in _LOOKS if n not in ("rnn", "lstm", "gru")]])
}
_VARIANT_DASHES = (_SOLID, _DASH, _DOT, _MIX)


def label(arm: str) -> str:
    """The printed name of a stage or arm: `kda, depth 2` -> `KDA, depth 2`."""
    stage, comma, rest = arm.partition(",")
    return LABELS.get(stage, stage.replace("_", " ")) + comma + rest


def look(arms: Iterable[str]) -> dict[str, Look]:
    """Arm -> Look, in the order of the lineage. A stage keeps its colour and marker; its variants differ by dash."""
    names = sorted(dict.fromkeys(map(str, arms)), key=lambda a: (_ORDER.get(_stage(a), 99), a))
    strangers = [s for s in dict.fromkeys(map(_stage, names)) if s not in _LOOKS]
    looks, seen = {}, {}
    for name in names:
        stage = _stage(name)
        base = _LOOKS.get(stage) or _OTHERS[strangers.index(stage) % len(_OTHERS)]
        n = seen[stage] = seen.get(stage, -1) + 1
        several = sum(_stage(other) == stage for other in names) > 1
        looks[name] = Look(base.color, base.marker, _VARIANT_DASHES[n % 4]) if several else base
    return looks


def _stage(arm: str) -> str:
    return arm.partition(",")[0]


@contextmanager
def paper() -> Iterator[None]:
    """The style sheet, for the duration of the block: make *and save* figures inside it."""
    with mpl.rc_context(_RC):
        yield


def canvas(
    width: float = COLUMN, height: float = 2.3, rows: int = 1, columns: int = 1, **grid: Any
) -> tuple[Figure, Any]:
    """A figure of width x height inches with its axes, drawn without pyplot (no global figure list, no window)."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03, wspace=0.04, hspace=0.04)  # type: ignore[union-attr]
    return figure, figure.subplots(rows, columns, **grid)


def legend_above(
    figure: Figure, axes: Axes | Iterable[Axes], columns: int | None = None, order: Iterable[str] = (), **more: Any
) -> None:
    """The legend in rows of its own above the axes, never over data: of all `axes`, a name once, those in `order` first and in
    that order. `columns` defaults to what the width holds.

    The figure grows by what more than two rows take, so that the axes keep their size; a legend of a great many rows takes
    the width of a page.
    """
    named: dict[str, Any] = {}
    for ax in [axes] if isinstance(axes, Axes) else axes:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            named.setdefault(name, handle)
    if not named:
        return
    # models first; what they are compared with last
    place = {name: at for at, name in enumerate(order)}
    labels = sorted(named, key=lambda name: (name in ("chance", "random-key oracle"), place.get(name, len(place))))
    handles = [named[name] for name in labels]
    handles = [h[0] if isinstance(h, ErrorbarContainer) else h for h in handles]
    each = 0.45 + 0.06 * max(map(len, labels))
    if len(labels) > MANY * max(1, int(figure.get_figwidth() / each)):
        figure.set_figwidth(max(PAGE, figure.get_figwidth()))
    count = min(columns or max(1, int(figure.get_figwidth() / each)), len(labels))
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * max(0, -(-len(labels) // count) - 2))
    figure.legend(handles, labels, loc="outside upper left", ncols=count, **more)
