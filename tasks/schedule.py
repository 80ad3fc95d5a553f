"""When each key is bound and bound again: lag and version count are drawn independently of each other.

B batch, K keys, R most bindings of a key, W writes (slots) in a sequence, L lags.
"""

import torch
from torch import Tensor

from mnemolab.tasks.random import Random, sort_distinct

__all__ = ["GAPS", "balanced_counts", "rebound_keys", "schedule", "total_rebindings"]

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


def rebound_keys(keys: int, most: int) -> tuple[int, int]:
    """The least and the most keys that `balanced_counts` binds more than once."""
    whole, pairs, single = _rest(keys, most)
    return keys - whole - min(pairs, 1) - min(single, 1), keys - whole


def schedule(
    random: Random,
    counts: Tensor,
    most: int,
    early: int,
    lags: int,
    gap: str = "any",
    asked: Tensor | None = None,
    late: int = 0,
) -> Tensor:
    """(B,K,R) slot of every binding of every key in order of time, -1 padded; slots run from 0 to early + lags + late - 1.

    `asked` (B,K) is the number of the binding that each key is asked for, the last one when None. These K bindings take K
    different slots of the `lags` after the `early` ones, in random order: the lag in writes is uniform on late .. late +
    lags - 1 whatever the count. `early` must be at least the bindings before the asked ones in any example and `late` those
    after, so every count fits every lag. The other bindings fall on random free slots on their side of the asked one; `gap`
    says where the newest before it falls: "near", the nearest free slot; "far", all of them among the early slots; "any";
    "mixed", one of the three for each key. Slots that are left bind other keys.
    """
    batch, keys = counts.shape
    anchor = random.distinct("last bindings", keys, lags) + early
    if most == 1:
        return anchor[:, :, None]
    before = counts - 1 if asked is None else asked
    mode = None if gap == "any" else torch.full_like(counts, GAPS.index(gap))
    mode = random.below("gap", keys, bound=3) if gap == "mixed" else mode
    slots = early + lags + late
    taken = torch.zeros(batch, slots, dtype=torch.bool, device=counts.device).scatter_(1, anchor, True)
    parts = [anchor[..., None]]
    if early:
        parts.append(_earlier(random, "earlier bindings", anchor, before, min(early, most - 1), taken, early, mode))
    if late:
        # the same with time reversed
        mirror, after = taken.flip(1), counts - 1 - before
        picks = _earlier(random, "later bindings", slots - 1 - anchor, after, min(late, most - 1), mirror, late)
        parts.append(torch.where(picks < _FAR, slots - 1 - picks, _FAR))
    width = sum(part.shape[2] for part in parts)
    place = torch.arange(width, device=counts.device)
    times = sort_distinct(torch.cat(parts, 2) << 10 | place)[..., :most] >> 10
    times = torch.where(times >= _FAR, -1, times)
    return torch.nn.functional.pad(times, (0, most - times.shape[2]), value=-1)


def _earlier(
    random: Random,
    stream: str,
    last: Tensor,
    olds: Tensor,
    most: int,
    taken: Tensor,
    early: int,
    mode: Tensor | None = None,
) -> Tensor:
    """(B,K,most) slots of the `olds` (B,K) bindings of each key before its slot `last`, in any order, _FAR padded.

    `taken` (B, slots) is updated in place. `mode` 1 puts one of them on the nearest free slot, 2 all among the early ones.
    """
    keys, slots, device = last.shape[1], taken.shape[1], last.device
    moved_near = mode is not None  # known on the host: a CUDA graph cannot branch on data
    mode = torch.zeros_like(last) if mode is None else mode
    # keys that take early slots only go first, then keys by their last binding: each then has as many free slots as it needs
    order = sort_distinct(torch.where(mode == 2, 0, last) << 32 | torch.arange(keys, device=device)) & 0xFFFFFFFF
    olds, mode, last = olds.gather(1, order), mode.gather(1, order), last.gather(1, order)
    places = torch.arange(slots, device=device)
    picks = torch.full((*last.shape, most), _FAR, dtype=torch.int64, device=device)
    if moved_near:
        near = (mode == 1) & (olds > 0)
        for j in range(keys):
            free = torch.where(~taken & (places < last[:, j, None]), places, -1).amax(1)
            picks[:, j, most - 1] = torch.where(near[:, j], free, _FAR)
            taken |= (places == free[:, None]) & near[:, j, None]
        olds = olds - near.long()

    # Fisher-Yates over the free slots in order of time: the first `limit` entries hold the free slots before a key's limit
    free = sort_distinct(torch.where(taken, _FAR, 0) + places)
    bound = torch.where(mode == 2, early, last)
    limit = (~taken).long().cumsum(1).gather(1, (bound - 1).clamp(min=0))
    words = random.words(stream, keys, most)
    used = torch.zeros(last.shape[0], dtype=torch.int64, device=device)
    for j in range(keys):
        for v in range(most):
            wanted = v < olds[:, j]
            other = used + (words[:, j, v] * (limit[:, j] - used).clamp(min=1) >> 32)
            here, there = used.clamp(max=slots - 1)[:, None], other.clamp(max=slots - 1)[:, None]
            chosen, moved = free.gather(1, there), free.gather(1, here)
            free.scatter_(1, there, torch.where(wanted[:, None], moved, chosen))
            picks[:, j, v] = torch.where(wanted, chosen[:, 0], picks[:, j, v])
            used = used + wanted.long()
    flat = picks.flatten(1)
    gone = torch.zeros(taken.shape[0], slots + 1, dtype=torch.bool, device=device)
    taken |= gone.scatter_(1, torch.where(flat < _FAR, flat, slots), True)[:, :slots]
    return torch.empty_like(picks).scatter_(1, order[..., None].expand_as(picks), picks)
