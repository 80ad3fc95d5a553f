"""The report on a folder of claims: one self-contained page, and docs/results.md's text, from the files alone."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mnemolab.analysis import report
from mnemolab.analysis.claims.claim import RULES, TESTS, VERDICTS
from mnemolab.analysis.claims.experiments import ATTEMPT
from mnemolab.analysis.claims.forest import forest
from mnemolab.analysis.claims.replication import Replication, agreement, agreement_said, read_replication
from mnemolab.analysis.claims.results import (
    POOLED,
    later_said,
    needed,
    placebos_said,
    pooled,
    replicated,
    replication_said,
    results,
    rules_said,
    spans,
)
from mnemolab.analysis.claims.write import read_claims
from mnemolab.analysis.figures.plot import NotApplicable, Saved, save
from mnemolab.analysis.figures.replication import replication as drawn
from mnemolab.files import output_folder, write_text

__all__ = ["build"]

MARKS = {"supported": "●", "refuted": "✕", "inconclusive": "◇", "undecidable here": "–"}
_CONTRAST = {
    "name": "contrast", "test": "test", "effect": "effect", "interval": "95% interval", "margin": "margin",
    "adjusted": "p", "n": "seeds", "power": "power", "outcome": "outcome",
}  # fmt: skip
# columns of numbers and checks; JSON keeps no order
_ORDER = ("measure", "arm", "name", "value", "mean", "low", "high", "unit", "passed", "seeds")


def build(folder: Path, out: Path, title: str = "What memory claims hold", replication: Sequence[Path] = ()) -> Path:
    """`out/index.html` and `out/results.md` from claims.json, methods.json and figures; with `replication`, folders of the
    replicate tier, also what became of the claims under other seeds. `out/figures` gets the forests of the claims, which need no
    runs, and then `replication` (.png, .pdf, .csv each). Raises BadRequest for a folder that holds no claims."""
    folder = Path(folder)
    objects, methods = read_claims(folder)
    again = read_replication(replication, objects, methods) if replication else None
    out = output_folder(out)
    agreed = agreement(objects, again[0]) if again else None
    compared = _compared(agreed, out / "figures")
    saved = [*_forests(objects, again, out / "figures"), *_stored(folder, methods.get("figures", []))]
    pictures = _pictures(saved, [row["id"] for row in objects], len(compared))
    claims, shown = [], []
    for row in objects:
        own = [(n, p) for n, p, claims_of in pictures if row["id"] in claims_of]
        shown += [pair for pair in own if pair not in shown]
        # a figure that belongs to several claims is shown with the first
        first = [pair for pair in own if _first(row["id"], pair[0], pictures, objects)]
        claims.append(
            _claim(row, first, replicated(row["id"], again), pooled(row["id"], agreed))
            | {"elsewhere": [pair for pair in own if pair not in first]}
        )
    rest = [(n, p) for n, p, _ in pictures if (n, p) not in shown]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    page = environment.get_template("claims.html").render(
        title=title,
        style=_style(),
        facts=_facts(methods),
        counts={v: sum(row["verdict"] == v for row in objects) for v in VERDICTS},
        marks=MARKS,
        lead=_lead(objects, methods, again, agreed),
        compared=compared,
        again={row["id"]: row["verdict"] for row in again[0]} if again else {},
        claims=claims,
        methods_text=_methods_text(methods),
        methods_tables=_methods_tables(methods),
        shown=[*compared, *shown],
        rest=rest,
    )
    write_text(out / "results.md", results(objects, methods, again))
    return write_text(out / "index.html", page)


def _style() -> Any:
    """The style sheet of the report on runs, so that both look alike."""
    from markupsafe import Markup

    page = (Path(report.__file__).parent / "report.html").read_text(encoding="utf-8")
    found = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    return Markup(found[1] if found else "")


def _compared(agreed: pd.DataFrame | None, folder: Path) -> list[tuple[int, Any]]:
    """[(1, picture)] of the first seeds against the others, saved in `folder`; nothing where no contrast was measured twice."""
    try:
        return [] if agreed is None else [(1, report.picture(save(drawn(agreed), folder)))]
    except NotApplicable:
        return []


def _forests(
    objects: Sequence[Mapping[str, Any]], again: Replication | None, folder: Path
) -> list[tuple[Saved, list[str]]]:
    """The forest of every claim that has contrasts, with the other seeds in it, drawn anew from the objects."""
    seconds = {row["id"]: row for row in again[0]} if again else {}
    found = []
    for row in objects:
        with contextlib.suppress(NotApplicable):  # decided by checks alone, or not trained
            found.append((save(forest(row, seconds.get(row["id"])), folder), [row["id"]]))
    return found


def _stored(folder: Path, rows: Sequence[Mapping[str, Any]]) -> list[tuple[Saved, list[str]]]:
    """What `mnemolab claims` drew from the runs, but for forests; what is missing on disk is left out."""
    found = []
    for row in rows:
        files = {kind: folder / "figures" / row[kind] for kind in ("png", "pdf", "csv")}
        if row["experiment"] and files["png"].exists() and files["csv"].exists():
            found.append((Saved(row["name"], row["title"], row["caption"], row["alt"], **files), row["claims"]))
    return found


def _pictures(
    saved: Sequence[tuple[Saved, list[str]]], ids: Sequence[str], before: int = 0
) -> list[tuple[int, Any, list[str]]]:
    """(number, picture, ids of its claims), numbered as they come on the page, after `before` others."""
    first = lambda pair: min((ids.index(name) for name in pair[1] if name in ids), default=len(ids))
    return [
        (before + at, report.picture(picture), claims)
        for at, (picture, claims) in enumerate(sorted(saved, key=first), start=1)
    ]


def _first(
    claim: str, number: int, pictures: Sequence[tuple[int, Any, list[str]]], objects: Sequence[Mapping[str, Any]]
) -> bool:
    """Whether `claim` is the first of the judged claims that figure `number` belongs to."""
    of = next(claims for n, _, claims in pictures if n == number)
    return next((row["id"] for row in objects if row["id"] in of), "") == claim


def _claim(row: Mapping[str, Any], pictures: list, again: str = "", both: str = "") -> dict[str, Any]:
    tables = []
    for name, caption in (
        ("contrasts", "Contrasts: mean over seeds with 95% intervals, p after the correction of the claim's rule"),
        ("placebo_contrasts", "Placebo: the same rule, which must not find it"),
        ("twins", "A/A: an arm against itself under other seeds"),
    ):
        if row[name]:
            frame = pd.DataFrame(
                [
                    # at a margin of 0 there is nothing to find
                    c | {"interval": _between(c["low"], c["high"]), "power": c["power"] if c["margin"] else None}
                    for c in row[name]
                ]
            )
            tables.append(
                report.rows_table(
                    caption, _numeric(frame.drop(columns="p").rename(columns=_CONTRAST)[list(_CONTRAST.values())])
                )
            )
    for name, caption in (("checks", "Checked numbers and their bounds"), ("numbers", "What was measured, by arm")):
        if row[name]:
            frame = pd.DataFrame(row[name])
            frame = frame[[c for c in _ORDER if c in frame] + [c for c in frame if c not in _ORDER]]
            tables.append(report.rows_table(caption, _numeric(frame)))
    design = {
        "Source": row["source"],
        "Kind": row["kind"],
        "Experiment": ", ".join(row["experiment"]) or "none: checks",
        "Statistic": row["statistic"],
        "Predicted": row["direction"],
        "Margin": f"{row['margin']:g} ({row['unit']})"
        if row["contrasts"]
        else f"bounds of each number ({row['unit']})",
        "Rule": RULES.get(row["rule"], row["rule"]),
        "Placebo": row["placebo"],
        **({"Other seeds": again} if again else {}),
        **({"Both": f"{both}, not the frozen rule"} if both else {}),
    }
    cells = [
        _cell(row["effect"]),
        report.Cell(_between(row["low"], row["high"])),
        _cell(row["deciding_margin"] if row["contrasts"] else None),
        _cell(row["p"]),
        _cell(row["seeds"] or None),
        _cell(needed(row)),
    ]
    return {**row, "design": design, "tables": tables, "pictures": pictures, "cells": cells}


def _numeric(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns of numbers with None as numbers, so that they align; booleans as words; no column that says nothing."""
    for name in frame.columns:
        column = frame[name]
        if column.map(lambda v: isinstance(v, bool)).all():
            frame[name] = column.map({True: "yes", False: "no"})
        elif column.map(lambda v: v is None or isinstance(v, int | float)).all():
            frame[name] = pd.to_numeric(column)
    return frame.dropna(axis=1, how="all")


