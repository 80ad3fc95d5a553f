"""All figures that apply to a folder of runs."""

from collections.abc import Iterable
from pathlib import Path

from mnemolab.analysis.figures import FIGURES
from mnemolab.analysis.figures.plot import NotApplicable, Saved, save
from mnemolab.analysis.records import Study

__all__ = ["make"]


def make(
    study: Study | Path | str, out: Path | str, names: Iterable[str] | None = None
) -> tuple[list[Saved], dict[str, str]]:
    """Draw `names` (default: all) into folder `out`; returns what was saved, and name -> reason for what does not apply.

    Raises BadRequest for an unknown name or a folder without finished runs.
    """
    study = study if isinstance(study, Study) else Study.of(study)
    draw = {name: FIGURES[name] for name in (list(FIGURES) if names is None else names)}
    saved, skipped = [], {}
    for name, function in draw.items():
        try:
            plots = function(study)
        except NotApplicable as reason:
            skipped[name] = str(reason)
            continue
        saved += [save(plot, out) for plot in plots]
    return saved, skipped
