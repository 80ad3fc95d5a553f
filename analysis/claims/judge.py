"""From finished runs and checks to verdicts."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from scipy import stats

from mnemolab.analysis.claims.catalogue import CLAIMS
from mnemolab.analysis.claims.checked import check_claim
from mnemolab.analysis.claims.checks import CHECKS
from mnemolab.analysis.claims.claim import Claim, Verdict
from mnemolab.analysis.claims.evidence import Evidence, NotTrained
from mnemolab.analysis.claims.rules import judged
from mnemolab.errors import BadRequest

__all__ = ["experiments_of", "judge_claim", "judge_claims", "twin_limit", "twin_rate"]


def judge_claims(
    ids: Iterable[str], evidence: Evidence, tier: str, device: str, tell: Callable[[str], None] = lambda text: None
) -> list[Verdict]:
    """The verdict on each claim, in the order given; `tell` hears each id before it is judged."""
    verdicts = []
    for name in ids:
        tell(name)
        verdicts.append(judge_claim(CLAIMS[name], evidence, tier, device))
    return verdicts


def judge_claim(claim: Claim, evidence: Evidence, tier: str, device: str) -> Verdict:
    """By its trained models, its checks, or both (then both must hold)."""
    trained = _trained(claim, evidence) if claim.judge is not None else None
    checked = check_claim(claim, CHECKS[claim.id], tier, device) if claim.id in CHECKS else None
    if trained is None and checked is None:
        raise BadRequest(f"claim {claim.id}: has neither a judging function nor a check; give it one")
    return _both(trained, checked) if trained is not None and checked is not None else (trained or checked)  # type: ignore[return-value]


def experiments_of(ids: Iterable[str]) -> list[str]:
    """The experiments that these claims need or show, each once, in order."""
    return list(dict.fromkeys(name for i in ids for name in (*CLAIMS[i].experiment, *CLAIMS[i].beside)))


def twin_rate(objects: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """(A/A contrasts that the rules call supported, all A/A contrasts of which something was measured), of objects of claims.json."""
    twins = [c for row in objects for c in row["twins"] if c["n"]]
    return sum(c["outcome"] == "supported" for c in twins), len(twins)


def twin_limit(supported: int, twins: int) -> float | None:
    """One-sided 95% upper limit of the A/A rate (Clopper-Pearson), were the contrasts independent; None without any."""
    if not twins:
        return None
    return 1.0 if supported == twins else float(stats.beta.ppf(0.95, supported + 1, twins - supported))


def _trained(claim: Claim, evidence: Evidence) -> Verdict:
    judge = _loaded(claim.judge)
    own = Evidence(evidence.ran)  # so that the runs it reads are its own
    try:
        judgement = judge(own)
    except NotTrained as reason:
        return Verdict(claim, "inconclusive", f"not trained in this tier: {reason}", "the runs that are missing")
    return judged(claim, replace(judgement, runs=tuple(judgement.runs) or tuple(sorted(own.read))))


def _loaded(judge: Any) -> Callable[[Evidence], Any]:
    if not isinstance(judge, str):
        return judge
    module, _, name = judge.partition(":")
    return getattr(import_module(module), name)


def _both(trained: Verdict, checked: Verdict) -> Verdict:
    """Trained models and checks together: the worse of the two verdicts stands."""
    order = ("refuted", "inconclusive", "undecidable here", "supported")
    worse = min((trained, checked), key=lambda v: order.index(v.verdict))
    if checked.verdict == "undecidable here":
        worse = trained
    return replace(
        trained, verdict=worse.verdict, why=worse.why, changes=worse.changes, checks=checked.checks,
        note=" ".join(text for text in (trained.note, checked.note) if text),
    )  # fmt: skip
