"""What else decides: the load of each expert, and how attention residuals weigh earlier layers."""

from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.models.backbone import Backbone

__all__ = ["residual_weights", "router_load"]


@torch.no_grad()
def router_load(model: Backbone, inputs: Tensor) -> pd.DataFrame:
    """Share of tokens that each expert takes: columns layer, expert, load, even (the share under perfect balance), weight."""
    from mnemolab.models.channels.moe import MoE

    said: list[tuple[int, Any]] = []
    hooks = [
        block.channel.router.register_forward_hook(lambda _m, _a, out, at=layer: said.append((at, out)))
        for layer, block in enumerate(model.layers)
        if isinstance(block.channel, MoE)
    ]
    if not hooks:
        raise BadRequest("router load: this model has no mixture of experts")
    was_training = model.training
    model.eval()
    try:
        model.features(inputs)
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    rows = []
    for layer, weights in said:
        chosen = weights > 0
        even = float(chosen.sum(-1).float().mean() / weights.shape[-1])
        for expert in range(weights.shape[-1]):
            load, mean = float(chosen[:, expert].float().mean()), float(weights[:, expert].mean())
            rows.append({"layer": layer, "expert": expert, "load": load, "even": even, "weight": mean})
    return pd.DataFrame(rows)


@torch.no_grad()
def residual_weights(model: Backbone, inputs: Tensor) -> pd.DataFrame:
    """How each site of Block AttnRes weighs its sources: columns site, source, weight (mean over tokens), uniform.

    Sources are numbered in time: 0 is the embedding, the last the block under way.
    """
    from mnemolab.models.residual import AttentionResidual, AttentionStream

    rule = model.residual
    if not isinstance(rule, AttentionResidual):
        raise BadRequest("residual weights: this model has plain residuals, not attention residuals")
    found: list[np.ndarray] = []

    class Recorder(AttentionStream):
        def read(self, *norm: Any) -> Tensor:
            probe = rule.query[self.sites] * rule.gain[self.sites]
            scores = [(v * probe).sum(-1) * torch.rsqrt(v.square().mean(-1) + rule.eps) for v in self.sources]
            found.append(torch.stack(scores).softmax(0).mean((1, 2)).cpu().numpy())
            return super().read(*norm)

    was_training = model.training
    model.eval()
    rule.open = lambda h: Recorder(rule, h)  # type: ignore[method-assign]
    try:
        model.features(inputs)
    finally:
        del rule.open
        model.train(was_training)
    rows = [
        {"site": site, "source": source, "weight": float(weight), "uniform": 1 / len(weights)}
        for site, weights in enumerate(found)
        for source, weight in enumerate(weights)
    ]
    return pd.DataFrame(rows)
