"""Counter-based random numbers: Philox4x32-10 in integer tensor operations, the same bits on CPU and CUDA.

Every number is a pure function of (task salt, split, seed) in the key and (example index, attempt, stream name, counter) in
the counter, so an example does not depend on the batch, the worker or the device that makes it. Words are 32-bit, held in
int64. Only integer arithmetic, tables and sorts of distinct integers follow: nothing rounds differently on another device.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

import math
import zlib
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from mnemolab.errors import BadRequest

__all__ = ["Random", "constant", "philox", "sort_distinct", "thresholds"]

_MASK = 0xFFFFFFFF
_TRITON = find_spec("triton") is not None
_INDEX_BITS = 30  # positions packed below a sort key
_SLOT_BITS = 18  # the same below the larger keys of `weighted_distinct`
_EXPONENTIAL_BITS = 20  # fixed point of `Random.exponential`
_MANTISSA_BITS = 11


def philox(c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, k0: int, k1: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ten rounds of Philox4x32 on int64 tensors (broadcastable) that hold 32-bit words; four tensors of 32-bit words."""
    for _ in range(10):
        # a 32 x 32 bit product wraps in int64 but keeps its 64 bits; the mask drops the sign extension of the shift
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0 = (p1 >> 32).bitwise_and_(_MASK) ^ c1 ^ k0
        c2 = (p0 >> 32).bitwise_and_(_MASK) ^ c3 ^ k1
        c1, c3 = p1.bitwise_and_(_MASK), p0.bitwise_and_(_MASK)
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def sort_distinct(x: Tensor) -> Tensor:
    """Ascending sort of the last axis. With distinct integers every correct sort gives the same bits.

    On the CPU numpy sorts int64 many times faster than torch.
    """
    if x.device.type == "cpu":
        return torch.from_numpy(np.sort(x.numpy(), axis=-1))
    return torch.sort(x, dim=-1).values


@lru_cache(maxsize=4096)
def constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    """(N,) int64 tensor of fixed numbers, moved to the device once: a CUDA graph cannot capture the copy."""
    return torch.tensor(values, dtype=torch.int64, device=device)


def thresholds(weights: Sequence[float]) -> tuple[int, ...]:
    """Upper 32-bit bounds, one an outcome, for `Random.choice`: word u means the first outcome whose bound exceeds u."""
    total, running, bounds = math.fsum(weights), 0.0, []
    for weight in weights:
        running += weight
        bounds.append(round(running / total * 2**32))
    return (*bounds[:-1], 2**32)


@lru_cache(maxsize=256)
def _draws(count: int, size: int) -> int:
    """Draws with replacement from `size` among which fewer than `count` differ with probability below 2**-80."""
    extra = 4
    while True:
        draws = count + extra
        failing = extra + 1  # repeats that would leave too few
        bound = math.lgamma(draws + 1) - math.lgamma(failing + 1) - math.lgamma(draws - failing + 1)
        # while fewer than `count` differ, a draw repeats one of them with probability at most (count - 1) / size
        if count == 1 or bound + failing * math.log((count - 1) / size) < -80 * math.log(2):
            return draws
        extra += 4


@lru_cache(maxsize=1)
def _log_table() -> tuple[int, ...]:
    """-ln((1 + (j + 1/2) / 2**11) / 2) in fixed point, so that -ln(u) = table + leading zeros * ln 2."""
    steps = 1 << _MANTISSA_BITS
    return tuple(round(-math.log((1 + (j + 0.5) / steps) / 2) * 2**_EXPONENTIAL_BITS) for j in range(steps))


