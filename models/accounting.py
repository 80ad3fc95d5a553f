"""Sizes without weights: parameters, fixed state, cache per token, for any stage, length and precision."""

from typing import Any

import torch

from mnemolab.models.backbone import Backbone
from mnemolab.models.build import model_config
from mnemolab.models.config import ModelConfig
from mnemolab.models.lineage import Stage

__all__ = ["count_parameters", "describe_stage", "skeleton"]


def skeleton(config: ModelConfig) -> Backbone:
    """The model on torch's meta device: every shape, no memory."""
    with torch.device("meta"):
        return Backbone(config)


def count_parameters(config: ModelConfig) -> int:
    """Parameters of a model, none of them allocated."""
    return sum(parameter.numel() for parameter in skeleton(config).parameters())


def describe_stage(stage: Stage, length: int, vocab_size: int = 64) -> dict[str, Any]:
    """Source, and per recipe the mixers, parameters and state elements at make_model's default sizes."""
    recipes = {}
    for recipe in stage.recipes:
        config = model_config(stage.name, vocab_size=vocab_size, recipe=recipe)
        model = skeleton(config)
        recipes[recipe] = {
            "mixers": [config.mixers[kind].family for kind in config.pattern],
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "state_elements": model.state_elements(length),
        }
    return {"source": stage.source, "length": length, "recipes": recipes}
