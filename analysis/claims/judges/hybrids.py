"""Three memory layers to one of softmax attention: against softmax alone, and against other ratios."""

import math

import pandas as pd

from mnemolab.analysis.claims.claim import Judgement, Sample
from mnemolab.analysis.claims.evidence import Evidence, Ran, Values

__all__ = ["attnres_compute", "hybrid_outperforms", "hybrid_retrieves", "latent_moe_quality", "quality", "ratio"]

RATIOS = ("softmax", "1:1", "7:1")


def hybrid_retrieves(evidence: Evidence) -> Judgement:
    """Accuracy of 3:1 minus softmax, needles and copy, equal depth: equivalent within the margin.

    Needles within what memory layers hold, and beyond it. Placebo: the memory layers without any
    softmax layer must not be equivalent to softmax as well.
    """
    cells = ("needle", "needle beyond", "copy")
    found = {c: evidence.values("retrieval", _accuracy, c) for c in cells}
    return Judgement(
        samples=[
            Sample(f"{c}: 3:1 minus softmax", v.minus("hybrid", "softmax"), "equivalent") for c, v in found.items()
        ],
        placebo=[
            Sample(f"{c}: no softmax layer", v.minus("memory", "softmax"), "equivalent") for c, v in found.items()
        ],
        twins=[twin for c, v in found.items() for twin in v.twins(f"accuracy, {c}")],
        numbers=[row for c, v in found.items() for row in v.rows(f"accuracy, {c}")],
    )


def hybrid_outperforms(evidence: Evidence) -> Judgement:
    """Accuracy of 3:1 minus softmax on short tasks: no worse than minus the margin.

    Placebo: 3:1 with its softmax layers silenced, by the same rule.
    """
    cells = ("overwrite", "recall")
    found = {c: evidence.values("retrieval", _accuracy, c) for c in cells}
    silenced = {c: evidence.values("retrieval", _silenced, c, ["hybrid"]) for c in cells}
    return Judgement(
        samples=[Sample(f"{c}: 3:1 minus softmax", v.minus("hybrid", "softmax"), "no worse") for c, v in found.items()],
        placebo=[
            Sample(
                f"{c}: 3:1 without its softmax layers",
                _minus(silenced[c].of("hybrid"), found[c].of("softmax")),
                "no worse",
            )
            for c in cells
        ],
        numbers=[row for c, v in found.items() for row in v.rows(f"accuracy, {c}")],
    )


def ratio(evidence: Evidence) -> Judgement:
    """At depth 8, 3:1 minus each other ratio: no worse than minus the margin.

    Ratios with more softmax layers have more KV bytes, 7:1 has fewer: none may be better than 3:1 by the margin. Placebo:
    memory layers alone in the place of 3:1.
    """
    found = evidence.values("ratio", _accuracy)
    return Judgement(
        samples=[Sample(f"3:1 minus {other}", found.minus("3:1", other), "no worse") for other in RATIOS],
        placebo=[Sample(f"memory alone minus {other}", found.minus("memory", other), "no worse") for other in RATIOS],
        twins=found.twins("accuracy"),
        numbers=found.rows("accuracy"),
    )


def quality(evidence: Evidence, arm: str, test: str = "greater") -> Judgement:
    """Test loss of the plain network minus that of `arm` (nats a query), at mini scale.

    Placebo: the plain network's twin, or for "no worse" a network that guesses."""
    loss = evidence.values("quality", lambda run: float(run.records["loss"].mean()))
    plain = "plain" if arm == "residuals" else "experts"
    twin = [sample for sample in loss.twins("loss") if plain in sample.name]
    # "no worse" is true of a network against itself; there the placebo is a network that never saw the data
    placebo = twin if test == "greater" else [Sample("untrained experts", _untrained(evidence, loss, plain), test)]
    return Judgement(
        samples=[Sample(f"loss, {plain} minus {arm}", loss.minus(plain, arm), test)],
        placebo=placebo,
        twins=twin,
        numbers=loss.rows("test loss"),
    )


def _untrained(evidence: Evidence, loss: Values, plain: str) -> dict[int, float]:
    """Loss of the trained network minus that of guessing among all tokens of the vocabulary."""
    size = evidence.runs("quality", arm=plain)[0].task.vocabulary.size
    return {seed: value - math.log(size) for seed, value in loss.of(plain).items()}


def attnres_compute(evidence: Evidence) -> Judgement:
    """Attention residuals against plain ones."""
    return quality(evidence, "residuals")


def latent_moe_quality(evidence: Evidence) -> Judgement:
    """Latent experts against full-width experts."""
    return quality(evidence, "latent experts", "no worse")


def _accuracy(run: Ran) -> float:
    return _mean(run.records)


def _mean(records: pd.DataFrame) -> float:
    return float(records["correct"].mean())


def _silenced(run: Ran) -> float:
    from mnemolab.analysis.interventions import effects

    rows, _ = effects(run.model, run.task, ["drop-softmax"], examples=len(run.batch), seed=run.seed)
    return float(rows["correct"].mean())


def _minus(a: dict[int, float], b: dict[int, float]) -> dict[int, float]:
    return {seed: a[seed] - b[seed] for seed in a if seed in b}
