"""Sizes without weights: parameters, fixed state, cache per token, for any stage, length and precision."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from mnemolab.errors import unknown
from mnemolab.models.backbone import Backbone
from mnemolab.models.build import model_config
from mnemolab.models.channels.moe import Experts
from mnemolab.models.config import ModelConfig
from mnemolab.models.lineage import Stage

__all__ = ["BYTES", "StateBytes", "count_parameters", "describe_stage", "skeleton", "state_bytes"]

BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


def skeleton(config: ModelConfig) -> Backbone:
    """The model on torch's meta device: every shape, no memory."""
    with torch.device("meta"):
        return Backbone(config)


def count_parameters(config: ModelConfig, active: bool = False, embeddings: bool = True) -> int:
    """Parameters of a model, none of them allocated.

    `active` counts those that one token is multiplied with: top_k of a layer's routed experts, and no table that is only
    looked up (the embedding when the head is another matrix, learned positions). `embeddings=False` leaves out the
    embedding, the head and positions.
    """
    model = skeleton(config)
    total = sum(parameter.numel() for parameter in model.parameters())
    tables = [model.embedding, *([] if model.positions is None else [model.positions])]
    if active and config.experts is not None:
        idle = config.experts.experts - config.experts.top_k
        for module in model.modules():
            if isinstance(module, Experts):
                total -= idle * sum(parameter[0].numel() for parameter in module.parameters())
    if not embeddings:
        return total - sum(table.weight.numel() for table in [*tables, *([] if model.head is None else [model.head])])
    if active:
        looked_up = tables if model.head is not None else tables[1:]
        total -= sum(table.weight.numel() for table in looked_up)
    return total


@dataclass(frozen=True)
class StateBytes:
    """Bytes that one sequence holds while decoding: the memory and the convolutions' inputs are fixed, the cache grows."""

    memory: int
    conv: int
    cache_per_token: int
    length: int

    @property
    def fixed(self) -> int:
        return self.memory + self.conv

    @property
    def total(self) -> int:
        return self.fixed + self.length * self.cache_per_token


def state_bytes(
    config: ModelConfig, length: int, precision: str = "bf16", memory_precision: str = "fp32"
) -> StateBytes:
    """State of one sequence of `length` tokens. Caches, convolutions and hidden vectors of recurrent networks are held in
    `precision`, memories in fp32.

    Raises BadRequest for a precision that is not one of fp64, fp32, bf16, fp16, fp8.
    """
    for name in (precision, memory_precision):
        if name not in BYTES:
            raise unknown("precision", name, BYTES)
    parts = {"memory": 0, "hidden": 0, "conv": 0, "cache": 0}
    for block in skeleton(config).layers:
        for part, elements in block.mixer.state_parts(1).items():
            parts[part] += elements
    size = BYTES[precision]
    memory = parts["memory"] * BYTES[memory_precision] + parts["hidden"] * size
    return StateBytes(memory, parts["conv"] * size, parts["cache"] * size, length)


def describe_stage(stage: Stage, length: int, vocab_size: int = 64) -> dict[str, Any]:
    """Source, and per recipe the mixers, parameters, state and fields, at make_model's default sizes."""
    recipes = {}
    for recipe in stage.recipes:
        config = model_config(stage.name, vocab_size=vocab_size, recipe=recipe)
        held = state_bytes(config, length)
        recipes[recipe] = {
            "mixers": [config.mixers[kind].family for kind in config.pattern],
            "depth": config.depth,
            "parameters": count_parameters(config),
            "active_parameters": count_parameters(config, active=True),
            "state_elements": skeleton(config).state_elements(length),
            "fixed_state_bytes": held.fixed,
            "cache_bytes_per_token": held.cache_per_token,
            "fields": _values(config),
        }
    return {"source": stage.source, "length": length, "recipes": recipes}


def _values(config: ModelConfig) -> dict[str, Any]:
    """Every field that `make_model` takes for this stage, and its value here; a second mixer's under `second`."""
    hidden = ("name", "recipe", "mixers", "experts", "family", "factory")
    parts = [config, *([config.experts] if config.experts else []), config.mixers[0]]
    values = {key: value for part in parts for key, value in asdict(part).items() if key not in hidden}
    if len(config.mixers) > 1:
        values["second"] = {key: value for key, value in asdict(config.mixers[1]).items() if key != "factory"}
    return values
