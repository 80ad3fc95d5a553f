"""Layers of flash-linear-attention as token mixers (`pip install flash-linear-attention`; they need a GPU to run)."""

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any

from torch import nn

from mnemolab.errors import BadRequest, hint

__all__ = ["fla_mixer"]


def fla_mixer(layer: str, **options: Any) -> Callable[[int, int, int], nn.Module]:
    """A factory for `register_mixer`: the class `fla.layers.<layer>` at the width, heads and head_dim of the model.

        register_mixer("fla_kda")(fla_mixer("KimiDeltaAttention"))

    Options are checked against the layer's own signature, for the layer swallows unknown ones. Raises BadRequest when fla is
    absent, has no such layer, or the layer has no such option.
    """
    try:
        layers = import_module("fla.layers")
    except ImportError as error:
        raise BadRequest(
            f"fla layer {layer!r}: cannot import fla.layers ({error}); pip install flash-linear-attention"
        ) from error
    made = getattr(layers, layer, None)
    if not isinstance(made, type):
        names = [name for name in dir(layers) if isinstance(getattr(layers, name), type)]
        raise BadRequest(f"fla has no layer {layer!r}; {hint(layer, names)}")
    taken = signature(made).parameters
    for option in options:
        if option not in taken:
            raise BadRequest(f"fla layer {layer!r} has no option {option!r}; {hint(option, taken)}")

    def factory(width: int, heads: int, head_dim: int) -> nn.Module:
        sizes = {"hidden_size": width, "num_heads": heads, "head_dim": head_dim}
        return made(**{name: size for name, size in sizes.items() if name in taken} | options)

    return factory
