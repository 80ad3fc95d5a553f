"""A finished figure: what is drawn, the numbers behind it, and what it says in words."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from mnemolab.analysis.style import paper
from mnemolab.errors import BadRequest
from mnemolab.files import write_atomic

__all__ = ["NotApplicable", "Plot", "Saved", "save"]


class NotApplicable(BadRequest):
    """These runs hold nothing that this figure could show; the message says what is missing."""


@dataclass(frozen=True)
class Plot:
    """`name` is the file stem, `title` a plain statement of what is shown, `caption` how to read it, `alt` what is seen."""

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure
    data: pd.DataFrame


@dataclass(frozen=True)
class Saved:
    """A Plot on disk."""

    name: str
    title: str
    caption: str
    alt: str
    png: Path
    pdf: Path
    csv: Path


def save(plot: Plot, folder: Path | str) -> Saved:
    """Write NAME.png (300 dpi), NAME.pdf (text stays text) and NAME.csv (the plotted numbers) into `folder`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    png, pdf, csv = (folder / f"{plot.name}.{kind}" for kind in ("png", "pdf", "csv"))
    with paper():
        write_atomic(png, lambda p: plot.figure.savefig(p, format="png"))
        # no date in the file: two builds of the same figure are the same bytes
        write_atomic(
            pdf, lambda p: plot.figure.savefig(p, format="pdf", metadata={"CreationDate": None, "ModDate": None})
        )
    write_atomic(csv, lambda p: plot.data.to_csv(p, index=False, float_format="%.6g"))
    return Saved(plot.name, plot.title, plot.caption, plot.alt, png, pdf, csv)