def _cell(value: float | None) -> Any:
    return report.Cell(report.said(value), True)


def _between(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{report.said(low)} to {report.said(high)}"


def _facts(methods: Mapping[str, Any]) -> dict[str, str]:
    facts = dict(methods.get("provenance", {}))
    return {
        "Tier": str(methods.get("tier", "?")),
        **facts,
        "Runs on": ", ".join(methods.get("devices", [])) or "no runs",
    }


def _lead(
    objects: Sequence[Mapping[str, Any]],
    methods: Mapping[str, Any],
    again: Replication | None = None,
    agreed: pd.DataFrame | None = None,
) -> list[str]:
    seeds = len(methods.get("seeds", []))
    text = [
        (
            f"{len(objects)} of {methods.get('claims', len(objects))} claims, tier {methods.get('tier')}: {methods.get('runs', 0)} "
            f"runs, {seeds} seeds an arm. The run is the unit; a claim is supported or refuted only by its frozen rule, and an "
            "inconclusive verdict counts against nobody."
        )
    ]
    if methods.get("tier") == "quick":
        text.append(
            "The quick tier shows the machinery in minutes: 3 seeds cannot give a one-sided p below .05, so trained claims are "
            "inconclusive here and say how many seeds would decide them. The full tier decides."
        )
    if methods.get("tier") != "replicate":
        text.append(replication_said(objects, again))
    said = "" if agreed is None else agreement_said(agreed)
    text += [f"{said} {POOLED}"] if said else []
    return [*text, placebos_said(objects, again)]


def _methods_text(methods: Mapping[str, Any]) -> list[str]:
    twins, supported = methods.get("twins", 0), methods.get("twins_supported", 0)
    rate = f"{supported} of {twins} ({supported / twins:.0%})" if twins else "none was trained"
    limit = methods.get("twins_limit")
    rate += f", 95% upper limit {limit:.0%}" if twins and limit is not None else ""
    return [
        (
            "One-sided paired sign-flip tests, exact below 20 seeds; Holm's correction within one claim's contrasts, at most 10; "
            "claims about every member of a list are intersection-union; equality is two one-sided tests. Supported: every "
            "contrast has an adjusted p below .05 and an effect of at least its margin. Refuted: a contrast's 95% interval (t, over "
            "seeds) lies wholly below its margin, and where a ground is named (the task was learned, there was room for the effect) "
            "the same rule supports the ground. Fewer than 5 seeds decide nothing. A claim whose placebo passes is not called supported: it is "
            "inconclusive then; a refuted one stays refuted."
        ),
        "Tests: " + "; ".join(f"{name}: {said}" for name, said in TESTS.items()) + ".",
        (
            f"A/A contrasts (an arm against itself, trained with disjoint seeds) that the rules call supported: {rate}; at most 10% "
            "are to be. Power is that of the margin, at the spread that was seen, and left out where the margin is 0; the seeds that would decide assume effect and "
            "spread as seen and ask for 80% power."
        ),
        (
            f"Learning rates: {methods.get('how', '?')}. Seeds: {spans(methods.get('seeds', []))}; twins "
            f"{spans(methods.get('twin_seeds', []))}; pilots {spans(methods.get('pilot_seeds', []))}.{_attempts(methods.get('attempts', {}))} The test stream was read once. "
            f"{methods.get('steps', 0):,} steps in {methods.get('training_seconds', 0) / 3600:.2f} hours of training, summed over "
            f"workers. Checks and benchmarks ran on {methods.get('checks_on', '?')}.{_left_out(methods.get('diverged', []))} "
            f"{rules_said(methods)}"
        ),
        *later_said(methods),
    ]


def _attempts(found: Mapping[str, int]) -> str:
    """Said of experiments whose sizes are not their first: they have other seeds."""
    if not found:
        return ""
    named = ", ".join(f"{name} {n}" for name, n in found.items())
    return f" Later attempts (sizes changed after runs had been read), with {ATTEMPT:,} added to the seeds for each: {named}."


def _left_out(runs: Sequence[str]) -> str:
    """Said of runs that no training brings to an end: seeds that are missing are not missing at random."""
    if not runs:
        return ""
    return f" Left out, since their loss or gradient was not finite: {', '.join(runs)}; their arms are judged by the other seeds."


def _methods_tables(methods: Mapping[str, Any]) -> list[Any]:
    tables = []
    rates = [
        {"pilot task": t, "stage": s, "learning rate": r}
        for t, rs in methods.get("rates", {}).items()
        for s, r in rs.items()
    ]
    if rates:
        tables.append(report.rows_table("Learning rates that the pilot chose.", pd.DataFrame(rates)))
    hashes = [{"experiment": name, "frozen hash": value} for name, value in methods.get("hashes", {}).items()]
    if hashes:
        tables.append(report.rows_table("Experiments and their frozen hashes.", pd.DataFrame(hashes)))
    return tables
