"""Claims that need no training: exact equalities, counts, costs and the oracle's share.

`CHECKS[claim](tier, device)` gives a list of `Check`, or raises `Undecidable`. Nothing here imports torch until a check runs.
"""

from typing import TYPE_CHECKING

from mnemolab.registry import Entry, Registry, lazy_exports

if TYPE_CHECKING:
    from mnemolab.analysis.claims.checks.check import TIERS as TIERS
    from mnemolab.analysis.claims.checks.check import Check as Check
    from mnemolab.analysis.claims.checks.check import Undecidable as Undecidable


def _entry(target: str, summary: str) -> Entry:
    return Entry(f"mnemolab.analysis.claims.checks.{target}", summary)


CHECKS = Registry(
    "check",
    {
        "kv-cache-equal": _entry("exact:kv_cache_equal", "decoding with a state equals recomputing, every stage"),
        "chunk-exact": _entry("exact:chunk_exact", "the chunked form equals the loop at any chunk size, every rule"),
        "attnres-zero-plain": _entry("exact:attnres_zero_plain", "zero pseudo-queries are the plain network"),
        "order-from-recurrence": _entry(
            "exact:order_from_recurrence", "order enters latent attention through KDA only"
        ),
        "kv-bytes": _entry("counted:kv_bytes", "a 3:1 hybrid caches 7/27 and 24/93 of a pure stack"),
        "latent-moe-flops": _entry("counted:latent_moe_flops", "latent experts about halve the experts' arithmetic"),
        "scale-22580": _entry("counted:scale_22580", "how many GPT-2s fit in one Kimi K3"),
        "chunk-cost": _entry("chunk_cost:chunk_cost", "C = 1 has the fewest operations and is not the fastest"),
        "fixed-state-constant": _entry("decoding:fixed_state_constant", "time and bytes of a token against context"),
        "linear-training": _entry("training:linear_training", "the power of T with which training time grows"),
        "situ-fused": _entry("units:situ_fused", "SiTU against SwiGLU, unfused, fused and compiled"),
        "attnres-latency": _entry("units:attnres_latency", "what attention residuals add to latency"),
        "additive-interference": _entry("oracle:additive_interference", "crosstalk N/d, and what random keys cost"),
        "attnres-compute": _entry("undecidable:attnres_compute", "the quality that attention residuals gain"),
        "latent-moe-quality": _entry("undecidable:latent_moe_quality", "the quality of latent experts"),
    },
)

__getattr__, __dir__ = lazy_exports(__name__, {"TIERS": "check", "Check": "check", "Undecidable": "check"})