class Random:
    """The random numbers of examples `indices` (B,) of one stream (salt, split, seed).

    Every method names its `stream`: two names are two independent sequences, one name gives the same numbers again.
    """

    def __init__(
        self,
        salt: str,
        split: str,
        seed: int,
        indices: Tensor,
        attempt: int | Tensor = 0,
        group: int = 1,
        bare: bool = False,
    ):
        """`attempt` (a number, or one an example) gives other numbers to the same examples. `group` consecutive indices
        share their numbers and differ in `twin` (B,), 0 to group - 1: paired conditions. `bare` asks for the content alone:
        filler and where it stands may be anything, which saves time."""
        self.bare, self.split = bare, split
        digest = blake2b(f"{salt}|{split}|{seed}".encode(), digest_size=8).digest()
        self._key = int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
        self.device = indices.device
        shared = indices // group
        self.twin = indices % group
        self._low = (shared & _MASK)[:, None]
        self._high = ((shared >> 32) + (attempt << 16))[:, None]

    def __len__(self) -> int:
        return self._low.shape[0]

    def words(self, stream: str, *shape: int) -> Tensor:
        """(B, *shape) words, uniform on 0 .. 2**32 - 1."""
        count = math.prod(shape)
        if self.device.type == "cuda" and _TRITON and self._low.get_device() == torch.cuda.current_device():
            from mnemolab.kernels.triton.philox import philox_words

            found = philox_words(self._low[:, 0], self._high[:, 0], zlib.crc32(stream.encode()), self._key, count)
            return found.reshape(len(self), *shape)
        blocks = torch.arange(-(-count // 4), device=self.device)[None, :]
        name = torch.full_like(blocks, zlib.crc32(stream.encode()))
        words = torch.stack(philox(blocks, name, self._low, self._high, *self._key), dim=-1)
        return words.reshape(len(self), -1)[:, :count].reshape(len(self), *shape)

    def below(self, stream: str, *shape: int, bound: int | Tensor) -> Tensor:
        """(B, *shape) integers, uniform on 0 .. bound - 1 to within bound / 2**32; `bound` < 2**31 may be a tensor."""
        return (self.words(stream, *shape) * bound) >> 32

    def noise(self, stream: str, count: int, bound: int) -> Tensor:
        """(B, count) integers on 0 .. bound - 1, two a word: for filler, uniform to within bound / 2**16."""
        words = self.words(stream, -(-count // 2))
        halves = torch.stack((words & 0xFFFF, words >> 16), dim=-1).reshape(len(self), -1)[:, :count]
        return (halves * bound) >> 16

    def choice(self, stream: str, *shape: int, bounds: Sequence[int]) -> Tensor:
        """(B, *shape) outcomes drawn with the tabulated bounds of `thresholds`."""
        table = constant(tuple(bounds[:-1]), self.device)
        return torch.bucketize(self.words(stream, *shape).contiguous(), table, right=True)

    def permutation(self, stream: str, *shape: int) -> Tensor:
        """(B, *shape): the last axis is a random order of 0 .. n - 1."""
        places = torch.arange(shape[-1], device=self.device)
        return sort_distinct(self.words(stream, *shape) << _INDEX_BITS | places) & ((1 << _INDEX_BITS) - 1)

    def distinct(self, stream: str, count: int, size: int) -> Tensor:
        """(B, count) different integers of 0 .. size - 1 in random order, uniform over all such sequences."""
        if size < 8 * count:
            return self.permutation(stream, size)[:, :count]
        # the first `count` different ones of enough draws with replacement; that `_draws` fall short is a 2**-80 event
        draws = _draws(count, size)
        places = torch.arange(draws, device=self.device)
        ordered = sort_distinct(self.below(stream, draws, bound=size) << _INDEX_BITS | places)
        values, places = ordered >> _INDEX_BITS, ordered & ((1 << _INDEX_BITS) - 1)
        repeat = torch.zeros_like(values)
        repeat[:, 1:] = values[:, 1:] == values[:, :-1]
        return sort_distinct(repeat << 62 | places << 32 | values)[:, :count] & _MASK

    def exponential(self, stream: str, *shape: int) -> Tensor:
        """(B, *shape) exponential variables of mean 1, in fixed point with 20 fractional bits, from a table of logarithms."""
        words = self.words(stream, *shape) | 1
        powers = constant(tuple(1 << j for j in range(1, 32)), self.device)
        top = torch.bucketize(words, powers, right=True)  # index of the highest set bit
        mantissa = (words << (31 - top) >> (31 - _MANTISSA_BITS)) & ((1 << _MANTISSA_BITS) - 1)
        return constant(_log_table(), self.device)[mantissa] + (31 - top) * round(math.log(2) * 2**_EXPONENTIAL_BITS)

    def weighted_distinct(self, stream: str, count: int, inverse_weights: Sequence[int]) -> Tensor:
        """(B, count) different places drawn one after the other in proportion to their weights.

        `inverse_weights`: positive integers below 2**20, one a place, in proportion to 1 / weight. The places with the
        smallest exponential / weight are such a sample (Efraimidis and Spirakis 2006). Raises BadRequest beyond 2**18 places.
        """
        if len(inverse_weights) > 1 << _SLOT_BITS:
            raise BadRequest(f"{len(inverse_weights)} places to draw from; the most is {1 << _SLOT_BITS}: lower length")
        inverse = constant(tuple(inverse_weights), self.device)
        places = torch.arange(len(inverse_weights), device=self.device)
        keys = self.exponential(stream, len(inverse_weights)) * inverse
        return sort_distinct(keys << _SLOT_BITS | places)[:, :count] & ((1 << _SLOT_BITS) - 1)
