"""The lineage table: every stage, from recurrent networks to Kimi K3, as values for the fields of `config.py`.

Importing this costs no torch. `matched` puts every stage in one block, so that only the memory rule differs; `published`
takes its parts from the paper and the sizes from the caller.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mnemolab.errors import BadRequest
from mnemolab.models.config import LatentConfig, MemoryConfig, MixerConfig, RNNConfig, SoftmaxConfig, WrappedConfig
from mnemolab.registry import Entry, Registry

__all__ = ["STAGES", "Recipe", "Stage", "describe", "register_mixer"]


@dataclass(frozen=True)
class Recipe:
    """Values for a `ModelConfig`: the mixers, and the block around them."""

    mixers: tuple[MixerConfig, ...]
    model: Mapping[str, Any] = field(default_factory=dict)
    experts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """A row of the table. `recipes` maps `matched` and `published` to their Recipe; the first one is the default."""

    name: str
    summary: str
    source: str
    recipes: Mapping[str, Recipe]

    def recipe(self, name: str | None) -> tuple[str, Recipe]:
        """The recipe's name and values; None is the default. Raises BadRequest when the stage has no such recipe."""
        if name is None:
            name = next(iter(self.recipes))
        if name not in self.recipes:
            raise BadRequest(f"recipe={name!r}: stage {self.name!r} has {' and '.join(self.recipes)} only")
        return name, self.recipes[name]


def _memory(**values: Any) -> tuple[MixerConfig, ...]:
    return (MemoryConfig(**values),)


# One block: short convolution, RMSNorm and sigmoid output gate per head, SwiGLU, no positions. Only the memory rule differs.
_KDA = MemoryConfig(decay="channel", write="delta")
_KDA_BOUNDED = MemoryConfig(decay="channel", write="delta", decay_gate="bounded")
_MATCHED: dict[str, Recipe] = {
    "gpt2": Recipe((SoftmaxConfig(),)),
    "linear_attention": Recipe(_memory()),
    "mamba2": Recipe(_memory(decay="scalar", write="step")),
    "gla": Recipe(_memory(decay="channel")),
    "deltanet": Recipe(_memory(write="delta")),
    "gated_deltanet": Recipe(_memory(decay="scalar", write="delta")),
    "kda": Recipe((_KDA,)),
    "gated_deltanet2": Recipe(_memory(decay="channel", write="decoupled")),
    "kimi_linear": Recipe((_KDA, SoftmaxConfig()), {"ratio": "3:1"}),
    "kimi_k3": Recipe((_KDA_BOUNDED, SoftmaxConfig()), {"ratio": "3:1", "extra": True}),
}

_NORMAL = {"init": "normal", "residual_init": False}
_RECURRENT = {"init": "uniform", "residual_init": False, "mlp": "gelu"}
_PAPER_EPS = 1e-5  # of the norm on the heads' output, in every paper here
_KDA_PUBLISHED = MemoryConfig(decay="channel", write="delta", gate_rank=-1, output_eps=_PAPER_EPS)


def _paper_memory(**values: Any) -> tuple[MixerConfig, ...]:
    return _memory(output_eps=_PAPER_EPS, **values)


