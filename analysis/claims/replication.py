"""What other seeds gave: folders of the tier `replicate` beside judged claims, and how far the two agree.

`read_replication` reads the folders; `agreement` compares them with the first ones contrast by contrast. Nothing here decides:
verdicts are those of the frozen rule on each side by itself.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import stats

from mnemolab.analysis.claims.rules import reach
from mnemolab.analysis.claims.write import read_claims
from mnemolab.errors import BadRequest

__all__ = ["Replication", "agreement", "agreement_said", "read_replication"]

Replication = tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]  # what `read_replication` gives

# what has to be the same for one verdict to replicate another
ASKED = ("statement", "statistic", "direction", "margin", "rule", "placebo")
# what the columns of `agreement` hold; of each side by itself, of both
_SIDES = ("effect", "low", "high", "n", "outcome", "distance", "verdict")
_COLUMNS = (
    "claim", "contrast", "placebo", "test", "margin", *(f"{side}_{name}" for side in ("first", "again") for name in _SIDES),
    "predicted_low", "predicted_high", "inside", "inside_alone", "both_effect", "both_low", "both_high", "both_n", "decides", "left_out",
)  # fmt: skip
_SOURCE = "Patil, Peng and Leek 2016"
# a spread below this share of effect or margin is the rounding of float64, whose numbers here are of order one
_ROUNDING, _ORDER_ONE = 1e-12, 1e-3
# a t interval has its mean in the middle: by how much of its length the two may differ
_MIDDLE = 1e-6


def read_replication(
    folders: Sequence[Path], objects: Sequence[Mapping[str, Any]], methods: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(objects, methods) of folders of the tier `replicate` together: of the claims that trained models decide, those in
    `objects` too and on the same experiments, in their order; of methods what holds for all folders (seeds, attempts, runs, diverged).

    Raises BadRequest for another tier, for seeds that `methods` has as well, for a claim that asks something else there, and
    for one that two folders hold.
    """
    first = {row["id"]: row for row in objects}
    found: dict[str, dict[str, Any]] = {}
    held: dict[str, Path] = {}
    parts = []
    for folder in folders:
        rows, other = read_claims(folder)
        _replicates(folder, other, methods)
        for row in rows:
            name = row["id"]
            if name in held:
                raise BadRequest(
                    f"{name} is judged in {held[name]} and in {folder}; leave one of the two out, or delete claims.json of one and "
                    "judge its other claims again with `mnemolab claims --tier replicate --only`"
                )
            held[name] = folder
            # of another experiment it is an earlier attempt at the claim, which nothing here can replicate
            if name in first and row["seeds"] and row["experiment"] and row["experiment"] == first[name]["experiment"]:
                _same_asked(folder, row, first[name])
                found[name] = row
        parts.append(other)
    return [found[name] for name in first if name in found], _joined(folders, parts)


def _replicates(folder: Path, other: Mapping[str, Any], methods: Mapping[str, Any]) -> None:
    if other.get("tier") != "replicate" or not other.get("seeds"):
        raise BadRequest(
            f"{folder}: tier {other.get('tier')}; a replication is what `mnemolab claims --tier replicate` wrote"
        )
    shared = sorted({*other["seeds"]} & {*methods.get("seeds", ())})
    if shared:
        raise BadRequest(
            f"{folder}: seeds {shared} are those of the claims it is to replicate; give runs of other seeds"
        )


