"""Any causal nn.Module (B,T,D) -> (B,T,D) as a token mixer."""

from typing import Any

from torch import Tensor, nn

from mnemolab.errors import BadRequest
from mnemolab.models.config import ModelConfig, WrappedConfig
from mnemolab.models.mixers.base import Mixer
from mnemolab.models.state import Cache

__all__ = ["WrappedMixer"]


class WrappedMixer(Mixer):
    """Runs a module that knows no state. Its state is therefore all its inputs, which are run again for every token.

    A module that returns a tuple, as flash-linear-attention's layers do, is taken at its first element.
    """

    def __init__(self, model: ModelConfig, config: WrappedConfig):
        super().__init__()
        self.width = model.width
        module = config.factory(model.width, model.heads, model.head_dim)
        if not isinstance(module, nn.Module):
            raise BadRequest(f"model.name={model.name!r}: its mixer made a {type(module).__name__}, not an nn.Module")
        self.module = module

    def forward(self, x: Tensor, state: Any = None, need_state: bool = True) -> tuple[Tensor, Any]:
        history = Cache.of(x) if state is None else state["inputs"].append(x)
        y = self.module(history.view)
        y = y[0] if isinstance(y, tuple) else y
        if y.shape != history.view.shape:
            raise BadRequest(f"the mixer mapped {tuple(history.view.shape)} to {tuple(y.shape)}; it must keep (B,T,D)")
        return y[:, y.shape[1] - x.shape[1] :], {"inputs": history} if need_state else None

    def state_parts(self, T: int) -> dict[str, int]:
        return {"cache": T * self.width}
