"""The chunked form on a GPU, where it is the fallback: the numbers of the CPU, and its errors."""

import pytest
import torch

from mnemolab.errors import BadRequest
from mnemolab.kernels import memory_scan
from tests.kernels.conftest import assert_same, make_operands, run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("normalize", (False, True))
@pytest.mark.parametrize("kinds", (("none",) * 3, ("scalar",) * 3, ("channel",) * 3), ids="-".join)
def test_the_numbers_of_the_cpu(kinds, normalize):
    made = {
        device: run(make_operands(*kinds, normalize=normalize, T=37, device=device), "chunked")
        for device in ("cpu", "cuda")
    }
    assert_same({name: x.cpu() for name, x in made["cuda"].items()}, made["cpu"], 1e-10)


def test_values_are_checked_only_on_request_and_devices_always():
    operands = make_operands("scalar", T=5, device="cuda", dtype=torch.float32)
    operands["log_decay"] = -operands["log_decay"].detach()
    memory_scan(**operands, backend="chunked")
    with pytest.raises(BadRequest, match="log_decay"):
        memory_scan(**operands, backend="chunked", validate=True)
    with pytest.raises(BadRequest, match=r"k is on cpu and q on cuda"):
        memory_scan(**(operands | {"k": operands["k"].cpu()}))
