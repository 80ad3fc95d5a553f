"""Verdicts kept from one piece to the next, so that judging can be done in pieces as training is.

A kept verdict is used again only when the claim's runs (what they hold, not their names alone), the tier, the device of its
checks and the source files that it comes from are the same: those of the checks for a claim that checks alone decide, else
all of the analysis but what draws and prints.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

from mnemolab.analysis.claims.claim import Claim, Contrast, Verdict
from mnemolab.files import write_text

__all__ = ["key", "load", "save"]

# below analysis/: what shows a verdict, and all that a verdict of checks alone comes from
_SHOWN = (
    "figures/",
    "style.py",
    "report.py",
    *(
        f"claims/{n}.py"
        for n in (
            "command",
            "cost",
            "figures",
            "forest",
            "merge",
            "page",
            "replication",
            "results",
            "story",
            "valid",
            "write",
        )
    ),
)
_CHECKING = ("claims/checks/", "claims/checked.py", "statistics/")
_CONTRASTS = ("contrasts", "placebo", "twins")


def key(claim: Claim, runs: Iterable[str], tier: str, device: str) -> str:
    """What a kept verdict on `claim` depends on; `runs` are digests of its runs."""
    found = hashlib.sha256(json.dumps([sorted(runs), tier, device]).encode())
    analysis = Path(__file__).parents[1]
    for path in sorted(analysis.rglob("*.py")):
        place = path.relative_to(analysis).as_posix()
        if place.startswith(_CHECKING) or (claim.judge is not None and not place.startswith(_SHOWN)):
            found.update(path.read_bytes())
    return found.hexdigest()


def save(folder: Path, verdict: Verdict, key: str) -> None:
    """Write `folder/ID.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {f.name: getattr(verdict, f.name) for f in fields(verdict) if f.name != "claim"}
    values |= {name: [asdict(c) for c in values[name]] for name in _CONTRASTS}
    write_text(folder / f"{verdict.claim.id}.json", json.dumps({"key": key, "verdict": values}))


def load(folder: Path, claim: Claim, key: str) -> Verdict | None:
    """The verdict kept for `claim`, or None when there is none or when what it depends on has changed."""
    try:
        held = json.loads((folder / f"{claim.id}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # never judged, or cut short: judge it again
        return None
    if held["key"] != key:
        return None
    values = held["verdict"]
    return Verdict(claim, **values | {name: [Contrast(**c) for c in values[name]] for name in _CONTRASTS})
