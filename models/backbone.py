"""The one backbone: embedding, positions, blocks of token mixer and channel mixer, final norm, head.

B batch, T time, D model width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnemolab.errors import BadRequest
from mnemolab.kernels.neighbours.cross_entropy import IGNORED, scored_cross_entropy
from mnemolab.kernels.neighbours.embedding import TokenOrder, embedding
from mnemolab.kernels.neighbours.rows import Rows, choose_rows, take_rows
from mnemolab.models.channels import make_channel_mixer
from mnemolab.models.channels.mlp import GLU, MLP
from mnemolab.models.config import ModelConfig
from mnemolab.models.initialise import initialise
from mnemolab.models.mixers import MIXERS
from mnemolab.models.mixers.base import Mixer, hooked
from mnemolab.models.norms import make_norm
from mnemolab.models.residual import AttentionResidual, SumResidual, residual_block
from mnemolab.models.state import repeat_state, select_state

__all__ = ["Backbone", "Block"]


class Block(nn.Module):
    """norm, token mixer, residual, norm, channel mixer, residual."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        chosen = config.mixers[config.pattern[layer]]
        self.norm1 = make_norm(config.norm, config.width, config.norm_eps)
        self.mixer: Mixer = MIXERS[chosen.family](config, chosen)
        self.channel = make_channel_mixer(config, layer)
        self.norm2 = nn.Identity() if self.channel is None else make_norm(config.norm, config.width, config.norm_eps)

    @property
    def tokenwise(self) -> bool:
        """Whether the channel mixer treats every token for itself; a router in training also counts them all."""
        return self.channel is None or isinstance(self.channel, MLP | GLU)

    def mix(self, x: Tensor, state: Any, need_state: bool, one: bool) -> tuple[Tensor, Any]:
        """What the token mixer makes of the normed stream x (B,T,D), and its state."""
        if one:
            y, state = self.mixer.step(x[:, 0], state)
            return y[:, None], state
        return self.mixer(x, state, need_state)


def _after(outer: Callable[[Any], Any] | None, change: Callable[[int, Any], Any], layer: int, told: Any) -> Any:
    return change(layer, told if outer is None else outer(told))


def _residual(config: ModelConfig) -> SumResidual | AttentionResidual:
    if config.residual == "add":
        return SumResidual()
    sites = config.sublayers * config.depth + 1
    block = config.residual_block or residual_block(config.depth, config.sublayers)
    return AttentionResidual(config.width, sites, block, config.norm_eps)


