"""One self-contained HTML page: figures inline, tables, the numbers behind each figure, and how it was made."""

import base64
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mnemolab import __version__
from mnemolab.analysis.compare import MARGIN, compare_arms, compare_steps, steps_to_criterion
from mnemolab.analysis.figures import make
from mnemolab.analysis.figures.plot import Saved
from mnemolab.analysis.records import Study
from mnemolab.analysis.statistics import iqm, mean_interval, survival_quantile, wilson
from mnemolab.analysis.style import label, look
from mnemolab.files import output_folder, write_text

__all__ = ["Cell", "Section", "Table", "build", "picture", "provenance", "render", "rows_table", "said", "summary"]

# Rows of a figure's data that the page shows; the CSV beside it has all.
_SHOWN = 60


@dataclass(frozen=True)
class Table:
    """A table with its caption; text is left-aligned, numbers right-aligned with three significant digits."""

    caption: str
    data: pd.DataFrame


@dataclass(frozen=True)
class Section:
    """A heading, paragraphs, tables and figures."""

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Saved] = ()


@dataclass(frozen=True)
class Cell:
    text: str
    number: bool = False


@dataclass(frozen=True)
class _Rows:
    caption: str
    head: list[Cell]
    rows: list[list[Cell]]
    left_out: int = 0


@dataclass(frozen=True)
class _Picture:
    saved: Saved
    source: str
    wide: bool
    data: _Rows = field(repr=False)


def build(
    folder: Path | str, out: Path | str, *, title: str = "What the models remember", command: str | None = None
) -> Path:
    """The report on a folder of finished runs: `out/index.html`, with PNG, PDF and CSV in `out/figures`.

    `command` is printed in the header (default: the command line of this process). Raises BadRequest when the folder holds
    no finished run or `out` cannot be written.
    """
    study = Study.of(folder)
    runs = study.runs
    out = output_folder(out)
    saved, skipped = make(study, out / "figures")
    table = summary(runs)
    write_text(out / "summary.csv", table.to_csv(index=False, float_format="%.6g"))
    write_text(out / "summary.tex", latex(table, "Test accuracy"))
    sections = [
        Section(
            "Results",
            (
                f"{len(runs)} finished runs: {_listed(runs['task'].unique())}; {runs['arm'].nunique()} models, "
                f"{runs['seed'].nunique()} seed{'s' if runs['seed'].nunique() > 1 else ''}. The run is the unit: intervals "
                "are 95%, those of figures over runs and, within them, sequences. "
                + ("With fewer than 6 seeds no paired test can reach p < .05." if _fewest(runs) < 6 else ""),
                *(s.alt.partition(". ")[2] for s in saved if s.name.startswith(("versions-", "retention-"))),
            ),
            (
                Table(
                    "Test results by model; accuracy with its interval over runs. Steps: by then half of the runs had reached the criterion (Kaplan-Meier, runs that "
                    "never did are censored; inf: fewer than half ever did).",
                    _merged(table),
                ),
                *_comparisons(runs),
            ),
        ),
        *(
            Section(f"Task: {task.replace('_', ' ')}", figures=[s for s in saved if s.name.endswith(f"-{task}")])
            for task in sorted(runs["task"].dropna().unique())
        ),
    ]
    loose = [s for s in saved if not any(s.name.endswith(f"-{t}") for t in runs["task"].dropna().unique())]
    if loose:
        sections.append(Section("Across tasks", figures=loose))
    if skipped:
        notes = pd.DataFrame({"figure": list(skipped), "why it is not here": list(skipped.values())})
        sections.append(Section("Not shown", tables=(Table("Figures that these runs cannot fill.", notes),)))
    return render(title, sections, provenance(runs, command), out / "index.html")


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a task and arm: runs, mean test accuracy with its interval over runs (none for one run), its interquartile
    mean (from 4 runs on), solved runs (Wilson), steps by which half of all runs had reached the criterion (Kaplan-Meier; runs that never did are censored at
    their last step, and the median is infinite when they are too many), sizes."""
    rows = []
    order = {arm: at for at, arm in enumerate(look(runs["arm"]))}
    ranked = runs.assign(_at=runs["arm"].map(order)).sort_values(["task", "_at"])
    for (task, arm), group in ranked.groupby(["task", "arm"], sort=False, observed=True):
        accuracy = pd.to_numeric(group["test.accuracy"], errors="coerce").dropna() if "test.accuracy" in group else []
        row: dict[str, Any] = {"task": task, "model": label(str(arm)), "runs": len(group)}
        if len(accuracy):
            mean, low, high = mean_interval(accuracy)
            row |= {"accuracy": mean}
            if len(accuracy) > 1:  # one run says nothing of others; its curves have intervals over sequences
                row |= {"low": max(low, 0.0), "high": min(high, 1.0)}
            if len(accuracy) >= 4:
                row |= {"iqm": float(iqm(accuracy))}
        if "steps_to_solved" in group:
            steps = pd.to_numeric(group["steps_to_solved"], errors="coerce")
            _, least, most = wilson(int(steps.notna().sum()), len(group))
            row |= {"solved": f"{int(steps.notna().sum())}/{len(group)} ({least:.2f} to {most:.2f})"}
            row |= {"steps": survival_quantile(*steps_to_criterion(group))}
        for name in ("parameters", "state_elements"):
            if name in group and group[name].notna().any():
                row[name.replace("_", " ")] = int(group[name].dropna().iloc[0])
        rows.append(row)
    return pd.DataFrame(rows)


def _merged(table: pd.DataFrame) -> pd.DataFrame:
    """Accuracy and its interval in one cell, and no task column when there is one task: narrower on a page."""
    if "accuracy" not in table:
        return table
    table = table.reindex(columns=table.columns.union(["low", "high"], sort=False))
    said = [
        "–" if np.isnan(mean) else f"{mean:.3f}" + ("" if np.isnan(low) else f" ({low:.3f} to {high:.3f})")
        for mean, low, high in zip(table["accuracy"], table["low"], table["high"], strict=True)
    ]
    shown = table.assign(accuracy=said).drop(columns=["low", "high"])
    return shown.drop(columns="task") if shown["task"].nunique() == 1 else shown


def _comparisons(runs: pd.DataFrame) -> list[Table]:
    """Pairs of arms, when there are seeds to pair and few enough pairs to read."""
    if "test.accuracy" not in runs or runs["arm"].nunique() > 8:
        return []
    found = []
    for caption, table in (
        (
            (
                "Differences in test accuracy (a minus b), paired by seed: sign-flip test with Holm's correction within a task; "
                f"p_equal: equivalence within {MARGIN:g} (two one-sided sign-flip tests, Holm); better: chance that a run of a beats one of b."
            ),
            compare_arms(runs),
        ),
        (
            (
                "Steps to the criterion: log-rank test by relabelling runs, Holm's correction within a task; hazard above 1: a is "
                "faster. Runs that never reached it are censored."
            ),
            compare_steps(runs),
        ),
    ):
        if len(table):
            named = table.assign(a=[label(a) for a in table["a"]], b=[label(b) for b in table["b"]])
            found.append(Table(caption, named.drop(columns=["p"])))
    return found


def latex(table: pd.DataFrame, caption: str) -> str:
    """A booktabs table."""
    shown = table.rename(columns=lambda name: str(name).replace("_", " "))
    return (
        shown.style.format(precision=3, na_rep="--", escape="latex")
        .hide(axis="index")
        .to_latex(hrules=True, caption=caption)
    )


def provenance(runs: pd.DataFrame | None = None, command: str | None = None) -> dict[str, str]:
    """What the header says: command, commit, versions, devices, when."""
    facts = {"Command": command or shlex.join(["mnemolab", *sys.argv[1:]]), "Commit": _commit()}
    packages = {"mnemolab": __version__, "Python": platform.python_version()}
    for name in ("torch", "lightning", "numpy", "pandas", "matplotlib"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    facts["Versions"] = ", ".join(f"{k} {v}" for k, v in packages.items())
    if runs is not None and "device" in runs:
        pairs = runs[[c for c in ("device", "backend") if c in runs]].dropna().astype(str).agg(", ".join, axis=1)
        facts["Runs on"] = "; ".join(f"{pair} ({n})" for pair, n in pairs.value_counts().items())
    facts["Made"] = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return facts


def render(title: str, sections: Sequence[Section], facts: Mapping[str, str], path: Path) -> Path:
    """Write the page; images go in as data, so the file can be mailed alone."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    number, parts = 0, []
    for section in sections:
        pictures = []
        for saved in section.figures:
            number += 1
            pictures.append((number, picture(saved)))
        parts.append((section, [rows_table(t.caption, t.data) for t in section.tables], pictures))
    page = environment.get_template("report.html").render(title=title, parts=parts, facts=facts)
    return write_text(Path(path), page)


