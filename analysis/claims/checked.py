"""Checks (exact equalities, counts, costs, the oracle) as verdicts: supported if and only if every number keeps its bounds."""

from collections.abc import Callable
from math import isfinite
from typing import Any

from mnemolab.analysis.claims.checks import Check, Undecidable
from mnemolab.analysis.claims.claim import Claim, Verdict

__all__ = ["check_claim"]


def check_claim(claim: Claim, check: Callable[[str, str], list[Check]], tier: str, device: str) -> Verdict:
    """Run the checks of one claim. A number outside its bounds refutes it, unless its interval reaches into them."""
    try:
        checks = check(tier, device)
    except Undecidable as unsaid:
        return Verdict(claim, "undecidable here", unsaid.reason, unsaid.decides)
    rows = [_row(c) for c in checks]
    failed = [c for c in checks if not c.passed]
    worst = min(checks, key=_room)
    found: dict[str, Any] = {"checks": rows, "effect": _plain(worst.value)}
    if worst.interval is not None:
        found |= {"low": _plain(worst.interval[0]), "high": _plain(worst.interval[1])}
    if not failed:
        kept = "its number keeps its bounds" if len(checks) == 1 else f"all {len(checks)} numbers keep their bounds"
        return Verdict(claim, "supported", kept, "a number outside its bounds", **found)
    named = "; ".join(c.name for c in failed)
    if all(c.interval is not None and _touches(c) for c in failed):
        return Verdict(
            claim, "inconclusive", f"the interval crosses a bound: {named}", "a longer or quieter measurement", **found
        )
    return Verdict(claim, "refuted", f"outside its bounds: {named}", "every number within its bounds", **found)


def _row(c: Check) -> dict[str, Any]:
    low, high = c.interval or (None, None)
    row = {"name": c.name, "value": _plain(c.value), "low": c.low, "high": c.high, "unit": c.unit, "passed": c.passed}
    return row | {"interval_low": _plain(low), "interval_high": _plain(high), "detail": c.detail}


def _plain(value: float | None) -> float | None:
    return None if value is None or not isfinite(value) else float(value)


def _touches(c: Check) -> bool:
    """Whether the check's interval has a part within the bounds."""
    assert c.interval is not None
    low, high = -float("inf") if c.low is None else c.low, float("inf") if c.high is None else c.high
    return c.interval[0] <= high and c.interval[1] >= low


def _room(c: Check) -> float:
    """How far inside its bounds the value is, as a share of its size; the least is the one that decides."""
    size = max(abs(c.value), abs(c.low or 0), abs(c.high or 0), 1e-12)
    ends = [] if c.low is None else [(c.value - c.low) / size]
    ends += [] if c.high is None else [(c.high - c.value) / size]
    return min(ends) if isfinite(c.value) else -float("inf")
