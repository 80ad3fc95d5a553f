"""Claims that need no training: `mnemolab.analysis.claims.checks.CHECKS` has a function for each."""

from mnemolab.analysis.claims.claim import Claim

__all__ = ["CHECKED"]

_WRONG = "the check run on a case that breaks the claim (in the tests) must fail"


def _checked(id: str, kind: str, statement: str, source: str, statistic: str, direction: str, unit: str) -> Claim:
    return Claim(id, statement, source, kind, statistic, direction, 0.0, unit, "checks", _WRONG)


CHECKED = (
    _checked(
        "order-from-recurrence", "exact",
        "one latent-attention layer without positions or convolution sees a set; a KDA layer below it sees an order",
        "arXiv 2510.26692, section 4", "change of the last output under a permutation of the past",
        "none without KDA, some with it", "relative change",
    ),
    _checked(
        "kv-cache-equal", "exact", "decoding with a cache equals recomputing the prefix",
        "Radford et al. 2019", "largest difference of the logits, every stage", "within rounding", "relative error",
    ),
    _checked(
        "kv-bytes", "count", "a 3:1 hybrid keeps 7/27 (Kimi Linear) and 24/93 (Kimi K3) of the cache",
        "arXiv 2510.26692; 2607.24653", "layers and bytes that grow with the context", "as counted", "share",
    ),
    _checked(
        "chunk-exact", "exact", "the chunkwise form equals the recurrence at any chunk size",
        "arXiv 2406.06484", "largest difference of outputs, states and gradients", "within rounding", "relative error",
    ),
    _checked(
        "attnres-zero-plain", "exact", "attention residuals with zero pseudo-queries are the plain network",
        "arXiv 2607.24653", "largest difference of the outputs", "within rounding", "relative error",
    ),
    _checked(
        "latent-moe-flops", "count", "latent experts about halve the arithmetic of the experts",
        "arXiv 2607.24653", "multiplications a token, latent over full width", "about one half", "ratio",
    ),
    _checked(
        "scale-22580", "count", "22,580 GPT-2s fit in one Kimi K3",
        "the lineage articles (2.8T by 124M)", "parameters of both, counted from their configurations", "within 2%", "ratio",
    ),
    _checked(
        "fixed-state-constant", "cost",
        "decoding costs the same at any context with a fixed state, rises with softmax, and lies in between for 3:1",
        "arXiv 2006.16236; 2510.26692", "time and bytes a token against context", "flat, rising, between", "ratio",
    ),
    _checked(
        "linear-training", "cost",
        "training time grows as T for the recurrence and T^2 for attention; flash attention changes the constant; RNNs cannot "
        "use the time axis",
        "arXiv 2406.06484; 2205.14135", "power of T of the time of a step", "1 and 2", "exponent",
    ),
    _checked(
        "chunk-cost", "cost", "the chunk of one token has the fewest operations and is not the fastest",
        "arXiv 2406.06484", "counted operations and measured time against chunk size", "fewest is not fastest", "ratio",
    ),
    _checked(
        "situ-fused", "cost", "unfused SiTU costs well above SwiGLU; fused it does not",
        "arXiv 2607.24653", "time over SwiGLU's at the stated shape", "well above 1 unfused, near 1 fused", "ratio",
    ),
    _checked(
        "attnres-latency", "cost", "Block AttnRes adds a few percent latency",
        "arXiv 2607.24653", "latency over plain residuals'", "a few percent", "ratio",
    ),
)  # fmt: skip
