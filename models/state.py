"""What a model remembers between calls: a tree of dicts and lists whose leaves have the batch along axis 0."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Cache", "count_elements", "map_state", "repeat_state", "select_state"]

State = Any  # dict | list | Tensor | Cache | None


class Cache:
    """A (B,T,...) tensor that grows along T. Room is kept ahead, so appending one token copies one token.

    `append` writes into the kept room and returns the cache that holds the longer view. The shorter cache stays valid: what
    is appended to it later goes to a copy, for the room behind it is taken.
    """

    def __init__(self, buffer: Tensor, length: int, taken: list[int] | None = None):
        self.buffer = buffer
        self.length = length
        self.taken = [length] if taken is None else taken  # entries in use, one count shared by all caches of a buffer

    @classmethod
    def of(cls, tensor: Tensor) -> "Cache":
        return cls(tensor, tensor.shape[1])

    @property
    def view(self) -> Tensor:
        """(B,length,...)"""
        return self.buffer[:, : self.length]

    def append(self, new: Tensor) -> "Cache":
        """The cache with `new` (B,n,...) after its last entry."""
        length = self.length + new.shape[1]
        if torch.is_grad_enabled() and (new.requires_grad or self.buffer.requires_grad):
            return Cache.of(torch.cat((self.view, new), 1))
        buffer, taken = self.buffer, self.taken
        if length > buffer.shape[1] or taken[0] != self.length:
            buffer = buffer.new_empty(buffer.shape[0], max(2 * length, 16), *buffer.shape[2:])
            buffer[:, : self.length] = self.view
            taken = [self.length]
        buffer[:, self.length : length] = new
        taken[0] = length
        return Cache(buffer, length, taken)


def map_state(state: State, fn: Callable[[Tensor], Tensor]) -> State:
    """The same tree with `fn` applied to every tensor."""
    if isinstance(state, dict):
        return {name: map_state(part, fn) for name, part in state.items()}
    if isinstance(state, list):
        return [map_state(part, fn) for part in state]
    if isinstance(state, Cache):
        return Cache.of(fn(state.view))
    return state if state is None else fn(state)


def repeat_state(state: State, n: int) -> State:
    """Every example's state `n` times in a row: example-major, (B*n, ...). The copies share nothing."""
    return map_state(state, lambda tensor: tensor.repeat_interleave(n, 0))


def select_state(state: State, index: Tensor) -> State:
    """The states of the examples `index` (N,) int64, as copies."""
    return map_state(state, lambda tensor: tensor.index_select(0, index.to(tensor.device)))


def count_elements(state: State) -> int:
    """Floating-point elements held for one example. Counters of position are not memory and are left out."""
    if isinstance(state, dict):
        return sum(count_elements(part) for part in state.values())
    if isinstance(state, list):
        return sum(count_elements(part) for part in state)
    tensor = state.view if isinstance(state, Cache) else state
    if tensor is None or not tensor.is_floating_point():
        return 0
    return tensor[0].numel()
