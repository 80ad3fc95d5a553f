"""What every token mixer offers to the backbone and to the probes.

B batch, T time, D model width, H heads, K key channels per head, V value channels per head.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from mnemolab.kernels.neighbours.rows import Rows, take_rows

__all__ = ["Mixer", "hooked"]


def hooked(module: nn.Module) -> bool:
    """Whether somebody listens to the calls of `module`, so that it must be called and not gone around."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


class Mixer(nn.Module, ABC):
    """Maps (B,T,D) to (B,T,D), causally, and can continue from a state.

    A state is a dict of tensors with the batch first (`mnemolab.models.state`); None starts. `step` may update the state
    that it is given in place: copy it with `repeat_state` before stepping twice from one state.
    """

    # mixers that intervene, which are memory layers, run on intervention(operands) where one is set (`Backbone.intervene`)
    intervention: Callable[[Any], Any] | None = None
    intervenes = False

    @abstractmethod
    def forward(self, x: Tensor, state: Any = None, need_state: bool = True) -> tuple[Tensor, Any]:
        """(B,T,D) -> (y (B,T,D), state after the last token, or None when `need_state` is False)."""

    def at(self, x: Tensor, rows: Rows) -> Tensor:
        """`forward` from the start, at `rows` of the B*T positions alone: (1,R,D)."""
        return take_rows(self.forward(x, None, False)[0], rows)

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """One token: (B,D) -> (y (B,D), state)."""
        y, state = self.forward(x[:, None], state)
        return y[:, 0], state

    @abstractmethod
    def state_parts(self, T: int) -> dict[str, int]:
        """Floating-point elements of one example's state after T tokens, by kind.

        `memory` has a fixed size and is fp32. `hidden` (of a recurrent network) and `conv` have a fixed size, `cache` grows
        with T, all in the model's dtype.
        """

    def state_elements(self, T: int) -> int:
        """Floating-point elements that one example's state holds after T tokens."""
        return sum(self.state_parts(T).values())

    def trace(self, x: Tensor, state: Any = None) -> dict[str, Any]:
        """What the memory was told at each token, in fp32, from the mixer's input x (B,T,D).

        Keys `q, k` (B,T,H,K), `v` (B,T,H,V), `log_decay` (B,T,H) or (B,T,H,K), `erase` (B,T,H) or (B,T,H,K), `write`
        (B,T,H) or (B,T,H,V); None where the mixer has no such thing.
        """
        return {}

    def no_decay(self) -> set[str]:
        """Names of parameters, below this module, that weight decay must leave alone beside norms, biases and vectors."""
        return set()
