"""Every claim, as data. `CLAIMS` lists ids and statements without importing what judges them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from mnemolab.analysis.claims.catalogue.architecture import ARCHITECTURE
from mnemolab.analysis.claims.catalogue.checked import CHECKED
from mnemolab.analysis.claims.catalogue.memory import MEMORY
from mnemolab.analysis.claims.claim import Claim
from mnemolab.registry import Entry, Registry

__all__ = ["CLAIMS", "describe", "register_claim"]

F = TypeVar("F")

CLAIMS = Registry("claim", {c.id: Entry(c, c.statement) for c in (*MEMORY, *ARCHITECTURE, *CHECKED)})


def register_claim(claim: Claim) -> Callable[[F], F]:
    """Decorator: adds `claim`, judged by the decorated function `judge(evidence) -> Judgement`.

    Its `experiment` may name YAML files of one's own (`my_experiment.yaml`). Raises BadRequest for an id that is taken.
    """

    def add(judge: F) -> F:
        CLAIMS.register(claim.id, summary=claim.statement)(replace(claim, judge=judge))
        return judge

    return add


def describe(name: str) -> dict[str, Any]:
    """What `mnemolab list claims --json` says of a claim."""
    claim: Claim = CLAIMS[name]
    names = ("source", "kind", "statistic", "direction", "margin", "unit", "rule", "placebo", "experiment")
    return {key: getattr(claim, key) for key in names}
