"""Recurrent networks from torch.nn (Elman 1990; Hochreiter and Schmidhuber 1997; Cho et al. 2014)."""

from typing import Any

import torch
from torch import Tensor, nn

from mnemolab.errors import BadRequest
from mnemolab.models.config import ModelConfig, RNNConfig
from mnemolab.models.mixers.base import Mixer
from mnemolab.models.outward import Outward

__all__ = ["RNNMixer"]

_CELLS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


class RNNMixer(Mixer):
    """One layer of heads * head_dim hidden units and a projection to the model's width.

    The state is `h` (B,hidden), for an LSTM also `c` (B,hidden). Parameters start as torch.nn starts them.
    """

    def __init__(self, model: ModelConfig, config: RNNConfig):
        super().__init__()
        if model.positions == "rotary":
            raise BadRequest(
                "positions='rotary': a recurrent network has no queries to turn; choose 'none' or 'learned'"
            )
        self.hidden = model.heads * model.head_dim
        self.parts = ("h", "c") if config.cell == "lstm" else ("h",)
        self.cell = _CELLS[config.cell](model.width, self.hidden, batch_first=True)
        self.outward = Outward(self.hidden, model.width, bias=False)

    def forward(self, x: Tensor, state: Any = None, need_state: bool = True) -> tuple[Tensor, Any]:
        start = None
        if state is not None:
            start = tuple(state[part].unsqueeze(0) for part in self.parts)
            start = start if len(start) == 2 else start[0]
        if not x.shape[1]:  # torch's cells refuse an empty sequence
            held = state or {part: x.new_zeros(x.shape[0], self.hidden) for part in self.parts}
            return torch.zeros_like(x), held if need_state else None
        y, end = self.cell(x, start)
        end = end if isinstance(end, tuple) else (end,)
        held = {part: value.squeeze(0) for part, value in zip(self.parts, end, strict=True)}
        return self.outward(y), held if need_state else None

    def state_parts(self, T: int) -> dict[str, int]:
        return {"hidden": len(self.parts) * self.hidden}
