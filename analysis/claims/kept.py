"""Verdicts kept from one piece to the next, so that judging can be done in pieces as training is.

A kept verdict is used again only when the claim's runs, the tier, the device of its checks and every source file of the
analysis are the same, those aside that draw and print verdicts and make none.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

from mnemolab.analysis.claims.claim import Claim, Contrast, Verdict
from mnemolab.files import write_text

__all__ = ["key", "load", "save"]

# below analysis/: what shows a verdict
_SHOWN = (
    "figures",
    "style.py",
    "report.py",
    *(f"claims/{name}.py" for name in ("figures", "page", "results", "story", "write")),
)
_CONTRASTS = ("contrasts", "placebo", "twins")


def key(run_ids: Iterable[str], tier: str, device: str) -> str:
    """What a kept verdict depends on."""
    found = hashlib.sha256(json.dumps([sorted(run_ids), tier, device]).encode())
    analysis = Path(__file__).parents[1]
    for path in sorted(analysis.rglob("*.py")):
        if not path.relative_to(analysis).as_posix().startswith(_SHOWN):
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
