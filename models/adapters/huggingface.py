"""Any causal language model of Hugging Face transformers, with the interface of a `Backbone` (an optional library).

Made for evaluation: prefill, step, forked scoring. Tokens are the task's own ids unless `token_ids` translates them.
"""

import copy
from collections.abc import Sequence
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from mnemolab.errors import BadRequest
from mnemolab.kernels.neighbours.cross_entropy import scored_cross_entropy
from mnemolab.kernels.neighbours.rows import choose_rows, take_rows

__all__ = ["HuggingFaceModel"]


class HuggingFaceModel(nn.Module):
    """Wraps a causal LM, or loads one: a name or folder for `AutoModelForCausalLM.from_pretrained`.

    `token_ids` (vocabulary of the task) gives the model's id of every token of a task; logits come back in the task's
    vocabulary. None takes the task's ids as they are, and all of the model's vocabulary. Raises BadRequest when
    transformers is absent, or when the model has no output embeddings.
    """

    token_ids: Tensor | None

    def __init__(self, model: Any, token_ids: Sequence[int] | None = None):
        super().__init__()
        self.model = _load(model) if isinstance(model, str) else model
        if self.model.get_output_embeddings() is None:
            raise BadRequest(f"{type(self.model).__name__} has no output embeddings; give a causal language model")
        # the argument's name changes with transformers 5.40
        body = self.model.base_model
        self.cache_name = (
            "cache" if "cache" in signature(getattr(body, "forward", body)).parameters else "past_key_values"
        )
        ids = None if token_ids is None else torch.as_tensor(list(token_ids), dtype=torch.int64)
        self.register_buffer("token_ids", ids)

    @property
    def head_weight(self) -> Tensor:
        """(vocabulary,D): logits are features @ head_weight.T."""
        weight = self.model.get_output_embeddings().weight
        return weight if self.token_ids is None else weight[self.token_ids]

    def forward(self, inputs: Tensor) -> Tensor:
        """Tokens (B,T) -> logits (B,T,vocabulary)."""
        return self._logits(self.features(inputs)[0])

    def features(self, inputs: Tensor, state: Any = None, return_state: bool = False) -> tuple[Tensor, Any]:
        """Tokens (B,T) -> (hidden (B,T,D) that the head reads, the library's cache or None). Continues from `state`.

        The cache that is given is updated in place, as the library does; copy it with `repeat_state`.
        """
        ids = inputs if self.token_ids is None else self.token_ids[inputs]
        wanted = {self.cache_name: state, "use_cache": return_state or state is not None}
        out = self.model.base_model(input_ids=ids, **wanted)
        return out.last_hidden_state, getattr(out, self.cache_name) if return_state else None

    def features_at(self, inputs: Tensor, rows: Tensor) -> Tensor:
        """`features` of tokens (B,T) at `rows` (R,) of the B*T positions, row-major and distinct, -1 for none: (R,D)."""
        return take_rows(self.features(inputs)[0], choose_rows(rows, inputs.numel()))[0]

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over the scored positions, targets (B,T) with -100 elsewhere; a scalar."""
        return scored_cross_entropy(self.features(inputs)[0], self.head_weight, targets)

    def prefill(self, inputs: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Tokens (B,T) -> (logits (B,T,vocabulary), cache)."""
        hidden, state = self.features(inputs, state, return_state=True)
        return self._logits(hidden), state

    def step(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """One token per example (B,) -> (logits (B,vocabulary), cache)."""
        logits, state = self.prefill(tokens[:, None], state)
        return logits[:, 0], state

    def _logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.head_weight.to(hidden.dtype).T

    @staticmethod
    def repeat_state(state: Any, n: int) -> Any:
        """Every example's cache n times in a row, example-major; the copies share nothing."""
        copied = copy.deepcopy(state)
        copied.batch_repeat_interleave(n)
        return copied

    @staticmethod
    def select_state(state: Any, index: Tensor) -> Any:
        """Copies of the caches of the examples `index` (N,) int64."""
        copied = copy.deepcopy(state)
        copied.batch_select_indices(index)
        return copied


def _load(name: str) -> Any:
    try:
        transformers = import_module("transformers")
    except ImportError as error:
        raise BadRequest(f"model {name!r}: transformers is not installed; pip install transformers") from error
    return transformers.AutoModelForCausalLM.from_pretrained(name)
