"""Frozen descriptions of a model and its parts. Nothing here imports torch.

`ModelConfig` holds the sizes and the block; its `mixers` say what the token mixers are and `pattern` which layer has which.
A stage of the lineage (`mnemolab.models.lineage`) is a set of values for these fields.
"""

from dataclasses import dataclass, field
from typing import Any

from mnemolab.errors import BadRequest
from mnemolab.fields import check, setting

__all__ = ["ExpertsConfig", "HeadsConfig", "LatentConfig", "MemoryConfig", "MixerConfig", "ModelConfig", "RNNConfig"]
__all__ += ["SoftmaxConfig", "WrappedConfig", "layer_pattern", "parse_ratio"]


@dataclass(frozen=True)
class MixerConfig:
    """What every token mixer's description has in common: the family's name, a key of `mixers.MIXERS`."""

    family: str = setting("", "which mixer class")

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class HeadsConfig(MixerConfig):
    """The shell around a memory with heads: projections, short convolution, output norm and gate."""

    conv: int = setting(4, "taps of the short causal convolution on q, k and v; 0 for none", low=0, high=16)
    conv_bias: bool = setting(False, "a bias in the short convolution")
    bias: bool = setting(False, "biases in the projections")
    output_norm: bool = setting(True, "RMSNorm on the output of each head")
    # a memory may start with outputs of mean square 1e-11: a norm that makes stages comparable must not see its own epsilon
    output_eps: float = setting(1e-12, "added to the mean square in that norm", low=0.0)
    gate: str = setting("sigmoid", "output gate", choices=("none", "sigmoid", "silu"))
    gate_rank: int = setting(0, "rank of the output gate's projection; 0 for full, -1 for head_dim", low=-1)
    gate_bias: bool = setting(False, "a bias in the low-rank output gate")
    gate_first: bool = setting(False, "gate before a norm over all heads together (Mamba-2), not after a norm per head")
    expand_key: float = setting(1.0, "key channels per head, over head_dim", low=0.0)
    expand_value: float = setting(1.0, "value channels per head, over head_dim", low=0.0)
    key_dim: int = setting(0, "key channels per head; 0 for head_dim * expand_key", low=0)
    value_dim: int = setting(0, "value channels per head; 0 for head_dim * expand_value", low=0)


