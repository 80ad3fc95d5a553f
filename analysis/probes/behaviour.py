"""Probes of what models answered."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from mnemolab.analysis import interference as measures
from mnemolab.analysis import retention as curves
from mnemolab.analysis.figures import behaviour as figures
from mnemolab.analysis.figures.fits import retention_with_fits
from mnemolab.analysis.figures.indices import interference_indices
from mnemolab.analysis.fits import fit_runs
from mnemolab.analysis.probes import Finding
from mnemolab.analysis.records import Study
from mnemolab.analysis.report import Table
from mnemolab.errors import BadRequest

__all__ = ["interference", "retention"]

_BY = ("task", "arm")


def retention(study: Study) -> Finding:
    """Curves along every axis that varies, fits of each run against the lag in tokens, half-lives."""
    tables: dict[str, Table] = {}
    plots, notes = [], []
    for axis in curves.AXES:
        try:
            plots += figures.retention_by_lag(study, axis)
        except BadRequest as reason:
            notes.append(str(reason))
            continue
        words = axis.replace("_", " ")
        _collect(
            tables, notes, f"retention-{axis.replace('_', '-')}", f"Accuracy by {words}.", study,
            lambda r, axis=axis: curves.curve(r, axis, _BY, where=_asked(r)),
        )  # fmt: skip
    _collect(
        tables,
        notes,
        "fits",
        "Forgetting curves fitted to each run; weight is Akaike's.",
        study,
        lambda r: fit_runs(r, by=_BY, where=_asked(r)),
    )
    try:
        plots += retention_with_fits(study)
    except BadRequest as reason:
        notes.append(str(reason))
    return Finding("Retention", tables, plots, notes)


def interference(study: Study) -> Finding:
    """Everything of `analysis.interference` that the tasks at hand allow."""
    every: dict[str, tuple[str, Callable[[pd.DataFrame], pd.DataFrame]]] = {
        "versions": ("Accuracy by versions of the key.", lambda r: measures.accuracy_by_versions(r, _BY)),
        "version-slope": ("Slope of accuracy on ln versions, and versions at half accuracy.", lambda r: measures.version_slope(r, _BY)),
        "proactive": ("Proactive interference against twins whose key was bound once.", lambda r: measures.proactive(r, _BY)),
        "retroactive": ("Retroactive interference by rebinding.", lambda r: measures.retroactive(r, _BY)),
        "load": ("Retroactive interference by other keys' writes.", lambda r: measures.load_interference(r, _BY)),
        "release": ("Release from proactive interference.", lambda r: measures.release_from_interference(r, _BY)),
        "intrusions": ("Answers by class, as a share and in excess of guessing.", lambda r: measures.intrusions(r, by=_BY)),
        "stale-ages": ("Stale answers by age.", lambda r: measures.stale_ages(r, _BY)),
        "stale-new-ratio": ("Odds of the best stale value against the right one.", lambda r: measures.stale_new_ratio(r, by=_BY)),
        "fan": ("Fan effect.", lambda r: measures.fan(r, _BY)),
        "spacing": ("Spacing effect.", lambda r: measures.spacing(r, _BY)),
        "serial-position": ("Primacy and recency.", lambda r: measures.serial_position(r, _BY)),
        "directed-forgetting": ("Cost and benefit of a forget token.", lambda r: measures.directed_forgetting(r, _BY)),
    }  # fmt: skip
    tables: dict[str, Table] = {}
    plots, notes = [], []
    for name, (caption, make) in every.items():
        _collect(tables, notes, name, caption, study, make)
    try:
        frame = measures.output_interference(study.all_records, _BY)
        tables["output-interference"] = Table("Output interference: slope on queries read before.", frame)
    except BadRequest as reason:
        notes.append(str(reason))
    for draw in (
        figures.accuracy_by_versions,
        interference_indices,
        figures.intrusions_by_age,
        figures.answers_by_class,
        figures.query_order,
    ):
        try:
            plots += draw(study)
        except BadRequest as reason:
            notes.append(str(reason))
    return Finding("Interference", tables, plots, list(dict.fromkeys(notes)))


def _asked(records: pd.DataFrame) -> np.ndarray | None:
    """Queries for the latest value where others can be asked: which one is asked goes with the lag."""
    return measures.latest_mask(records) if "ask" in records else None


def _collect(
    tables: dict[str, Table],
    notes: list[str],
    name: str,
    caption: str,
    study: Study,
    make: Callable[[pd.DataFrame], pd.DataFrame],
) -> None:
    """The measure task by task, since tasks have columns of their own; a note where no task has its design."""
    parts, reasons = [], []
    for records in study.by_task.values():
        try:
            parts.append(make(records))
        except BadRequest as reason:
            reasons.append(str(reason).partition("; have:")[0])
    parts = [p for p in parts if len(p)]
    if parts:
        tables[name] = Table(caption, pd.concat(parts, ignore_index=True))
    else:
        notes += reasons[:1]
