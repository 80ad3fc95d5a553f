"""Philox in one launch gives the words of the tensor operations."""

import pytest
import torch

from mnemolab.kernels.triton.table import interpreted
from mnemolab.tasks.random import philox

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.skipif(not interpreted() and not torch.cuda.is_available(), reason="needs TRITON_INTERPRET=1 or a GPU")
@pytest.mark.parametrize("count", (1, 2, 3, 4, 7, 300))
@pytest.mark.parametrize("key", ((0, 0), (0xFFFFFFFF, 0x80000000), (123, 0x9E3779B9)))
def test_the_same_words(count, key):
    from mnemolab.kernels.triton.philox import philox_words

    low = torch.tensor([0, 1, 0xFFFFFFFF, 0x80000000, 77], device=DEVICE)
    high = torch.tensor([0, 0xFFFFFFFF, 5, 0x80000000, 1 << 16], device=DEVICE)
    for name in (0, 0xFFFFFFFF, 0x7FFFFFFF, 31337):
        blocks = torch.arange(-(-count // 4), device=DEVICE)[None]
        parts = philox(blocks, torch.full_like(blocks, name), low[:, None], high[:, None], *key)
        wanted = torch.stack(parts, -1).reshape(5, -1)[:, :count]
        assert torch.equal(philox_words(low, high, name, key, count), wanted)
