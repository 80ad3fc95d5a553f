"""Which split an example belongs to, where the space of examples is too small for independent streams."""

import torch
from torch import Tensor

from mnemolab.tasks.vocabulary import Vocabulary

__all__ = ["CONTENT_BITS", "LEAST_BITS", "belongs", "content", "content_hash", "part"]

# Streams of 1e8 and 1e5 examples over 2**80 share one with probability 1e13 / 2**80 < 1e-11.
CONTENT_BITS = 80
# Below 4096 different examples a test set would be a handful seen again and again.
LEAST_BITS = 12
_SHARES = {"train": range(12), "validation": range(12, 14), "test": range(14, 16)}  # sixteenths


def content(tokens: Tensor, vocabulary: Vocabulary) -> Tensor:
    """(B,T) the tokens that say something, in order and without gaps, then -1: filler, and the bytes of a text, drop out."""
    hay = vocabulary["bytes"] or vocabulary.filler
    kept = (tokens < hay.start) | (tokens >= hay.stop)
    place = torch.where(kept, kept.long().cumsum(1) - 1, tokens.shape[1])
    front = tokens.new_full((tokens.shape[0], tokens.shape[1] + 1), -1)
    return front.scatter_(1, place, torch.where(kept, tokens, -1))[:, :-1]


def content_hash(tokens: Tensor) -> Tensor:
    """(B,N) tokens, -1 where there is none, to (B,) hashes of 63 bits: a sum with odd multipliers and a mix, in wrapping int64 on any device."""
    places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    multipliers = places * 0x5851F42D4C957F2D + 0x14057B7EF767814F | 1
    multipliers = (multipliers ^ (multipliers >> 29)) * 0x3C79AC492BA7B653 | 1
    mixed = ((tokens + 1) * multipliers).sum(1)
    for shift, factor in ((32, 0x1C69B3F74AC4AE35), (29, 0x5CE4E5B9BF58476D)):
        mixed = (mixed ^ (mixed >> shift)) * factor
    return (mixed ^ (mixed >> 32)) & 0x7FFFFFFFFFFFFFFF


def part(size: int, split: str) -> range:
    """The places of 0 .. size - 1 that are the split's: 12, 2 and 2 sixteenths of them in a row."""
    share = _SHARES[split]
    return range(size * share.start // 16, size * share.stop // 16)


def belongs(tokens: Tensor, split: str) -> Tensor:
    """(B,) whether the hash of each row's tokens names `split`: 12, 2 and 2 sixteenths of the space."""
    share = _SHARES[split]
    sixteenth = content_hash(tokens) >> 59
    return (sixteenth >= share.start) & (sixteenth < share.stop)
