"""Probes: each looks at one side of a folder of runs. `PROBES[name](study) -> Finding`; `run_probes` writes what they find."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mnemolab.registry import Entry, Registry, lazy_exports

if TYPE_CHECKING:
    from mnemolab.analysis.figures.plot import Plot
    from mnemolab.analysis.probes.run import run_probes as run_probes
    from mnemolab.analysis.report import Table

_ROOM = "mnemolab.analysis.probes"
PROBES = Registry(
    "probe",
    {
        "retention": Entry(
            f"{_ROOM}.behaviour:retention", "accuracy against lag, position and load; fits and half-lives"
        ),
        "interference": Entry(
            f"{_ROOM}.behaviour:interference", "proactive, retroactive, release, intrusions, fan, stale/new ratio"
        ),
        "decay": Entry(f"{_ROOM}.inside:decay", "gates by token, half-lives of gates and of writes, state, attention"),
        "interventions": Entry(f"{_ROOM}.inside:interventions", "what changing a gate does to accuracy"),
    },
)
register_probe = PROBES.register

__getattr__, __dir__ = lazy_exports(__name__, {"run_probes": "run"})


@dataclass(frozen=True)
class Finding:
    """What a probe found. `tables` are written as NAME.csv; `notes` say what could not be computed, and why."""

    title: str
    tables: "dict[str, Table]" = field(default_factory=dict)
    plots: "Sequence[Plot]" = ()
    notes: Sequence[str] = ()
