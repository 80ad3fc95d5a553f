"""What a claim asks, as a hash: frozen with the experiments, so that a rule which changes afterwards is seen."""

import ast
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from mnemolab.analysis.claims.claim import Claim
from mnemolab.errors import BadRequest

__all__ = ["changed_rules", "renewed", "rule_hash", "rules_of"]


def rule_hash(claim: Claim) -> str:
    """16 hex digits over what a claim asks: statistic, direction, margin, rule, placebo, experiments, and the numbers of its
    judge's module (margins of single contrasts, bars, floors). Other code is not in it: a fault may be mended, and the history
    says when."""
    asked = (
        "kind",
        "statistic",
        "direction",
        "margin",
        "unit",
        "rule",
        "placebo",
        "experiment",
        "judge",
        "reservation",
    )
    values = [claim.id, *(getattr(claim, name) for name in asked), _numbers(claim.judge.partition(":")[0])]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def rules_of() -> dict[str, str]:
    """Of every claim of the catalogue that trained models decide."""
    return {claim.id: rule_hash(claim) for claim in _trained()}


def changed_rules(claims: Iterable[Claim], rules: Mapping[str, str]) -> list[str]:
    """Those of `claims` that trained models decide and whose rule is not the one in `rules`, or not in it. A claim that was
    registered with a function of one's own has no frozen rule and is not among them."""
    return [c.id for c in claims if isinstance(c.judge, str) and rules.get(c.id) != rule_hash(c)]


def renewed(
    rules: Mapping[str, str], before: Mapping[str, str], held: Mapping[str, str], hashes: Mapping[str, str]
) -> dict[str, str]:
    """`rules`, but of claims whose experiments are all as they were (`held`, now `hashes`), and may have been read, what was frozen
    then (`before`): it may be another rule, or none."""
    same = {name for name, value in held.items() if hashes.get(name) == value}
    stay = {claim.id for claim in _trained() if same.issuperset(claim.experiment)}
    kept = {name: value for name, value in before.items() if name in stay}
    return {**{name: value for name, value in rules.items() if name not in stay}, **kept}


def _trained() -> list[Claim]:
    from mnemolab.analysis.claims.catalogue import CLAIMS

    return [claim for claim in map(CLAIMS.__getitem__, CLAIMS) if isinstance(claim.judge, str)]


@lru_cache
def _numbers(module: str) -> list[float]:
    """Every float that is written in the module, in order; counts and indices are integers."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise BadRequest(f"{module}: no such module of judges")
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, float)]
