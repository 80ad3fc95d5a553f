"""What a claim is, what a judging function hands over, and what a verdict says. Plain data; nothing here imports torch.

A judging function turns finished runs into `Sample`s, one number a seed. The rules (`rules.py`) alone turn samples into
`Contrast`s and a `Verdict`, so that no claim has a rule of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mnemolab.errors import BadRequest, hint

__all__ = ["KINDS", "RULES", "TESTS", "VERDICTS", "Claim", "Contrast", "Judgement", "Sample", "Verdict"]

KINDS = ("exact", "count", "cost", "oracle", "trained", "intervention")
# how a claim's contrasts are put together
RULES = {
    "family": "every contrast, Holm's correction within the claim",
    "intersection": "every contrast on its own (intersection-union), no correction needed",
    "bimodal": "solve rates and log-rank on steps to criterion, Holm's correction; accuracy of solved runs beside",
    "checks": "every checked number within its bounds",
}
# what one contrast asks of the mean over seeds
TESTS = {
    "greater": "above 0 by a one-sided paired sign-flip test, and at least the margin",
    "equivalent": "within the margin on both sides (TOST)",
    "no worse": "above minus the margin (non-inferiority)",
    "possible": "as greater; a failure refutes nothing, since the statement is that it can happen",
}
VERDICTS = ("supported", "refuted", "inconclusive", "undecidable here")


@dataclass(frozen=True)
class Claim:
    """One claim. `judge` and `check` name what decides it: `"module:function"`, or the function itself.

    `experiment` names files of configs/claims; `beside` names more of them, whose runs are made and shown with the claim and which its
    rule does not read; `margin` is the least effect that matters, in `unit`; `placebo` is what the
    same rule must not find; `figure` is CELL/NAME, a figure of that cell's runs; `reservation` is what keeps the claim from being decided at this scale, whatever is measured.
    """

    id: str
    statement: str
    source: str
    kind: str
    statistic: str
    direction: str
    margin: float
    unit: str
    rule: str
    placebo: str
    experiment: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    judge: Any = None
    figure: str = ""
    reservation: str = ""

    def __post_init__(self) -> None:
        for name, value, known in (("kind", self.kind, KINDS), ("rule", self.rule, tuple(RULES))):
            if value not in known:
                raise BadRequest(f"claim {self.id}: {name}={value!r}; {hint(str(value), known)}")


@dataclass(frozen=True)
class Sample:
    """A contrast before it is judged: `values` has one number a seed, positive in the predicted direction.

    `margin` replaces the claim's, in the same unit. `p`, where given, is the one-sided p of another test than the
    sign-flip (log-rank). `ground` is what the runs must show for a refutation to count: that they learned the task, or
    that there was room for the effect (an interference that is not there cannot be lowered). A ground without a margin
    of its own is to reach twice the contrast's: no memory takes away all that there is.
    """

    name: str
    values: Mapping[int, float]
    test: str = "greater"
    margin: float | None = None
    p: float | None = None
    ground: "Sample | None" = None

    def __post_init__(self) -> None:
        if self.test not in TESTS:
            raise BadRequest(f"sample {self.name}: test={self.test!r}; {hint(self.test, TESTS)}")


@dataclass(frozen=True)
class Judgement:
    """What a judging function found. `twins` are A/A contrasts: the same arm, trained twice with disjoint seeds.

    `numbers` are rows of plain values for the report; `runs` the ids of the runs that were read.
    """

    samples: Sequence[Sample]
    placebo: Sequence[Sample] = ()
    twins: Sequence[Sample] = ()
    numbers: Sequence[Mapping[str, Any]] = ()
    runs: Sequence[str] = ()
    note: str = ""


@dataclass(frozen=True)
class Contrast:
    """A judged sample. `p` is one-sided, `adjusted` after Holm where the rule asks for it; `low`, `high` a 95% interval.

    `power`: the chance that so many seeds reach p < .05 if the true effect is the margin. `needed`: the seeds at which the
    effect as seen would be decided, with 80% power; None when no number up to 999 would do, or one seed cannot say.
    `lacking`: the ground that kept it from being refuted, with what was found of it. `values`: what was judged, one number a
    seed (JSON has names of fields only as text, so the seed is text).
    """

    name: str
    test: str
    effect: float
    low: float
    high: float
    p: float
    adjusted: float
    margin: float
    n: int
    power: float
    needed: int | None
    outcome: str
    lacking: str = ""
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """The claim with what was found: one object of claims.json.

    effect, low, high, margin and p are those of `deciding`, the contrast that decides: the weakest of a supported claim, the
    refuting one, else the one furthest from being supported. `placebo_passed` must be False; `twins` are the A/A outcomes.
    """

    claim: Claim
    verdict: str
    why: str
    changes: str
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    power: float | None = None
    seeds: int = 0
    needed: int | None = None
    deciding: str = ""
    margin: float | None = None
    contrasts: Sequence[Contrast] = ()
    placebo: Sequence[Contrast] = ()
    placebo_passed: bool | None = None
    twins: Sequence[Contrast] = ()
    checks: Sequence[Mapping[str, Any]] = ()
    numbers: Sequence[Mapping[str, Any]] = ()
    runs: Sequence[str] = ()
    note: str = ""
    figures: Sequence[str] = field(default_factory=tuple)
