"""What needles are hidden in: one sentence over and over, random tokens, Zipf-Markov text, or the user's own text.

B batch, N tokens of haystack.
"""

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from mnemolab.errors import BadRequest
from mnemolab.tasks.random import Random, thresholds
from mnemolab.tasks.splits import part

__all__ = ["HAYSTACKS", "haystack", "read_text"]

HAYSTACKS = ("noise", "random", "markov", "file")
_SUCCESSORS = 8


def read_text(path: str) -> bytes:
    """The bytes of a UTF-8 text file, read anew when it has changed. Raises BadRequest when it cannot be read or is not UTF-8."""
    try:
        state = Path(path).stat()
        return _read(path, state.st_mtime_ns, state.st_size)
    except OSError as error:
        raise BadRequest(f"path={path!r}: cannot be read ({error.strerror}); name a text file") from error
    except UnicodeDecodeError as error:
        raise BadRequest(f"path={path!r}: byte {error.start} is not UTF-8; convert the file") from error


@lru_cache(maxsize=8)
def _read(path: str, changed: int, size: int) -> bytes:
    data = Path(path).read_bytes()
    data.decode("utf-8")
    return data


@lru_cache(maxsize=8)
def _bytes_on(data: bytes, device: torch.device) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device=device, dtype=torch.int64)


@lru_cache(maxsize=16)
def _chain(size: int, device: torch.device) -> Tensor:
    """(size * 8,) successors of each token, most likely first; which ones is Zipf-distributed over the tokens."""
    fixed = Random("zipf-markov", "train", 0, torch.arange(size, device=device))
    bounds = thresholds([1 / rank for rank in range(1, size + 1)])
    return fixed.choice("successors", _SUCCESSORS, bounds=bounds).flatten()


def haystack(random: Random, kind: str, count: int, size: int, path: str = "") -> Tensor:
    """(B,N) tokens 0 .. size - 1 (bytes for "file"). noise: one sentence of `size` tokens over and over; random: uniform;
    markov: a fixed chain with 8 successors a token, the r-th with weight 1 / r; file: a window of the split's part of the text."""
    if random.bare:
        return torch.zeros(len(random), count, dtype=torch.int64, device=random.device)
    place = torch.arange(count, device=random.device)
    if kind == "noise":
        return (random.below("phase", 1, bound=size) + place) % size
    if kind == "random":
        return random.noise("filler", count, size)
    if kind == "file":
        text = _bytes_on(read_text(path), random.device)
        own = part(len(text), random.split)
        return text[own.start + random.below("window", 1, bound=len(own) - count + 1) + place]
    table = _chain(size, random.device)
    steps = random.choice(
        "steps", count, bounds=thresholds([1 / rank for rank in range(1, _SUCCESSORS + 1)])
    ).T.contiguous()
    token = random.below("first token", 1, bound=size)[:, 0]
    tokens = []
    for step in steps:
        tokens.append(token)
        token = table[token * _SUCCESSORS + step]
    return torch.stack(tokens, 1)
