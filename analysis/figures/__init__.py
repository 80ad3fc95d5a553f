"""One function a figure: `FIGURES[name](study) -> list[Plot]`; `make(folder, out)` draws all that apply."""

from typing import TYPE_CHECKING

from mnemolab.registry import Entry, Registry, lazy_exports

if TYPE_CHECKING:
    from mnemolab.analysis.figures.claims import claim_summary as claim_summary
    from mnemolab.analysis.figures.folder import make as make
    from mnemolab.analysis.figures.plot import NotApplicable as NotApplicable
    from mnemolab.analysis.figures.plot import Plot as Plot
    from mnemolab.analysis.figures.plot import Saved as Saved
    from mnemolab.analysis.figures.plot import save as save

_ROOM = "mnemolab.analysis.figures"
_BEHAVIOUR = f"{_ROOM}.behaviour"
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
        "conditions": Entry(f"{_ROOM}.conditions:accuracy_by_condition", "accuracy under each condition, run by run"),
        "interference": Entry(
            f"{_ROOM}.indices:interference_indices", "proactive and retroactive indices against controls"
        ),
        "release": Entry(f"{_ROOM}.indices:release_bars", "release from proactive interference at a shift of topic"),
        "fits": Entry(f"{_ROOM}.fits:retention_with_fits", "retention with the fitted forgetting curves"),
        "frontier": Entry(f"{_ROOM}.sweeps:state_frontier", "accuracy against size of state"),
        "learning-rate": Entry(f"{_ROOM}.sweeps:learning_rate_robustness", "accuracy against learning rate"),
        "needle": Entry(f"{_ROOM}.sweeps:needle_map", "accuracy by length and depth of the needle"),
        "profile": Entry(f"{_ROOM}.runs:performance_profiles", "share of runs above each accuracy"),
        "solved": Entry(
            f"{_ROOM}.runs:solved_by_step", "share of runs that reached the criterion, by step (Kaplan-Meier)"
        ),
        "query-order": Entry(f"{_BEHAVIOUR}:query_order", "accuracy against queries asked before (sequential scoring)"),
    },
)
register_figure = FIGURES.register

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "claim_summary": "claims",
        "make": "folder",
        "NotApplicable": "plot",
        "Plot": "plot",
        "Saved": "plot",
        "save": "plot",
    },
)
