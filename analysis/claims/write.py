"""claims.json, claims.csv and claims.tex: the verdicts, for programs, spreadsheets and papers."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from mnemolab.analysis.claims.claim import RULES, Verdict
from mnemolab.analysis.claims.evidence import Evidence
from mnemolab.analysis.claims.judge import twin_limit, twin_rate
from mnemolab.analysis.claims.valid import check_claims, check_methods
from mnemolab.errors import BadRequest
from mnemolab.files import write_json, write_text

__all__ = ["FIELDS", "held_ids", "read_claims", "table", "to_object", "write_claims", "write_objects", "write_runs"]

# of every object of claims.json, in this order
FIELDS = (
    "id", "statement", "source", "kind", "experiment", "statistic", "direction", "margin", "unit", "rule", "placebo",
    "verdict", "why", "would_change", "deciding", "deciding_margin", "effect", "low", "high", "p", "seeds", "power", "seeds_needed", "contrasts",
    "placebo_contrasts", "placebo_passed", "twins", "checks", "numbers", "evidence", "figure", "note",
)  # fmt: skip


def to_object(verdict: Verdict) -> dict[str, Any]:
    """One object of claims.json: plain values, what is not finite is null."""
    claim = verdict.claim
    found = {
        **{name: getattr(claim, name) for name in ("id", "statement", "source", "kind", "statistic", "direction")},
        **{name: getattr(claim, name) for name in ("margin", "unit", "placebo", "figure")},
        "deciding": verdict.deciding,
        "deciding_margin": verdict.margin,
        "experiment": list(claim.experiment),
        "rule": claim.rule,
        **{name: getattr(verdict, name) for name in ("verdict", "why", "effect", "low", "high", "p", "seeds", "power")},
        "would_change": verdict.changes,
        "seeds_needed": verdict.needed,
        "contrasts": [asdict(c) for c in verdict.contrasts],
        "placebo_contrasts": [asdict(c) for c in verdict.placebo],
        "placebo_passed": verdict.placebo_passed,
        "twins": [asdict(c) for c in verdict.twins],
        "checks": list(verdict.checks),
        "numbers": list(verdict.numbers),
        "evidence": list(verdict.runs),
        "note": verdict.note,
    }
    return {name: _plain(found[name]) for name in FIELDS}


def table(objects: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row an object of claims.json: id, verdict, effect, low, high, margin, unit, p, seeds, power, seeds_needed, statement."""
    names = (
        "id",
        "verdict",
        "effect",
        "low",
        "high",
        "margin",
        "unit",
        "p",
        "seeds",
        "power",
        "seeds_needed",
        "statement",
    )
    return pd.DataFrame([{name: row[name] for name in names} for row in objects], columns=list(names))


def write_claims(verdicts: Sequence[Verdict], out: Path, methods: Mapping[str, Any]) -> list[Path]:
    """Write claims.json, claims.csv, claims.tex and methods.json into `out`."""
    return write_objects([to_object(v) for v in verdicts], {**methods, "rules": RULES}, out)


def write_objects(
    objects: Sequence[Mapping[str, Any]], methods: Mapping[str, Any], out: Path, runs: pd.DataFrame | None = None
) -> list[Path]:
    """As `write_claims`, from the objects themselves; with `runs`, also runs.parquet. The A/A contrasts are counted here."""
    from mnemolab.trainers.collect import write_table

    rows = table(objects)
    supported, twins = twin_rate(objects)
    rate = {"twins": twins, "twins_supported": supported, "twins_limit": twin_limit(supported, twins)}
    return [
        write_json(out / "claims.json", list(objects)),
        write_text(out / "claims.csv", rows.to_csv(index=False, float_format="%.6g")),
        write_text(out / "claims.tex", _latex(rows)),
        write_json(out / "methods.json", _plain({**methods, **rate})),
        *([] if runs is None else [write_table(out / "runs.parquet", runs)]),
    ]


def write_runs(evidence: Evidence, out: Path) -> Path | None:
    """Write runs.parquet into `out`: one row a finished run, its place in the plan before its config and result.

    `pair` is the seed that pairs it with the other arms; a twin has another `seed` of its own. None without runs.
    """
    from mnemolab.trainers.collect import run_row, write_table

    rows = []
    for run in evidence.ran:
        plan = run.plan
        place = {
            "experiment": plan.experiment,
            "cell": plan.cell,
            "arm": plan.arm,
            "twin": plan.twin,
            "pair": plan.seed,
        }
        rows.append(place | run_row(plan.config, run.result))
    return write_table(out / "runs.parquet", pd.DataFrame(rows)) if rows else None


def read_claims(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(objects of claims.json, methods.json) of a folder that `mnemolab claims` wrote. Raises BadRequest otherwise, with file,
    claim and field (`valid`)."""
    found = []
    for name in ("claims.json", "methods.json"):
        path = Path(folder) / name
        try:
            found.append(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise BadRequest(
                f"{path}: cannot read it ({error.strerror}); `mnemolab claims --out {folder}` writes it"
            ) from error
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"{path}: not JSON ({error}); run `mnemolab claims` again") from error
    for name, value, kind in (("claims.json", found[0], list), ("methods.json", found[1], dict)):
        if not isinstance(value, kind) or value == []:
            raise BadRequest(
                f"{Path(folder) / name}: not what `mnemolab claims` writes, or empty; run `mnemolab claims` again"
            )
    check_claims(Path(folder) / "claims.json", found[0])
    check_methods(Path(folder) / "methods.json", found[1])
    return found[0], found[1]


def held_ids(folder: Path) -> set[str]:
    """Ids of the claims in `folder`/claims.json; none where there is no such file or it is not one."""
    try:
        return {row["id"] for row in json.loads((folder / "claims.json").read_text(encoding="utf-8"))}
    except (OSError, ValueError, TypeError, KeyError):  # it is written anew
        return set()


def _latex(rows: pd.DataFrame) -> str:
    shown = rows.assign(interval=[_between(low, high) for low, high in zip(rows["low"], rows["high"], strict=True)])[
        ["id", "verdict", "effect", "interval", "margin", "p", "seeds"]
    ]
    return (
        shown.style.format(precision=3, na_rep="--", escape="latex")
        .hide(axis="index")
        .to_latex(hrules=True, caption="Claims and verdicts: effect with its 95\\% interval, margin and adjusted p.")
    )


def _between(low: float | None, high: float | None) -> str:
    known = low is not None and high is not None and not (math.isnan(low) or math.isnan(high))
    return f"[{low:.3f}, {high:.3f}]" if known else "--"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