def picture(saved: Saved) -> _Picture:
    data = saved.png.read_bytes()
    width = int.from_bytes(data[16:20])  # of the PNG header, in pixels at 300 dpi
    source = "data:image/png;base64," + base64.b64encode(data).decode()
    return _Picture(saved, source, width > 1200, rows_table("The plotted numbers.", pd.read_csv(saved.csv)))


def rows_table(caption: str, frame: pd.DataFrame) -> _Rows:
    numeric = [pd.api.types.is_numeric_dtype(frame[c]) for c in frame.columns]
    head = [Cell(str(c).replace("_", " "), n) for c, n in zip(frame.columns, numeric, strict=True)]
    shown = frame.head(_SHOWN)
    rows = [
        [Cell(said(value), n) for value, n in zip(row, numeric, strict=True)]
        for row in shown.itertuples(index=False, name=None)
    ]
    return _Rows(caption, head, rows, len(frame) - len(shown))


def said(value: Any) -> str:
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return "–"
    if isinstance(value, float | np.floating):
        if float(value).is_integer() and abs(value) < 1e15:
            return f"{int(value):,}"
        if 1000 <= abs(value) < 1e9:
            return f"{value:,.0f}"
        return f"{value:.3f}" if 0.001 <= abs(value) < 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int | np.integer) and not isinstance(value, bool) else str(value)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(str(n).replace("_", " ") for n in names)


def _fewest(runs: pd.DataFrame) -> int:
    return int(runs.groupby(["task", "arm"], observed=True)["seed"].nunique().min())


def _commit() -> str:
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return "not a git checkout"
    return done.stdout.strip()
