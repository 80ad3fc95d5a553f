"""The lineage table: every stage, from recurrent networks to Kimi K3, as values for the fields of `config.py`.

Importing this costs no torch. `matched` puts every stage in one block, so that only the memory rule differs; `published`
takes its parts from the paper and the sizes from the caller.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mnemolab.errors import BadRequest
from mnemolab.models.config import MemoryConfig, MixerConfig, SoftmaxConfig, WrappedConfig
from mnemolab.registry import Entry, Registry

__all__ = ["STAGES", "Recipe", "Stage", "describe", "register_mixer"]


@dataclass(frozen=True)
class Recipe:
    """Values for a `ModelConfig`: the mixers, and the block around them."""

    mixers: tuple[MixerConfig, ...]
    model: Mapping[str, Any] = field(default_factory=dict)
    experts: Mapping[str, Any] = field(default_factory=dict)
    depth: int = 2


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


_MATCHED: dict[str, Recipe] = {
    "gpt2": Recipe((SoftmaxConfig(),)),
    "linear_attention": Recipe(_memory()),
    "deltanet": Recipe(_memory(write="delta")),
    "gated_deltanet": Recipe(_memory(decay="scalar", write="delta")),
    "kda": Recipe(_memory(decay="channel", write="delta")),
}
_PUBLISHED: dict[str, Recipe] = {}

_ROWS = {
    "gpt2": ("softmax attention over a growing cache", "Radford et al. 2019"),
    "linear_attention": ("additive fixed-state memory", "Katharopoulos et al. 2020, arXiv 2006.16236"),
    "deltanet": ("writes the difference, so a key's old value is overwritten", "Yang et al. 2024, arXiv 2406.06484"),
    "gated_deltanet": ("the delta rule with one decay per head", "Yang et al. 2024, arXiv 2412.06464"),
    "kda": ("the delta rule with a decay per channel", "Kimi Linear, arXiv 2510.26692"),
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
