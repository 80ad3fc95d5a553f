"""One function a figure: `FIGURES[name](study) -> list[Plot]`; `make(folder, out)` draws all that apply."""

from typing import TYPE_CHECKING

from mnemolab.registry import Entry, Registry, lazy_exports

if TYPE_CHECKING:
    from mnemolab.analysis.figures.folder import make as make
    from mnemolab.analysis.figures.plot import NotApplicable as NotApplicable
    from mnemolab.analysis.figures.plot import Plot as Plot
    from mnemolab.analysis.figures.plot import Saved as Saved
    from mnemolab.analysis.figures.plot import save as save

_BEHAVIOUR = "mnemolab.analysis.figures.behaviour"
FIGURES = Registry(
    "figure",
    {
        "versions": Entry(
            f"{_BEHAVIOUR}:accuracy_by_versions", "accuracy and stale answers against versions of the key"
        ),
        "intrusions": Entry(f"{_BEHAVIOUR}:intrusions_by_age", "stale answers by age, against guessing"),
        "retention": Entry(f"{_BEHAVIOUR}:retention_by_lag", "accuracy against lag"),
        "learning": Entry(f"{_BEHAVIOUR}:learning_curves", "validation accuracy against training step"),
        "answers": Entry(f"{_BEHAVIOUR}:answers_by_class", "what was answered: right, stale, another key's, absent"),
        "query-order": Entry(f"{_BEHAVIOUR}:query_order", "accuracy against queries asked before (sequential scoring)"),
    },
)
register_figure = FIGURES.register

__getattr__, __dir__ = lazy_exports(
    __name__, {"make": "folder", "NotApplicable": "plot", "Plot": "plot", "Saved": "plot", "save": "plot"}
)
