"""From a stage's name and a few values to a model."""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from types import SimpleNamespace
from typing import Any

from mnemolab.errors import BadRequest, hint
from mnemolab.fields import build
from mnemolab.models.config import ExpertsConfig, MixerConfig, ModelConfig, parse_ratio
from mnemolab.models.idle import refuse_contradictions, refuse_idle
from mnemolab.models.lineage import STAGES, Stage

__all__ = ["field_names", "make_model", "model_config"]

# told apart from the rest: they say which stage it is, not what it is made of
_FIXED = ("name", "recipe", "experts", "mixers")


def make_model(name: str, *, vocab_size: int, recipe: str | None = None, **options: Any):
    """The stage `name` as a `Backbone`, freshly initialised from torch's global generator.

    `width=64, depth, heads=2, head_dim=32, positions="none", max_length=2048` and every other field of `ModelConfig`, of
    its experts and of the stage's mixers can be given; `recipe` is `matched` or `published`, None the stage's first.
    Depth defaults to 2, or to the least that a hybrid can have. `second` and `ratio` make a hybrid of any two stages'
    mixers. `match="params"` or `"state"` resizes the stage to gpt2's parameters or kda's state at the same sizes. Raises BadRequest for an unknown stage, recipe or field
    (with the nearest name) and for sizes that cannot fit.
    """
    from mnemolab.models.backbone import Backbone

    return Backbone(model_config(name, vocab_size=vocab_size, recipe=recipe, **options))


def model_config(
    name: str, *, vocab_size: int, recipe: str | None = None, match: str = "none", **options: Any
) -> ModelConfig:
    """What `make_model` would build, with the same options and errors. Imports no torch."""
    stage: Stage = STAGES[name]
    recipe, row = stage.recipe(recipe)
    values = {"name": name, "recipe": recipe, "vocab_size": vocab_size, **row.model}
    mixers = row.mixers
    if options.get("second"):
        mixers = (mixers[0], _second(options["second"], recipe))
        values.setdefault("ratio", "3:1")
    given = {key: value for key, value in options.items() if value is not None or key == "normalize"}
    routed = given.get("mlp", values.get("mlp")) in ("moe", "latent_moe")
    model_names, expert_names, mixer_names = field_names(mixers, routed)
    everything = {"match", *model_names, *expert_names, *mixer_names}
    for option, value in given.items():
        if option not in everything and option in _names(ExpertsConfig):
            elsewhere = ", or recipe='published'" if any(other.experts for other in stage.recipes.values()) else ""
            raise BadRequest(
                f"{option}={value!r}: stage {name!r} ({recipe}) has no experts here; set mlp='moe' or "
                f"'latent_moe'{elsewhere}"
            )
        if option not in everything:
            raise BadRequest(f"model: unknown field {option!r} for stage {name!r}; {hint(option, everything)}")
    values |= {key: value for key, value in given.items() if key in model_names}
    if len(mixers) == 1 and values.get("ratio", "1:0") != "1:0":
        raise BadRequest(
            f"ratio={values['ratio']!r}: stage {name!r} has one mixer; name another with second, as second='gpt2'"
        )
    values.setdefault("depth", max(2, sum(parse_ratio(values["ratio"]))) if "ratio" in values else 2)
    config = build(ModelConfig, values, "model")
    if not config.head_dim:
        if config.width % config.heads:
            raise BadRequest(
                f"heads={config.heads} does not divide width={config.width}; give head_dim, or another number"
            )
        config = replace(config, head_dim=config.width // config.heads)
    experts = None
    if routed:
        chosen = {**row.experts, **{key: value for key, value in given.items() if key in expert_names}}
        experts = build(ExpertsConfig, chosen, "model")
    config = replace(config, mixers=tuple(_with(mixer, given) for mixer in mixers), experts=experts)
    refuse_idle(config, given, (*mixers, SimpleNamespace(**row.model), SimpleNamespace(**row.experts)))
    refuse_contradictions(config)
    return config if match == "none" else _matched(config, match, given)


def _matched(config: ModelConfig, match: str, given: Mapping[str, Any]) -> ModelConfig:
    """`config` resized to the reference of the same sizes: gpt2 for parameters, kda for the state."""
    from mnemolab.models.match import matched

    if match not in ("params", "state"):
        raise BadRequest(f"match={match!r}; {hint(match, ('none', 'params', 'state'))}")
    if match == "params" and config.mlp == "none":
        raise BadRequest(
            "mlp='none': match='params' solves for the MLP's width; keep an mlp, or choose match='none' and a head_dim"
        )
    solved = ("mlp_width", "expert_width") if match == "params" else ("key_dim", "value_dim")
    for name in solved:
        if given.get(name):
            raise BadRequest(f"{name}={given[name]}: match={match!r} solves for it; leave one of the two out")
    sizes = (
        "vocab_size",
        "width",
        "depth",
        "heads",
        "head_dim",
    )
    name = "gpt2" if match == "params" else "kda"
    reference = model_config(name, recipe=config.recipe, **{size: getattr(config, size) for size in sizes})
    return matched(config, reference, match)


def field_names(mixers: tuple[MixerConfig, ...], experts: bool) -> tuple[list[str], list[str], list[str]]:
    """The options that a model takes: its own, its experts' and its mixers'."""
    model = [name for name in _names(ModelConfig) if name not in _FIXED]
    mixer = {name for config in mixers for name in _names(type(config)) if name not in ("family", "factory")}
    return model, _names(ExpertsConfig) if experts else [], sorted(mixer)


def _second(name: str, recipe: str) -> MixerConfig:
    """The mixer of stage `name`, in the recipe if it has that; of a hybrid stage, its second mixer."""
    stage: Stage = STAGES[name]
    row = stage.recipes.get(recipe) or next(iter(stage.recipes.values()))
    return row.mixers[-1]


def _names(cls: type) -> list[str]:
    return [field.name for field in fields(cls)]


def _with(mixer: MixerConfig, options: Mapping[str, Any]) -> MixerConfig:
    """`mixer` with those of the options that it has."""
    chosen = {name: options[name] for name in _names(type(mixer)) if name in options}
    if not chosen:
        return mixer
    return build(type(mixer), {**asdict(mixer), **chosen}, "model")
