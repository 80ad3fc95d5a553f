"""Settings that would change nothing, and settings that contradict each other: both are refused. Imports no torch."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from mnemolab.errors import BadRequest
from mnemolab.models.config import ExpertsConfig, HeadsConfig, LatentConfig, MemoryConfig, MixerConfig, ModelConfig

__all__ = ["refuse_contradictions", "refuse_idle"]


def refuse_idle(config: ModelConfig, given: Mapping[str, Any], start: tuple[Any, ...]) -> None:
    """Raise BadRequest for an option of `given` that has no effect in `config`.

    In a hybrid it has to have one in either mixer. An option at its default, or at the value that the stage has anyway
    (`start`: the stage's own parts), is no setting: a sweep over stages shares one block of them.
    """
    parts = [config, *config.mixers, *([config.experts] if config.experts else [])]
    idle = [dict(_idle(config, part)) for part in parts]
    for name in given:
        holders = [(part, needs) for part, needs in zip(parts, idle, strict=True) if hasattr(part, name)]
        if not holders or not all(name in needs for _, needs in holders):
            continue
        value = getattr(holders[0][0], name)
        usual = [field.default for part, _ in holders for field in fields(part) if field.name == name]
        usual += [getattr(part, name) for part in start if hasattr(part, name)]
        if value not in usual:
            raise BadRequest(
                f"{name}={value!r} changes nothing in this {config.name!r}: it needs {holders[0][1][name]}; set that too, or "
                f"leave {name} out"
            )


def _idle(config: ModelConfig, part: ModelConfig | MixerConfig | ExpertsConfig) -> Iterator[tuple[str, str]]:
    """Fields of `part` that have no effect, each with what it would need."""
    if isinstance(part, ModelConfig):
        if part.mlp == "none":
            yield "mlp_width", "an mlp"
        if part.experts is None:
            yield "activation", "mlp='moe' or 'latent_moe'"
        if part.residual == "add":
            yield "residual_block", "residual='attention'"
        if len(part.mixers) == 1:
            yield "extra", "a second mixer, as second='gpt2'"
    elif isinstance(part, ExpertsConfig):
        if part.balance != "sign":
            yield "balance_rate", "balance='sign'"
        if config.mlp != "latent_moe":
            yield "latent_width", "mlp='latent_moe'"
            yield "latent_norm", "mlp='latent_moe'"
    elif isinstance(part, LatentConfig):
        if not part.low_rank_query:
            yield "query_rank", "low_rank_query=True"
    elif isinstance(part, HeadsConfig):
        yield from _idle_heads(part)
        if isinstance(part, MemoryConfig):
            yield from _idle_memory(part)


def _idle_heads(part: HeadsConfig) -> Iterator[tuple[str, str]]:
    if not part.conv:
        yield "conv_bias", "a convolution, as conv=4"
    if part.gate == "none":
        yield "gate_rank", "a gate"
    if part.gate == "none" or not part.gate_rank:
        yield "gate_bias", "a gate with a gate_rank"
    if part.gate == "none" or not part.output_norm:
        yield "gate_first", "a gate and output_norm=True"
    if not part.output_norm:
        yield "output_eps", "output_norm=True"
    if part.key_dim:
        yield "expand_key", "key_dim=0"
    if part.value_dim:
        yield "expand_value", "value_dim=0"


def _idle_memory(part: MemoryConfig) -> Iterator[tuple[str, str]]:
    if part.decay == "none":
        yield "half_life", "decay='fixed', 'scalar' or 'channel'"
    if part.decay not in ("scalar", "channel"):
        yield "decay_gate", "decay='scalar' or 'channel'"
    if part.decay not in ("scalar", "channel") or part.decay_gate != "softplus" or part.half_life:
        yield "decay_floor", "decay='scalar' or 'channel', decay_gate='softplus' and half_life=0"
    if part.decay != "channel":
        yield "decay_rank", "decay='channel'"
    if part.write in ("additive", "step"):
        yield "beta_max", "a write that erases, as write='delta'"


def refuse_contradictions(config: ModelConfig) -> None:
    """Raise BadRequest where the model's settings and a mixer's, or its experts', cannot go together."""
    if config.experts is not None and config.experts.dense_layers >= config.depth:
        dense = config.experts.dense_layers
        raise BadRequest(
            f"dense_layers={dense} leaves no layer of depth={config.depth} to the experts; choose "
            f"dense_layers={config.depth - 1} or less, or a depth above {dense}"
        )
    for mixer in config.mixers:
        if config.positions == "rotary" and isinstance(mixer, MemoryConfig) and mixer.feature_map == "elu1":
            raise BadRequest(
                "positions='rotary' with feature_map='elu1': turned features are no longer positive; choose "
                "positions='learned' or 'none', or feature_map='silu_l2'"
            )