class Backbone(nn.Module):
    """A causal sequence model over tokens. Build it with `mnemolab.models.make_model`.

    A state is what `features`, `prefill` and `step` return; `step` updates the one it is given in place.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.max_length, config.width) if config.positions == "learned" else None
        self.residual = _residual(config)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.depth))
        self.norm = make_norm(config.norm, config.width, config.norm_eps)
        self.head = None if config.tie_embeddings else nn.Linear(config.width, config.vocab_size, bias=False)
        initialise(self, config)

    @property
    def layers(self) -> list[Block]:
        """The blocks, as what they are."""
        return list(self.blocks)  # type: ignore[arg-type]

    @property
    def head_weight(self) -> Tensor:
        """(vocabulary,D): logits are features @ head_weight.T."""
        return self.embedding.weight if self.head is None else self.head.weight

    def forward(self, inputs: Tensor) -> Tensor:
        """Tokens (B,T) int64 -> logits (B,T,vocabulary)."""
        return self._logits(self.features(inputs)[0])

    def features(self, inputs: Tensor, state: Any = None, return_state: bool = False) -> tuple[Tensor, Any]:
        """Tokens (B,T) -> (hidden (B,T,D) after the final norm, state or None). Continues from `state`."""
        return self._run(inputs, state, return_state, one=False)

    def features_at(self, inputs: Tensor, rows: Tensor | Rows, order: TokenOrder | None = None) -> Tensor:
        """`features` of tokens (B,T) at `rows` (R,) of the B*T positions, row-major and distinct: (R,D). A row of -1 is none.
        Whoever knows the rows' places gives `Rows`, and who knows the tokens' order, `order`.

        What comes out for a row that is none has no meaning and must not be used. Behind the last memory every position is for itself, so there nothing is computed for the other positions.
        """
        chosen = rows if isinstance(rows, Rows) else choose_rows(rows, inputs.numel())
        return self._run(inputs, None, False, one=False, rows=chosen, order=order)[0].squeeze(0)

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over the scored positions, targets (B,T) with -100 elsewhere; a scalar."""
        waiting = torch.compiler.is_compiling() or (inputs.is_cuda and torch.cuda.is_current_stream_capturing())
        if targets.shape != inputs.shape or waiting:
            # a graph cannot wait for the number of scored positions; shapes that do not fit are named below
            return scored_cross_entropy(self.features(inputs)[0], self.head_weight, targets)
        rows = (targets != IGNORED).flatten().nonzero()[:, 0]
        return scored_cross_entropy(
            self.features_at(inputs, rows)[None], self.head_weight, targets.flatten()[None, rows]
        )

    def prefill(self, inputs: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Tokens (B,T) -> (logits (B,T,vocabulary), state after the last token)."""
        hidden, state = self.features(inputs, state, return_state=True)
        return self._logits(hidden), state

    def step(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """One token per example (B,) -> (logits (B,vocabulary), state). The given state is updated in place."""
        hidden, state = self._run(tokens[:, None], state, True, one=True)
        return self._logits(hidden[:, 0]), state

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.head_weight.to(hidden.dtype))

    def _run(
        self,
        inputs: Tensor,
        state: Any,
        need_state: bool,
        one: bool,
        rows: Rows | None = None,
        order: TokenOrder | None = None,
    ) -> tuple[Tensor, Any]:
        h = self._embed(inputs, order)
        held: dict[str, Any] = {"layers": []}
        if self.positions is not None:
            h, held["position"] = self._place(h, state)
        states = [None] * len(self.blocks) if state is None else state["layers"]
        stream = self.residual.open(h)
        for block, layer_state in zip(self.layers, states, strict=True):
            x = stream.read(block.norm1)
            if rows is not None and block is self.blocks[-1] and block.tokenwise and not hooked(block.mixer):
                y = block.mixer.at(x, rows)
                stream.keep(rows)
                rows = None
            else:
                y, layer_state = block.mix(x, layer_state, need_state, one)
            stream.write(y)
            if block.channel is not None:
                stream.write(block.channel(stream.read(block.norm2)))
            held["layers"].append(layer_state)
        hidden = stream.read(self.norm)
        return hidden if rows is None else take_rows(hidden, rows), held if need_state else None

    def _embed(self, inputs: Tensor, order: TokenOrder | None) -> Tensor:
        try:
            return embedding(inputs, self.embedding.weight, order)
        except IndexError as error:  # on the CPU; what a GPU does, `embedding` says
            size = self.config.vocab_size
            wrong = inputs[(inputs < 0) | (inputs >= size)]
            raise BadRequest(f"token {int(wrong[0])} but vocab_size={size}; tokens are 0 to {size - 1}") from error

    def _place(self, h: Tensor, state: Any) -> tuple[Tensor, Tensor]:
        """Add learned positions to h (B,T,D). The counter is kept per example, so that states can be regrouped."""
        B, T, _ = h.shape
        table = self.positions.weight  # type: ignore[union-attr]
        if state is None:
            if T > table.shape[0]:
                raise BadRequest(
                    f"{T} tokens but max_length={table.shape[0]}; make the model with max_length={T} or more"
                )
            return h + table[:T], torch.full((B,), T, device=h.device)
        start = state["position"]
        if h.device.type == "cpu" and int(start.max()) + T > table.shape[0]:
            raise BadRequest(f"token {int(start.max()) + T} but max_length={table.shape[0]}; make the model with more")
        index = start[:, None] + torch.arange(T, device=h.device)
        return h + table[index], start + T

    @staticmethod
    def repeat_state(state: Any, n: int) -> Any:
        """Every example's state n times in a row, example-major; the copies share nothing."""
        return repeat_state(state, n)

    @staticmethod
    def select_state(state: Any, index: Tensor) -> Any:
        """Copies of the states of the examples `index` (N,) int64."""
        return select_state(state, index)

    def state_elements(self, T: int) -> int:
        """Floating-point elements that one example's state holds after T tokens."""
        return sum(block.mixer.state_elements(T) for block in self.layers)

    def traces(self, inputs: Tensor) -> list[dict[str, Any]]:
        """What each layer's memory was told (see `Mixer.trace`), in fp32, for tokens (B,T).

        Runs in evaluation mode, so that routers do not take it for a training step.
        """
        found: list[dict[str, Any]] = []
        training = [module for module in self.modules() if module.training]
        hooks = [
            block.mixer.register_forward_pre_hook(lambda mixer, args: found.append(mixer.trace(args[0])))  # type: ignore[operator]
            for block in self.layers
        ]
        try:
            self.eval()
            self.features(inputs)
        finally:
            for hook in hooks:
                hook.remove()
            for module in training:
                module.training = True
        return found

    @contextmanager
    def intervene(self, change: Callable[[int, Any], Any]) -> Iterator[None]:
        """Within, every memory layer runs on change(layer, operands) in place of its own `Operands`.

        Of nested ones the outer comes first. Raises BadRequest for a model without memory layers.
        """
        outer = [block.mixer.intervention for block in self.layers]
        if not any(block.mixer.intervenes for block in self.layers):
            raise BadRequest(
                f"stage {self.config.name!r} has no memory layer to intervene on; take another stage, or a hybrid such as "
                f"name='kda', second={self.config.name!r}"
            )
        for layer, block in enumerate(self.layers):
            block.mixer.intervention = partial(_after, outer[layer], change, layer)
        try:
            yield
        finally:
            for block, before in zip(self.layers, outer, strict=True):
                block.mixer.intervention = before

    def parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Two groups for an optimiser: matrices, which decay, and gates, norms, biases and positions, which do not."""
        spared: set[str] = {"positions.weight"}
        for prefix, module in self.named_modules():
            names = getattr(module, "no_decay", set)()
            spared |= {f"{prefix}.{name}" for name in names}
        named = [(name, parameter) for name, parameter in self.named_parameters() if parameter.requires_grad]
        decays = [parameter for name, parameter in named if parameter.dim() >= 2 and name not in spared]
        rest = [parameter for name, parameter in named if parameter.dim() < 2 or name in spared]
        return [{"params": decays, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
