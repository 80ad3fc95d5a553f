from argparse import Namespace

import pytest

from mnemolab.benchmarks.kernels_gpu import LARGE, MINI, OPS, _asked
from mnemolab.errors import BadRequest


def test_sizes_by_name_and_by_shape():
    assert _asked(Namespace()) == (list(OPS), [*MINI, *LARGE])
    assert _asked(Namespace(ops="kda", sizes="2x3x1x8,large,2x3x1x8")) == (["kda"], [(2, 3, 1, 8), *LARGE])


@pytest.mark.parametrize("size", ("64x5", "64x512x4x64x", "0x1x1x1", "ax1x2x3", "1x1x1x-1", "huge"))
def test_a_size_that_is_none(size):
    with pytest.raises(BadRequest, match="BxTxHxD"):
        _asked(Namespace(ops="kda", sizes=size))


def test_an_unknown_op():
    with pytest.raises(BadRequest, match="gated_deltanet"):
        _asked(Namespace(ops="gated_deltanets"))