@dataclass(frozen=True)
class MemoryConfig(HeadsConfig):
    """The memory recurrence: how it decays, what a write is, and what keys are."""

    family: str = setting("memory", "which mixer class")
    decay: str = setting("none", "what a decay rate belongs to", choices=("none", "fixed", "scalar", "channel"))
    decay_gate: str = setting("softplus", "how a rate is computed", choices=("softplus", "bounded", "logsigmoid"))
    decay_rank: int = setting(0, "rank of the channel decay's projection; 0 for head_dim", low=0)
    half_life: float = setting(0.0, "initial half-life in tokens; 0 for the gate's own spread", low=0.0)
    decay_floor: float = setting(1.0, "least initial A of the softplus gate", low=0.0, high=16.0)
    write: str = setting(
        "additive",
        "additive: S + k v. step: scaled by a step size, which drives the decay too. delta: one beta erases and writes. "
        "decoupled: an erase gate per key channel and a write gate per value channel; channel_erase and channel_write keep "
        "the other one a scalar per head",
        choices=("additive", "step", "delta", "decoupled", "channel_erase", "channel_write"),
    )
    beta_max: float = setting(1.0, "largest beta or erase gate; above 1 the memory can reflect", low=0.0, high=2.0)
    feature_map: str = setting(
        "silu_l2", "what makes keys and queries", choices=("silu_l2", "elu1", "silu", "identity")
    )
    normalize: bool | None = setting(None, "divide by the sum of weights; None for elu1 keys with additive writes only")
    key_heads: int = setting(0, "heads of q and k, each shared by heads / key_heads value heads; 0 for all", low=0)
    skip: bool = setting(False, "add a learned multiple of v to the output (Mamba-2's D)")
    scale: float = setting(0.0, "factor on the read; 0 for key_dim ** -0.5", low=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.half_life and not 0.2 <= self.half_life < float("inf"):  # nor nan
            raise BadRequest(
                f"half_life={self.half_life}: give 0.2 tokens or more, 0 for the gate's own spread, or decay='none' to keep all"
            )
        if self.write == "step" and self.decay != "scalar":
            raise BadRequest(f"write='step' needs decay='scalar', not {self.decay!r}: the step size drives the decay")
        if self.write == "step" and self.decay_gate != "softplus":
            raise BadRequest(
                f"decay_gate={self.decay_gate!r} with write='step': the step size is a softplus and drives the decay; choose "
                "decay_gate='softplus', or another write"
            )
        if self.normalize and self.write != "additive":
            raise BadRequest(
                f"normalize=True needs write='additive', not {self.write!r}: a sum of weights has no erasures"
            )
        if self.normalize and self.feature_map != "elu1":
            raise BadRequest(
                f"normalize=True needs feature_map='elu1', not {self.feature_map!r}: weights must be positive"
            )

    @property
    def normalizes(self) -> bool:
        """Whether the output is divided by the sum of weights."""
        if self.normalize is None:
            return self.feature_map == "elu1" and self.write == "additive"
        return self.normalize


@dataclass(frozen=True)
class SoftmaxConfig(HeadsConfig):
    """Softmax attention over a cache of keys and values."""

    family: str = setting("softmax", "which mixer class")


@dataclass(frozen=True)
class LatentConfig(MixerConfig):
    """Multi-head latent attention without positions, with an optional output gate and low-rank queries."""

    family: str = setting("latent", "which mixer class")
    nope_dim: int = setting(0, "query and key channels per head from the latent; 0 for head_dim", low=0)
    shared_dim: int = setting(-1, "key channels that all heads share; -1 for head_dim / 2", low=-1)
    latent_value_dim: int = setting(0, "value channels per head; 0 for head_dim", low=0)
    kv_rank: int = setting(0, "latent numbers cached per token; 0 for the lesser of 4 head_dim and width", low=0)
    low_rank_query: bool = setting(False, "project queries through a narrow layer with a norm")
    query_rank: int = setting(0, "width of that layer; 0 for the lesser of 12 head_dim and half the width", low=0)
    latent_gate: bool = setting(False, "sigmoid gate on the heads' output")


@dataclass(frozen=True)
class RNNConfig(MixerConfig):
    """A recurrent network of heads * head_dim hidden units."""

    family: str = setting("rnn", "which mixer class")
    cell: str = setting("lstm", "the cell", choices=("rnn", "lstm", "gru"))


@dataclass(frozen=True)
class WrappedConfig(MixerConfig):
    """A module of one's own: `factory(width, heads, head_dim)` gives a causal nn.Module (B,T,D) -> (B,T,D)."""

    family: str = setting("wrapped", "which mixer class")
    factory: Any = field(default=None, metadata={"meaning": "makes the module"})


@dataclass(frozen=True)
class ExpertsConfig:
    """A mixture of experts in place of the MLP."""

    experts: int = setting(8, "routed experts", low=1)
    top_k: int = setting(2, "experts a token goes to", low=1)
    shared_experts: int = setting(1, "experts that every token goes to", low=0)
    expert_width: int = setting(
        0, "hidden units of an expert; 0 gives a token's experts the MLP's width together", low=0
    )
    latent_width: int = setting(0, "width the routed experts work in; 0 for half the model's", low=0)
    latent_norm: bool = setting(True, "RMSNorm on what the latent experts say together")
    balance: str = setting("sign", "how the router's bias is moved", choices=("none", "sign", "quantile"))
    balance_rate: float = setting(1e-3, "step of sign balancing", low=0.0)
    routed_scale: float = setting(1.0, "factor on the weights of the chosen experts", low=0.0)
    dense_layers: int = setting(1, "leading layers with an MLP", low=0)

    def __post_init__(self) -> None:
        check(self)
        if self.top_k > self.experts:
            raise BadRequest(f"top_k={self.top_k} is above experts={self.experts}; choose top_k <= {self.experts}")


@dataclass(frozen=True)
class ModelConfig:
    """A whole model. `mixers` holds the first and, in a hybrid, the second kind; `pattern` says which layer has which."""

    name: str = setting("", "stage of the lineage")
    recipe: str = setting("matched", "matched or published", choices=("matched", "published"))
    vocab_size: int = setting(64, "tokens", low=1)
    width: int = setting(64, "model width D", low=1)
    depth: int = setting(2, "layers", low=1)
    heads: int = setting(2, "heads", low=1)
    head_dim: int = setting(32, "channels per head; 0 for width / heads", low=0)
    positions: str = setting("none", "how order is given", choices=("none", "learned", "rotary"))
    max_length: int = setting(2048, "rows of the table of learned positions", low=1)
    norm: str = setting("rms", "normalisation", choices=("rms", "layer"))
    norm_eps: float = setting(1e-5, "added to the mean square", low=0.0)
    mlp: str = setting(
        "swiglu", "channel mixer", choices=("none", "relu", "gelu", "swiglu", "situ", "moe", "latent_moe")
    )
    mlp_width: int = setting(0, "hidden units of the MLP; 0 for 4 D, or 8/3 D where it is gated", low=0)
    activation: str = setting("swiglu", "what experts and dense layers use beside a MoE", choices=("swiglu", "situ"))
    bias: bool = setting(False, "biases in the MLP")
    tie_embeddings: bool = setting(True, "one matrix embeds tokens and scores them")
    residual: str = setting("add", "residual rule", choices=("add", "attention"))
    residual_block: int = setting(0, "sub-layers per block of attention residuals; 0 for about eight blocks", low=0)
    init: str = setting("scaled", "how matrices start", choices=("scaled", "normal", "uniform", "xavier"))
    init_std: float = setting(
        0.0,
        "standard deviation of init='normal' and of embeddings; 0 for 0.02, and width ** -0.5 where init='scaled'",
        low=0.0,
    )
    residual_init: bool = setting(
        True, "divide the start of matrices that write to the residual by the root of their number"
    )
    second: str = setting("", "stage whose mixer is the second kind of a hybrid")
    ratio: str = setting("1:0", "layers of the first mixer to layers of the second, repeated")
    extra: bool = setting(False, "one more layer of the second kind at the end when depth > n + m")
    backend: str = setting("auto", "backend of the memory recurrence", choices=("auto", "loop", "chunked", "triton"))
    experts: ExpertsConfig | None = None
    mixers: tuple[MixerConfig, ...] = ()

    def __post_init__(self) -> None:
        check(self)
        if self.mixers:
            layer_pattern(self.depth, self.ratio, self.extra)

    @property
    def std(self) -> float:
        """Standard deviation at the start of embeddings, and of matrices where init='normal'."""
        return self.init_std or (self.width**-0.5 if self.init == "scaled" else 0.02)

    @property
    def pattern(self) -> tuple[int, ...]:
        """Index into `mixers` of each layer."""
        return layer_pattern(self.depth, self.ratio, self.extra)

    @property
    def sublayers(self) -> int:
        """Writers to the residual stream in a layer: the token mixer and, where there is one, the channel mixer."""
        return 1 if self.mlp == "none" else 2

    @property
    def hidden(self) -> int:
        """Hidden units of the MLP."""
        if self.mlp_width:
            return self.mlp_width
        return 4 * self.width if self.mlp in ("relu", "gelu") else -(-8 * self.width // 24) * 8


def parse_ratio(ratio: str) -> tuple[int, int]:
    """`"3:1"` -> (3, 1)."""
    if not isinstance(ratio, str):
        raise BadRequest(f"ratio={ratio!r}: write it in quotes, as '3:1'; YAML takes digits and a colon for a number")
    first, _, second = ratio.partition(":")
    if not (first.isdecimal() and second.isdecimal() and int(first) + int(second)):
        raise BadRequest(f"ratio={ratio!r}: write layers of the first kind to layers of the second, as in '3:1'")
    return int(first), int(second)


def layer_pattern(depth: int, ratio: str, extra: bool = False) -> tuple[int, ...]:
    """0 where a layer has the first mixer, 1 where it has the second.

    n of the first and m of the second are repeated, and the last layer is of the second kind (Kimi Linear: 27 layers at
    3:1 have it at 4, 8, ..., 24 and 27). `extra` adds one more of the second kind when depth > n + m (Kimi K3).
    """
    n, m = parse_ratio(ratio)
    if m == 0:
        return (0,) * depth
    if depth < n + m:
        raise BadRequest(f"depth={depth} cannot hold a {ratio} hybrid; give depth {n + m} or more, or a smaller ratio")
    repeated = depth - 1 if extra and depth > n + m else depth
    pattern = [0 if layer % (n + m) < n else 1 for layer in range(repeated)]
    pattern[-1] = 1
    return (*pattern, *[1] * (depth - repeated))
