"""Run probes over a study and write tables, figures and one page."""

from collections.abc import Iterable
from pathlib import Path

from mnemolab.analysis.figures.plot import save
from mnemolab.analysis.probes import PROBES, Finding
from mnemolab.analysis.records import Study
from mnemolab.analysis.report import Section, provenance, render
from mnemolab.errors import BadRequest
from mnemolab.files import output_folder, write_text

__all__ = ["run_probes"]


def run_probes(study: Study, names: Iterable[str], out: Path | str, command: str | None = None) -> Path:
    """Run `names`; write `out/index.html`, `out/tables/*.csv`, `out/figures/*`; return the page.

    Raises BadRequest for unknown names, a study without finished runs, or when no probe could look at it.
    """
    probes = {name: PROBES[name] for name in names}
    if not probes:
        raise BadRequest(f"--probe: name at least one of {', '.join(PROBES)}")
    runs = study.runs  # a folder that holds none is refused before anything is written
    out = output_folder(out)
    sections, reasons = [], []
    for name, probe in probes.items():
        try:
            found: Finding = probe(study)
        except BadRequest as reason:
            if len(probes) == 1:
                raise
            reasons.append(f"{name}: {reason}")
            continue
        (out / "tables").mkdir(exist_ok=True)
        for stem, table in found.tables.items():
            write_text(out / "tables" / f"{stem}.csv", table.data.to_csv(index=False, float_format="%.6g"))
        figures = [save(plot, out / "figures") for plot in found.plots]
        sections.append(Section(found.title, list(found.notes), list(found.tables.values()), figures))
    if not sections:
        raise BadRequest("; ".join(reasons))
    if reasons:
        sections.append(Section("Not shown", reasons))
    title = f"Probe of {', '.join(path.name for path in study.paths)}"
    return render(title, sections, provenance(runs, command), out / "index.html")
