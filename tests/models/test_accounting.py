"""Sizes without weights: the published models, bytes, and equal sizes."""

import pytest
import torch

from mnemolab.errors import BadRequest
from mnemolab.models import STAGES, count_parameters, make_model, model_config, published_config, state_bytes
from mnemolab.models.accounting import skeleton
from mnemolab.models.state import map_state
from tests.models.stages import ALL, SIZES


@pytest.mark.parametrize(("name", "recipe"), ALL)
def test_counts_are_those_of_the_real_model(name, recipe):
    config = model_config(name, recipe=recipe, **SIZES)
    assert count_parameters(config) == sum(p.numel() for p in make_model(name, recipe=recipe, **SIZES).parameters())


def test_published_sizes():
    gpt2 = count_parameters(published_config("gpt2"))
    assert gpt2 == 124_439_808
    linear, k3 = published_config("kimi_linear_48b"), published_config("kimi_k3")
    # the name's 48B leaves out embedding and head; the papers' active counts leave out what is only looked up
    assert count_parameters(linear, embeddings=False) == pytest.approx(48e9, rel=0.01)
    assert count_parameters(linear, active=True) == pytest.approx(3e9, rel=0.05)
    assert count_parameters(k3) == pytest.approx(2.78e12, rel=0.001)
    assert count_parameters(k3, active=True) == pytest.approx(104.2e9, rel=0.001)
    # the articles' ratio divides 2.8T by 124M
    assert count_parameters(k3) / gpt2 == pytest.approx(22_580, rel=0.02)


def test_counting_the_largest_allocates_nothing():
    model = skeleton(published_config("kimi_k3"))
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert [model.config.mixers[kind].family for kind in model.config.pattern].count("latent") == 24


def test_a_table_that_is_the_head_too_is_used_by_every_token():
    config = published_config("gpt2")
    assert count_parameters(config) - count_parameters(config, active=True) == 1024 * 768  # positions alone
    untied = model_config("gpt2", vocab_size=9, tie_embeddings=False)
    assert count_parameters(untied) - count_parameters(untied, active=True) == 9 * 64


def test_state_bytes_of_the_published_models():
    gpt2 = state_bytes(published_config("gpt2"), 1024)
    assert gpt2.cache_per_token == 36_864 and gpt2.fixed == 0 and gpt2.total == 1024 * 36_864
    linear, k3 = (state_bytes(published_config(name), 1000) for name in ("kimi_linear_48b", "kimi_k3"))
    assert linear.cache_per_token == 7 * 576 * 2 and k3.cache_per_token == 24 * 576 * 2
    assert linear.memory == 40 * 2**20 and k3.memory == 414 * 2**20
    assert state_bytes(published_config("gpt2"), 1, "fp32").cache_per_token == 2 * 36_864
    with pytest.raises(BadRequest, match=r"'bf15'.*'bf16'"):
        state_bytes(published_config("gpt2"), 1, "bf15")


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
@pytest.mark.parametrize(("name", "recipe"), ALL)
@torch.no_grad()
def test_state_bytes_are_those_of_the_real_state(name, recipe, precision, dtype):
    model = make_model(name, recipe=recipe, **SIZES).eval().to(dtype)
    held: list[torch.Tensor] = []
    _, state = model.prefill(torch.zeros(1, 9, dtype=torch.int64))
    map_state(state, lambda tensor: held.append(tensor) or tensor)
    real = sum(tensor.nbytes for tensor in held if tensor.is_floating_point())
    assert state_bytes(model.config, 9, precision).total == real


def test_a_hybrid_caches_its_share_of_a_pure_stack():
    whole = state_bytes(model_config("kimi_linear", recipe="published", vocab_size=9, depth=27, ratio="0:1"), 1)
    hybrid = state_bytes(model_config("kimi_linear", recipe="published", vocab_size=9, depth=27), 1)
    assert hybrid.cache_per_token / whole.cache_per_token == 7 / 27


def test_parameters_can_be_made_equal():
    for name, recipe in ALL:
        options = {"vocab_size": 64, "recipe": recipe, "depth": 4 if name.startswith("kimi") else 1}
        found = count_parameters(model_config(name, match="params", **options), embeddings=False)
        wanted = count_parameters(model_config("gpt2", **options), embeddings=False)
        assert found == pytest.approx(wanted, rel=0.02), (name, recipe)


@pytest.mark.parametrize("name", [name for name in STAGES if name not in ("gpt2", "kimi_linear", "kimi_k3")])
def test_states_can_be_made_equal(name):
    options = {"vocab_size": 64, "recipe": "published", "depth": 1}
    found = skeleton(model_config(name, match="state", **options)).state_elements(500)
    wanted = skeleton(model_config("kda", **options)).state_elements(500)
    assert found == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *[(name, {"positions": "rotary", "recipe": "matched"}) for name in ("linear_attention", "mamba2", "kda")],
        ("mamba2", {"positions": "rotary"}),
        ("gated_deltanet", {"positions": "rotary", "heads": 3, "head_dim": 18}),
        # channels near the most that a head can have
        ("linear_attention", {"head_dim": 192}),
        ("gla", {"head_dim": 150}),
    ],
    ids=str,
)
def test_states_can_be_made_equal_with_even_keys_and_near_the_most_channels(name, options):
    options = {"vocab_size": 9, "recipe": "published", "depth": 1} | options
    model = skeleton(model_config(name, match="state", **options))
    reference = model_config("kda", **{key: value for key, value in options.items() if key != "positions"})
    assert model.state_elements(0) == pytest.approx(skeleton(reference).state_elements(0), rel=0.02)


def test_a_state_that_would_need_too_many_channels_is_refused_with_the_nearest():
    with pytest.raises(BadRequest, match=r"'gla' cannot have \d+ state elements: the nearest .*key_dim and value_dim"):
        model_config("gla", recipe="published", vocab_size=9, match="state", head_dim=256)


def test_a_resized_model_runs():
    torch.manual_seed(0)
    model = make_model("gated_deltanet", vocab_size=9, recipe="published", match="state")
    assert model(torch.zeros(1, 3, dtype=torch.int64)).shape == (1, 3, 9)
    assert vars(model.config.mixers[0])["key_dim"] != 0
