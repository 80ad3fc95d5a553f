"""Weights over depth and load of experts, read off a small model that has both."""

import numpy as np
import pytest
import torch

from mnemolab.analysis.decay import residual_weights, router_load
from mnemolab.errors import BadRequest
from mnemolab.models import make_model


@pytest.fixture
def model():
    torch.manual_seed(0)
    return make_model("kimi_k3", vocab_size=40, recipe="published", width=16, heads=2, head_dim=8, depth=4)


TOKENS = torch.arange(24).reshape(2, 12)


def test_pseudo_queries_of_zero_weigh_alike_and_others_do_not(model):
    table = residual_weights(model, TOKENS)
    assert np.allclose(table.groupby("site")["weight"].sum(), 1) and np.allclose(
        table["weight"], table["uniform"], atol=1e-6
    )
    assert table.groupby("site")["source"].count().is_monotonic_increasing and model.training
    with torch.no_grad():
        model.residual.query.normal_()
    other = residual_weights(model, TOKENS)
    assert np.allclose(other.groupby("site")["weight"].sum(), 1, atol=1e-6)
    assert (other["weight"] - other["uniform"]).abs().max() > 0.05
    assert "open" not in vars(model.residual)  # the model is as it was


def test_load_of_experts_is_what_the_router_chose(model):
    table = router_load(model, TOKENS)
    each = table.groupby("layer")
    assert np.allclose(each["load"].sum(), each["even"].sum()) and table["load"].between(0, 1).all()


def test_models_without_them_say_so():
    plain = make_model("deltanet", vocab_size=40, width=16, depth=1, heads=2, head_dim=8)
    with pytest.raises(BadRequest, match="plain residuals"):
        residual_weights(plain, TOKENS)
    with pytest.raises(BadRequest, match="no mixture of experts"):
        router_load(plain, TOKENS)
