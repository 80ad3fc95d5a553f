"""Pairs that are written twice: the spacing of the two writes and the lag after the second are drawn apart.

B batch, R repeated pairs, L slots of a window, S largest spacing.
"""

import torch
from torch import Tensor

from mnemolab.tasks.random import Random, constant

__all__ = ["levels", "pairs_needed", "spaced"]


def levels(largest: int) -> tuple[int, ...]:
    """The spacings 1, 2, 4 .. up to `largest`, in writes."""
    return tuple(1 << j for j in range(largest.bit_length()))


def pairs_needed(repeats: int, largest: int) -> int:
    """Pairs that leave room for `repeats` of them to be written twice at any of the spacings.

    The window needs L >= 4 R - 3 slots, so that each of the R pairs finds two free slots of its spacing whatever the others
    took, and L > S; L is pairs + R - S.
    """
    most = levels(largest)[-1]
    return max(3 * repeats - 3 + most, 2 * most + 1 - repeats)


def spaced(random: Random, repeats: int, writes: int, largest: int) -> tuple[Tensor, Tensor]:
    """(B,R) slots of the first and of the second write of each repeated pair, all different, on 0 .. writes - 1.

    Spacings run through their levels from a random one on, so each is as frequent. Pairs are placed on a circle of the last
    L slots, which is then turned by a random amount: the lag after the second write is uniform on 0 .. L - 1 and independent
    of all spacings. A first write that the turn takes across the start of the window stands in the S slots before it.
    """
    device, sizes = random.device, levels(largest)
    window, place = writes - sizes[-1], torch.arange(writes - sizes[-1], device=device)
    turn = random.below("first spacing", 1, bound=len(sizes)) + torch.arange(repeats, device=device)
    spacing = constant(sizes, device)[turn % len(sizes)]
    words = random.words("spaced pairs", repeats)
    taken = torch.zeros(len(random), window, dtype=torch.bool, device=device)
    first = []
    for pair in range(repeats):
        other = (place + spacing[:, pair, None]) % window
        free = ~(taken | taken.gather(1, other))
        nth = words[:, pair] * free.sum(1) >> 32
        at = (free.long().cumsum(1) <= nth[:, None]).sum(1, keepdim=True)
        taken = taken.scatter(1, at, True).scatter(1, other.gather(1, at), True)
        first.append(at)
    turned = torch.cat(first, 1) + spacing + random.below("turn", 1, bound=window)
    second = turned % window + sizes[-1]
    return second - spacing, second
