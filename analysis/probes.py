"""Probes: each looks at one side of a folder of runs and returns tables, figures and notes. `PROBES[name](study) -> Finding`."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mnemolab.errors import BadRequest
from mnemolab.registry import Entry, Registry

if TYPE_CHECKING:
    from mnemolab.analysis.figures.plot import Plot
    from mnemolab.analysis.records import Study
    from mnemolab.analysis.report import Table

__all__ = ["PROBES", "Finding", "register_probe", "run_probes"]

PROBES = Registry(
    "probe",
    {
        "retention": Entry(
            "mnemolab.analysis.probes:retention", "accuracy and log-odds against lag, position and load"
        ),
        "interference": Entry(
            "mnemolab.analysis.probes:interference", "versions, intrusions by class and age, stale/new ratio"
        ),
    },
)
register_probe = PROBES.register


@dataclass(frozen=True)
class Finding:
    """What a probe found. `tables` are written as NAME.csv; `notes` say what could not be computed, and why."""

    title: str
    tables: "dict[str, Table]" = field(default_factory=dict)
    plots: "Sequence[Plot]" = ()
    notes: Sequence[str] = ()


def retention(study: "Study") -> Finding:
    """Retention curves along every axis that varies."""
    from mnemolab.analysis import retention as rooms
    from mnemolab.analysis.figures.behaviour import retention_by_lag
    from mnemolab.analysis.report import Table

    tables, plots, notes = {}, [], []
    for axis in rooms.AXES:
        try:
            plots += retention_by_lag(study, axis)
        except BadRequest as reason:
            notes.append(str(reason))
            continue
        frame = rooms.curve(study.records, axis, by=("task", "arm"))
        tables[f"retention-{axis.replace('_', '-')}"] = Table(f"Accuracy by {axis.replace('_', ' ')}.", frame)
    return Finding("Retention", tables, plots, notes)


def interference(study: "Study") -> Finding:
    """Versions, intrusions and the stale/new ratio."""
    from mnemolab.analysis import interference as rooms
    from mnemolab.analysis.figures.behaviour import accuracy_by_versions, answers_by_class, intrusions_by_age
    from mnemolab.analysis.report import Table

    by = ("task", "arm")
    makers: dict[str, tuple[str, Callable]] = {
        "versions": ("Accuracy by versions of the key.", lambda r: rooms.accuracy_by_versions(r, by)),
        "intrusions": ("Answers by class, as a share and in excess of guessing.", lambda r: rooms.intrusions(r, by=by)),
        "stale-ages": ("Stale answers by age.", lambda r: rooms.stale_ages(r, by)),
        "stale-new-ratio": (
            "Odds of the best stale value against the right one.",
            lambda r: rooms.stale_new_ratio(r, by=by),
        ),
    }
    tables, plots, notes = {}, [], []
    for name, (caption, make) in makers.items():
        try:
            tables[name] = Table(caption, make(study.records))
        except BadRequest as reason:
            notes.append(str(reason))
    for draw in (accuracy_by_versions, intrusions_by_age, answers_by_class):
        try:
            plots += draw(study)
        except BadRequest as reason:
            notes.append(str(reason))
    return Finding("Interference", tables, plots, notes)


def run_probes(study: "Study", names: Iterable[str], out: Path | str, command: str | None = None) -> Path:
    """Run `names` and write `out/index.html`, `out/tables/*.csv` and `out/figures/*`. Raises BadRequest for unknown names."""
    from mnemolab.analysis.figures.plot import save
    from mnemolab.analysis.report import Section, provenance, render
    from mnemolab.files import output_folder, write_text

    probes = {name: PROBES[name] for name in names}
    out = output_folder(out)
    (out / "tables").mkdir(exist_ok=True)
    sections = []
    for probe in probes.values():
        found: Finding = probe(study)
        for name, table in found.tables.items():
            write_text(out / "tables" / f"{name}.csv", table.data.to_csv(index=False, float_format="%.6g"))
        figures = [save(plot, out / "figures") for plot in found.plots]
        sections.append(Section(found.title, list(found.notes), list(found.tables.values()), figures))
    title = f"Probe of {', '.join(p.name for p in study.paths)}"
    return render(title, sections, provenance(study.runs, command), out / "index.html")
