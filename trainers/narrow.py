"""The bf16 copies of a model's matrices that autocast would make, made and taken back all at once.

Autocast casts every matrix and every matrix's gradient in a kernel of its own: some twenty of 3 us in a step of 2 ms.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["NarrowWeights"]


class NarrowWeights:
    """Within it, the model's linear maps hold bf16 copies of their float32 matrices; after a backward pass `hand_on` gives the
    matrices the copies' gradients, in float32.

    The numbers are autocast's own. Addresses stay the same from step to step, as a CUDA graph asks. `kept` True says that
    somebody writes the copies whenever the matrices change; else each entry makes them anew. `head` is the copy of the head's
    matrix, for the loss, which sums that gradient in float32 itself.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype = torch.bfloat16):
        head = getattr(model, "head", None)
        linear = [m for m in model.modules() if isinstance(m, nn.Linear) and m is not head]
        found = [m for m in linear if m.weight.dtype == torch.float32 and m.weight.requires_grad]
        # a matrix that several modules hold would be copied, and its gradient counted, more than once
        shared = [id(p) for m in model.modules() for p in m._parameters.values() if p is not None]
        self._modules = [m for m in found if shared.count(id(m.weight)) == 1]
        self._wide: list[Tensor] = [m.weight for m in self._modules]
        self._narrow: list[Tensor] = [nn.Parameter(w.detach().to(dtype)) for w in self._wide]
        self._gradients = [torch.zeros_like(w) for w in self._wide]
        self._copies = {id(w): narrow for w, narrow in zip(self._wide, self._narrow, strict=True)}
        weight = getattr(model, "head_weight", None)
        self.head: Tensor | None = None
        if weight is not None and weight.dtype == torch.float32 and id(weight) not in self._copies:
            self.head = self._copies[id(weight)] = weight.detach().to(dtype)
        self._head = weight
        self.kept = False

    def refresh(self) -> None:
        """Make the copies anew."""
        with torch.no_grad():
            more = [] if self.head is None else [(self.head, self._head)]
            pairs = [*zip(self._narrow, self._wide, strict=True), *more]
            if pairs:
                torch._foreach_copy_([narrow for narrow, _ in pairs], [wide for _, wide in pairs])

    def copy_of(self, parameter: Tensor) -> Tensor | None:
        """The copy of one of the model's parameters, if it has one."""
        return self._copies.get(id(parameter))

    def __enter__(self) -> None:
        for narrow in self._narrow:
            narrow.grad = None  # of the step before, or of one that failed before it could be handed on
        if not self.kept:
            self.refresh()
        self._hold(self._narrow)

    def __exit__(self, *error: object) -> None:
        self._hold(self._wide)

    def _hold(self, weights: Sequence[Tensor]) -> None:
        for module, weight in zip(self._modules, weights, strict=True):
            module._parameters["weight"] = weight  # pyright: ignore[reportArgumentType]

    def hand_on(self) -> None:
        """Give every matrix its copy's gradient, and the copy none."""
        made: list[tuple[Tensor, Tensor, Tensor]] = []
        for wide, narrow, gradient in zip(self._wide, self._narrow, self._gradients, strict=True):
            if narrow.grad is not None:
                made.append((gradient, narrow.grad, wide))
                narrow.grad = None
        if made:
            torch._foreach_copy_([held for held, _, _ in made], [found for _, found, _ in made])
        for held, _, wide in made:
            wide.grad = held
