"""From a stage's name and a few values to a model."""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from mnemolab.errors import BadRequest, hint
from mnemolab.fields import build
from mnemolab.models.config import ExpertsConfig, MixerConfig, ModelConfig
from mnemolab.models.lineage import STAGES, Stage

__all__ = ["make_model", "model_config"]

# told apart from the rest: they say which stage it is, not what it is made of
_FIXED = ("name", "recipe", "experts", "mixers")


def make_model(name: str, *, vocab_size: int, recipe: str | None = None, **options: Any):
    """The stage `name` as a `Backbone`, freshly initialised from torch's global generator.

    `width=64, depth, heads=2, head_dim=32, positions="none", max_length=2048` and every other field of `ModelConfig`, of
    its experts and of the stage's mixers can be given; `recipe` is `matched` or `published`, None the stage's first.
    Depth defaults to 2, or to the least that a hybrid can have. Raises BadRequest for an unknown stage, recipe or field
    (with the nearest name) and for sizes that cannot fit.
    """
    from mnemolab.models.backbone import Backbone

    return Backbone(model_config(name, vocab_size=vocab_size, recipe=recipe, **options))


def model_config(name: str, *, vocab_size: int, recipe: str | None = None, **options: Any) -> ModelConfig:
    """What `make_model` would build. Imports no torch."""
    stage: Stage = STAGES[name]
    recipe, row = stage.recipe(recipe)
    known = {part: _names(part) for part in (ModelConfig, *([ExpertsConfig] if row.experts else []))}
    model_names = [field for field in known[ModelConfig] if field not in _FIXED]
    expert_names = known.get(ExpertsConfig, [])
    mixer_names = {field for mixer in row.mixers for field in _names(type(mixer)) if field != "family"}
    everything = [*model_names, *expert_names, *sorted(mixer_names)]
    for option in options:
        if option not in everything:
            raise BadRequest(f"model: unknown field {option!r} for stage {name!r}; {hint(option, everything)}")

    values = {
        "depth": row.depth,
        **row.model,
        **{k: v for k, v in options.items() if k in model_names and v is not None},
    }
    mixers = tuple(_with(mixer, options) for mixer in row.mixers)
    config = build(ModelConfig, {"name": name, "recipe": recipe, "vocab_size": vocab_size, **values}, "model")
    experts = None
    if row.experts:
        chosen = {**row.experts, **{k: v for k, v in options.items() if k in expert_names}}
        experts = build(ExpertsConfig, chosen, "model")
    return replace(config, mixers=mixers, experts=experts)


def _names(cls: type) -> list[str]:
    return [field.name for field in fields(cls)]


def _with(mixer: MixerConfig, options: Mapping[str, Any]) -> MixerConfig:
    """`mixer` with those of the options that it has."""
    chosen = {name: options[name] for name in _names(type(mixer)) if name in options}
    if not chosen:
        return mixer
    return build(type(mixer), {**asdict(mixer), **chosen}, "model")
