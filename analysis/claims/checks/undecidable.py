"""Claims about quality at scale that no mini-model here can decide."""

from typing import NoReturn

from mnemolab.analysis.claims.checks.check import Undecidable

__all__ = ["attnres_compute", "latent_moe_quality"]


def attnres_compute(tier: str, device: str) -> NoReturn:
    """Attention residuals are worth 1.25 times the compute (2603.15031, scaling fits up to 5.6 PFLOP/s-days).

    Raises Undecidable, always.
    """
    raise Undecidable(
        "the gain is a difference of 0.02 in language-modelling loss between fitted scaling laws, and the tasks here "
        "have no such loss",
        "five model sizes of each residual rule trained on text to their optimal token counts, several seeds each",
    )


def latent_moe_quality(tier: str, device: str) -> NoReturn:
    """Latent experts keep the quality of full-width experts (Kimi K3, 2607.24653; 2601.18089).

    Raises Undecidable, always.
    """
    raise Undecidable(
        "expert capacity shows in how much text a model absorbs; memory tasks of a few hundred tokens use a small part of "
        "one expert",
        "latent and full-width experts trained on text at equal active parameters, with enough tokens to load every expert",
    )