def _same_asked(folder: Path, row: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    changed = [name for name in ASKED if row[name] != first[name]]
    changed += [
        f"{part} of {a['name']!r}"
        for _, a, b in _pairs(first, row)
        for part in ("test", "margin")
        if a[part] != b[part]
    ]
    if changed:
        raise BadRequest(f"{folder}: {row['id']} has another {changed[0]} there; judge both folders with one version")


def _joined(folders: Sequence[Path], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `parts`, the methods of `folders`, say together. `attempts` are those of experiments that ran there."""
    return {
        "seeds": sorted({seed for part in parts for seed in part["seeds"]}),
        "attempts": {
            e: n for part in parts for e, n in part.get("attempts", {}).items() if e in part.get("hashes", ())
        },
        "runs": sum(part.get("runs", 0) for part in parts) - _shared_runs(folders, parts),
        "diverged": list(dict.fromkeys(name for part in parts for name in part.get("diverged", ()))),
        "provenance": sorted(_made(parts), key=lambda p: p.get("Made", "")),
    }


def _made(parts: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, str]]:
    """When and by what the claims were judged: all of a folder at first, some of them later (`merge`)."""
    for part in parts:
        yield part.get("provenance", {})
        for entry in part.get("later", ()):
            yield entry["provenance"]


def _shared_runs(folders: Sequence[Path], parts: Sequence[Mapping[str, Any]]) -> int:
    """How many runs a sum over the folders counts again: those of experiments whose claims lie in several."""
    times = Counter(name for part in parts for name in part.get("hashes", ()))
    twice = {name for name, n in times.items() if n > 1}
    ids: list[str] = []
    for folder in (f for f, part in zip(folders, parts, strict=True) if twice & {*part.get("hashes", ())}):
        try:
            ids += pd.read_parquet(folder / "runs.parquet", columns=["run_id"])["run_id"].unique().tolist()
        except (OSError, ValueError) as error:
            raise BadRequest(
                f"{folder / 'runs.parquet'}: cannot read it ({error}); `mnemolab claims` writes it, and it "
                f"says which runs of {', '.join(sorted(twice))} the folders share"
            ) from error
    return len(ids) - len(set(ids))


def agreement(objects: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row a contrast that both sides measured: `objects`, the claims judged first, and `rows`, those of `read_replication`.

    Contrasts are matched by claim, name, and whether they are placebos (`placebo`). All effects are in the unit of the claim,
    positive in the predicted direction. Columns:

    * `first_` and `again_`: `effect`, `low`, `high` (95%), `n` seeds, `outcome` and `distance` of the contrast, `verdict` of the
      claim. `distance`: how far the effect lies beyond its margin (inside, for equivalence), in standard errors; negative where it
      falls short, infinite without spread.
    * `predicted_low`, `predicted_high`: the 95% prediction interval of the second effect, first effect -+ t sqrt(se1^2 + se2^2)
      (Patil, Peng and Leek 2016, "What should researchers expect when they replicate studies? A statistical view of
      replicability in psychological science", Perspectives on Psychological Science 11), with the t quantile of Welch's degrees
      of freedom for their normal one, as n is small. `inside`: whether the second effect lies in it.
    * `inside_alone`: the same by the spread of the first side only, first effect -+ t se1 sqrt(1 + n1 / n2), which is exact where
      the values of all seeds are normal with one variance; it is too narrow where a side lacks the failed run that the other has.
    * `both_effect`, `both_low`, `both_high`, `both_n`: the mean over the seeds of both sides with its t interval, as
      `rules.interval` would give it for the values themselves.
    * `decides`: whether this contrast decides the claim's second verdict.
    * `left_out`: why nothing can be said of a contrast; then all but its own numbers is missing. One seed has no spread, and an
      interval whose middle is not the effect is no t interval of a mean.

    The intervals of every kind of contrast are t intervals of the mean over seeds (`rules.interval`), those with another test
    (log-rank) too, where the effect is a mean over pairs of runs: standard error and sum of squares are recovered from them.
    """
    other = {row["id"]: row for row in rows}
    found = []
    for first in (row for row in objects if row["id"] in other):
        again = other[first["id"]]
        for placebo, a, b in _pairs(first, again):
            verdicts = {"first_verdict": first["verdict"], "again_verdict": again["verdict"]}
            decides = not placebo and a["name"] == again["deciding"]
            found.append({"claim": first["id"], "placebo": placebo, "decides": decides} | verdicts | _compared(a, b))
    kinds = {"placebo": bool, "decides": bool, "inside": "boolean", "inside_alone": "boolean"}
    return pd.DataFrame(found, columns=list(_COLUMNS)).astype(kinds)


def agreement_said(agreed: pd.DataFrame) -> str:
    """How many second effects lie in the prediction interval of the first, placebos apart, and which do not; nothing for no
    contrast."""
    known = agreed[agreed["left_out"] == ""]
    own, placebos = known[~known["placebo"]], known[known["placebo"]]
    if not len(known):
        return ""
    said = (
        f"Of {len(own)} contrasts that both measured, {own['inside'].sum()} second effects lie in the 95% prediction interval of the "
        f"first ({_SOURCE}; 95% are expected where the seeds alone make the difference; contrasts of a claim share runs){_outside(own)}."
    )
    if len(placebos):
        said += f" Of {len(placebos)} placebo contrasts {placebos['inside'].sum()}{_outside(placebos)}."
    alone = " and ".join(str(part["inside_alone"].sum()) for part in (own, placebos) if len(part))
    said += (
        f" That interval has the spread of both sides in it; by the first side's alone it is {alone}: few seeds say little of how far "
        "a rare run strays."
    )
    rest = agreed[agreed["left_out"] != ""]
    if len(rest):
        said += f" Left out: {'; '.join(_named(row) for _, row in rest.iterrows())}."
    return said


def _outside(part: pd.DataFrame) -> str:
    names: dict[str, list[str]] = {}
    for _, row in part[~part["inside"].astype(bool)].iterrows():
        names.setdefault(row["claim"], []).append(row["contrast"])
    return "; outside: " * bool(names) + ", ".join(f"{claim} ({'; '.join(found)})" for claim, found in names.items())


def _named(row: pd.Series) -> str:
    return f"{row['claim']} ({'placebo ' * row['placebo']}{row['contrast']}), {row['left_out']}"


def _pairs(
    first: Mapping[str, Any], again: Mapping[str, Any]
) -> Iterator[tuple[bool, Mapping[str, Any], Mapping[str, Any]]]:
    """(whether it is a placebo, first, again) of the contrasts that two objects of one claim have measured both."""
    for key in ("contrasts", "placebo_contrasts"):
        other = {c["name"]: c for c in again[key] if c["n"]}
        yield from ((key != "contrasts", c, other[c["name"]]) for c in first[key] if c["n"] and c["name"] in other)


def _compared(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `agreement`, less what it says of the claim."""
    row: dict[str, Any] = {"contrast": a["name"], "test": a["test"], "margin": a["margin"], "both_n": a["n"] + b["n"]}
    for side, c in (("first", a), ("again", b)):
        row |= {f"{side}_{name}": c[name] for name in ("effect", "low", "high", "n", "outcome")}
    lacking = next((why for why in map(_lacking, (a, b)) if why), "")
    if lacking:
        return row | {"left_out": lacking}
    (m1, se1, n1), (m2, se2, n2) = ((c["effect"], _error(c), c["n"]) for c in (a, b))
    rest = max(map(_rounding, (a, b)))
    half = _quantile(_welch(se1, n1, se2, n2)) * math.hypot(se1, se2)
    alone = _quantile(n1 - 1) * se1 * math.sqrt(1 + n1 / n2)
    # sum of squares about the mean of all: within the two sides and between them
    n, both = n1 + n2, (n1 * m1 + n2 * m2) / (n1 + n2)
    squares = (n1 - 1) * n1 * se1**2 + (n2 - 1) * n2 * se2**2 + n1 * n2 / n * (m2 - m1) ** 2
    wide = _quantile(n - 1) * math.sqrt(squares / (n - 1) / n)
    return row | {
        "first_distance": _distance(a, se1), "again_distance": _distance(b, se2), "predicted_low": m1 - half, "predicted_high": m1 + half,
        "inside": abs(m2 - m1) <= half + rest, "inside_alone": abs(m2 - m1) <= alone + rest,
        "both_effect": both, "both_low": both - wide, "both_high": both + wide, "left_out": "",
    }  # fmt: skip


def _lacking(c: Mapping[str, Any]) -> str:
    """Why a contrast's interval gives no standard error; nothing where it does."""
    if c["n"] < 2 or c["low"] is None or c["high"] is None:
        return "one seed has no spread"
    off = abs((c["low"] + c["high"]) / 2 - c["effect"])
    return "its interval is no t interval of the mean" if off > _MIDDLE * (c["high"] - c["low"]) + _rounding(c) else ""


def _error(c: Mapping[str, Any]) -> float:
    """The standard error of a contrast's mean, from its 95% t interval; 0 where it is but rounding."""
    se = (c["high"] - c["low"]) / 2 / _quantile(c["n"] - 1)
    return se if se > _rounding(c) else 0.0


def _rounding(c: Mapping[str, Any]) -> float:
    return _ROUNDING * max(abs(c["effect"]), abs(c["margin"]), _ORDER_ONE)


def _quantile(freedom: float) -> float:
    return float(stats.t.isf(0.025, freedom))


def _welch(se1: float, n1: int, se2: float, n2: int) -> float:
    """Degrees of freedom of a difference of two means (Welch and Satterthwaite); those of all seeds without any spread."""
    total = se1**2 + se2**2
    return total**2 / (se1**4 / (n1 - 1) + se2**4 / (n2 - 1)) if total else float(n1 + n2 - 2)


def _distance(c: Mapping[str, Any], se: float) -> float:
    """How far a contrast's effect lies beyond its margin, in standard errors."""
    beyond = reach(c["test"], c["effect"], c["margin"])
    if abs(beyond) <= _rounding(c):
        return 0.0
    return beyond / se if se else math.copysign(math.inf, beyond)