_PUBLISHED: dict[str, Recipe] = {
    "rnn": Recipe((RNNConfig(cell="rnn"),), _RECURRENT),
    "lstm": Recipe((RNNConfig(cell="lstm"),), _RECURRENT),
    "gru": Recipe((RNNConfig(cell="gru"),), _RECURRENT),
    "gpt2": Recipe(
        (SoftmaxConfig(conv=0, bias=True, output_norm=False, gate="none"),),
        {"norm": "layer", "positions": "learned", "mlp": "gelu", "bias": True, "init": "normal"},
    ),
    # without decay or convolution nothing but positions tells the order
    "linear_attention": Recipe(
        _paper_memory(conv=0, output_norm=False, gate="none", feature_map="elu1", scale=1.0),
        {"positions": "learned", "init": "uniform", "residual_init": False},
    ),
    # the paper stacks mixers alone, which is mlp="none"
    "mamba2": Recipe(
        _paper_memory(
            conv_bias=True,
            gate="silu",
            gate_first=True,
            key_heads=1,
            expand_value=2.0,
            decay="scalar",
            write="step",
            feature_map="silu",
            skip=True,
            scale=1.0,
        ),
        {"init": "uniform"},
    ),
    "gla": Recipe(
        _paper_memory(
            conv=0,
            gate="silu",
            expand_key=0.5,
            decay="channel",
            decay_gate="logsigmoid",
            decay_rank=16,
            feature_map="identity",
        ),
        _NORMAL,
    ),
    "deltanet": Recipe(_paper_memory(write="delta", gate="none"), _NORMAL),
    "gated_deltanet": Recipe(
        _paper_memory(decay="scalar", decay_floor=0.0, write="delta", gate="silu", expand_value=2.0), _NORMAL
    ),
    "kda": Recipe((_KDA_PUBLISHED,), _NORMAL),
    "gated_deltanet2": Recipe(
        _paper_memory(decay="channel", write="decoupled", gate="silu", gate_rank=-1, gate_bias=True),
        {"init": "xavier", "residual_init": False},
    ),
    "kimi_linear": Recipe(
        (_KDA_PUBLISHED, LatentConfig()),
        {**_NORMAL, "ratio": "3:1", "mlp": "moe", "tie_embeddings": False},
        {"routed_scale": 2.446},
    ),
    "kimi_k3": Recipe(
        (replace(_KDA_BOUNDED, output_eps=_PAPER_EPS), LatentConfig(low_rank_query=True, latent_gate=True)),
        {
            **_NORMAL,
            "ratio": "3:1",
            "extra": True,
            "mlp": "latent_moe",
            "activation": "situ",
            "residual": "attention",
            "tie_embeddings": False,
        },
        {"shared_experts": 2, "balance": "quantile"},
    ),
}

_ROWS = {
    "rnn": ("a hidden vector, rewritten at every token", "Elman 1990"),
    "lstm": ("a hidden vector behind gates", "Hochreiter and Schmidhuber 1997"),
    "gru": ("a hidden vector behind two gates", "Cho et al. 2014, arXiv 1406.1078"),
    "gpt2": ("softmax attention over a growing cache", "Radford et al. 2019"),
    "linear_attention": ("additive fixed-state memory", "Katharopoulos et al. 2020, arXiv 2006.16236"),
    "mamba2": ("additive memory with one decay per head, tied to the step size", "Dao and Gu 2024, arXiv 2405.21060"),
    "gla": ("additive memory with a decay per channel", "Yang et al. 2023, arXiv 2312.06635"),
    "deltanet": ("writes the difference, so a key's old value is overwritten", "Yang et al. 2024, arXiv 2406.06484"),
    "gated_deltanet": ("the delta rule with one decay per head", "Yang et al. 2024, arXiv 2412.06464"),
    "kda": ("the delta rule with a decay per channel", "Kimi Team 2025, arXiv 2510.26692"),
    "gated_deltanet2": ("the delta rule with separate erase and write gates", "arXiv 2605.22791"),
    "kimi_linear": ("three KDA layers to one of latent attention", "Kimi Team 2025, arXiv 2510.26692"),
    "kimi_k3": ("the 3:1 hybrid with latent experts and attention residuals", "Kimi Team 2026, arXiv 2607.24653"),
}


def _stage(name: str) -> Stage:
    summary, source = _ROWS[name]
    held = {"matched": _MATCHED, "published": _PUBLISHED}
    return Stage(name, summary, source, {recipe: rows[name] for recipe, rows in held.items() if name in rows})


STAGES = Registry("stage", {name: Entry(_stage(name), _ROWS[name][0]) for name in _ROWS})


def register_mixer(name: str, *, summary: str = "", source: str = "") -> Callable[[Any], Any]:
    """Decorator: adds a stage `name` whose mixer is a causal nn.Module (B,T,D) -> (B,T,D) of one's own.

    What is decorated is called as `factory(width, heads, head_dim)`.
    """

    def add(factory: Any) -> Any:
        mixer = (WrappedConfig(factory=factory),)
        row = Stage(name, summary, source, {"matched": Recipe(mixer), "published": Recipe(mixer)})
        doc = (getattr(factory, "__doc__", None) or "").strip().partition("\n")[0]
        STAGES.register(name, summary=summary or doc)(row)
        return factory

    return add


def describe(name: str, length: int = 256) -> dict[str, Any]:
    """What `mnemolab list models --json` says of a stage, at make_model's default sizes and a vocabulary of 64.

    Per recipe: mixers, fields, parameters and state elements after `length` tokens.
    """
    from mnemolab.models.accounting import describe_stage

    return describe_stage(STAGES[name], length)
