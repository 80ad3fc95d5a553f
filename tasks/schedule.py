"""When each key is bound and bound again: lag and version count are drawn independently of each other.

B batch, K keys, R most bindings of a key, W writes (slots) in a sequence, L lags.
"""

import torch
from torch import Tensor

from mnemolab.tasks.random import Random, sort_distinct

__all__ = ["GAPS", "balanced_counts", "schedule", "total_rebindings"]

GAPS = ("any", "near", "far", "mixed")
_FAR = 1 << 20


def _rest(keys: int, most: int) -> tuple[int, int, int]:
    """Whole rounds of counts 1 .. most, then pairs (c, most + 1 - c), then single counts, which make up K keys."""
    whole, rest = divmod(keys, most)
    pairs = rest // 2 if most % 2 == 0 else 0
    return whole, pairs, rest - 2 * pairs


def balanced_counts(random: Random, keys: int, most: int) -> Tensor:
    """(B,K) bindings a key, uniform on 1 .. most: each count equally often as far as K divides; the rest in random pairs
    with a fixed sum where `most` is even, so that the total stays the same, and different random counts otherwise."""
    whole, pairs, single = _rest(keys, most)
    counts = [torch.arange(1, most + 1, device=random.device).repeat(whole).expand(len(random), -1)]
    if pairs:
        low = random.distinct("count pairs", pairs, most // 2) + 1
        counts += [low, most + 1 - low]
    if single:
        counts.append(random.distinct("counts", single, most) + 1)
    return torch.cat(counts, 1).gather(1, random.permutation("count order", keys))


def total_rebindings(keys: int, most: int) -> tuple[int, int]:
    """The least and the most rebindings that `balanced_counts` asks for; the most is what `schedule` needs as `early`."""
    whole, pairs, single = _rest(keys, most)
    fixed = whole * most * (most - 1) // 2 + pairs * (most - 1)
    return fixed + single * (single - 1) // 2, fixed + sum(range(most - single, most))


def schedule(random: Random, counts: Tensor, most: int, early: int, lags: int, gap: str = "any") -> Tensor:
    """(B,K,R) slot of every binding of every key in order of time, -1 padded; slots run from 0 to early + lags - 1.

    The last bindings of the K keys take K different slots among the last `lags`, in random order: the lag in writes is
    uniform on 0 .. lags - 1 whatever the count. The `early` slots before them must be at least the rebindings of any
    example, so every count fits every lag. Earlier bindings fall on random free slots before their key's last one; `gap`
    says where the newest of them falls: "near", the nearest free slot; "far", all of them among the early slots; "any";
    "mixed", one of the three for each key. Slots that are left bind other keys.
    """
    batch, keys = counts.shape
    slots, device = early + lags, counts.device
    last = random.distinct("last bindings", keys, lags) + early
    if most == 1:
        return last[:, :, None]
    olds = counts - 1
    choice = {"any": 0, "near": 1, "far": 2}.get(gap)
    mode = random.below("gap", keys, bound=3) if choice is None else torch.full_like(counts, choice)
    # keys that take early slots only go first, then keys by their last binding: each then has as many free slots as it needs
    far = mode == 2
    order = sort_distinct(torch.where(far, 0, last) << 32 | torch.arange(keys, device=device)) & 0xFFFFFFFF
    olds, mode, last_o = olds.gather(1, order), mode.gather(1, order), last.gather(1, order)

    taken = torch.zeros(batch, slots, dtype=torch.bool, device=device).scatter_(1, last, True)
    places = torch.arange(slots, device=device)
    picks = torch.full((batch, keys, most - 1), _FAR, dtype=torch.int64, device=device)
    if gap in ("near", "mixed"):
        for j in range(keys):
            free = torch.where(~taken & (places < last_o[:, j, None]), places, -1).amax(1)
            near = (mode[:, j] == 1) & (olds[:, j] > 0)
            picks[:, j, most - 2] = torch.where(near, free, _FAR)
            taken |= (places == free[:, None]) & near[:, None]
        olds = olds - (picks[..., -1] < _FAR).long()

    # Fisher-Yates over the free slots in order of time: the first `limit` entries hold the free slots before a key's limit
    free = sort_distinct(torch.where(taken, _FAR, 0) + places)
    bound = torch.where(mode == 2, early, last_o)
    limit = (~taken).long().cumsum(1).gather(1, bound - 1)
    words = random.words("earlier bindings", keys, most - 1)
    used = torch.zeros(batch, dtype=torch.int64, device=device)
    for j in range(keys):
        for v in range(most - 1):
            wanted = v < olds[:, j]
            other = used + (words[:, j, v] * (limit[:, j] - used).clamp(min=1) >> 32)
            here, there = used.clamp(max=slots - 1)[:, None], other.clamp(max=slots - 1)[:, None]
            chosen, moved = free.gather(1, there), free.gather(1, here)
            free.scatter_(1, there, torch.where(wanted[:, None], moved, chosen))
            held = picks[:, j, v]
            picks[:, j, v] = torch.where(wanted, chosen[:, 0], held)
            used = used + wanted.long()

    times = sort_distinct(torch.cat([picks, last_o[..., None]], 2) << 8 | torch.arange(most, device=device)) >> 8
    result = torch.empty_like(times).scatter_(1, order[..., None].expand_as(times), times)
    return torch.where(result >= _FAR, -1, result)
