"""The table, the options, hybrids, and what a bad request is told."""

import subprocess
import sys
from importlib.resources import files

import pytest
import torch
import yaml

from mnemolab.errors import BadRequest
from mnemolab.models import STAGES, make_model, model_config, register_mixer
from mnemolab.models.config import LatentConfig, MemoryConfig, SoftmaxConfig, layer_pattern
from mnemolab.models.lineage import describe
from tests.models.stages import ALL, SIZES, small, tokens

NAMES = "rnn lstm gru gpt2 linear_attention mamba2 gla deltanet gated_deltanet kda gated_deltanet2 kimi_linear kimi_k3"


def test_the_lineage_is_whole():
    assert sorted(STAGES) == sorted(NAMES.split())
    for name in STAGES:
        wanted = ["published"] if name in ("rnn", "lstm", "gru") else ["matched", "published"]
        assert list(STAGES[name].recipes) == wanted
        assert STAGES.summary(name) and STAGES[name].source


def test_names_cost_no_torch():
    code = (
        "import sys; from mnemolab.models import STAGES, model_config; model_config('kda', vocab_size=9); list(STAGES);"
        "assert 'torch' not in sys.modules, 'torch'; assert 'lightning' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_matched_stages_differ_in_the_memory_rule_only():
    rules = {"decay", "write", "decay_gate", "family"}
    plain = vars(model_config("deltanet", vocab_size=9).mixers[0])
    for name in STAGES:
        if "matched" not in STAGES[name].recipes:
            continue
        for mixer in model_config(name, vocab_size=9, recipe="matched").mixers:
            different = {field for field, value in vars(mixer).items() if plain[field] != value}
            assert different <= rules, (name, different)


@pytest.mark.parametrize(
    ("depth", "ratio", "extra", "second_at"),
    [
        (27, "3:1", False, [4, 8, 12, 16, 20, 24, 27]),
        (93, "3:1", True, [*range(4, 93, 4), 93]),
        (4, "3:1", True, [4]),
        (5, "3:1", True, [4, 5]),
        (8, "3:1", False, [4, 8]),
        (8, "7:1", False, [8]),
        (8, "1:1", False, [2, 4, 6, 8]),
        (3, "0:1", False, [1, 2, 3]),
        (5, "1:2", False, [2, 3, 5]),
        (3, "1:0", False, []),
    ],
)
def test_layer_patterns(depth, ratio, extra, second_at):
    assert [layer + 1 for layer, kind in enumerate(layer_pattern(depth, ratio, extra)) if kind] == second_at


def test_a_hybrid_of_any_two_stages():
    config = model_config("deltanet", second="kimi_linear", recipe="published", depth=5, vocab_size=9)
    assert isinstance(config.mixers[0], MemoryConfig) and isinstance(config.mixers[1], LatentConfig)
    assert config.pattern == (0, 0, 0, 1, 1)
    # a second stage that has no such recipe comes as it is published
    assert model_config("kda", second="lstm", vocab_size=9).mixers[1].family == "rnn"
    both = model_config("kda", second="gla", half_life=7.0, vocab_size=9)
    assert [vars(mixer)["half_life"] for mixer in both.mixers] == [7.0, 7.0]
    assert isinstance(model_config("kimi_k3", vocab_size=9).mixers[1], SoftmaxConfig)


def test_any_stage_takes_experts():
    config = model_config("deltanet", mlp="latent_moe", experts=4, top_k=1, vocab_size=9)
    assert config.experts is not None and config.experts.experts == 4
    assert model_config("kimi_linear", recipe="published", mlp="swiglu", vocab_size=9).experts is None


def test_without_its_memories_a_hybrid_is_a_transformer_that_knows_no_order():
    """Mixers that give nothing, in place of KDA, leave attention alone."""
    model = small("kimi_linear", recipe="published").double()
    for block in model.layers[:3]:
        torch.nn.init.zeros_(block.mixer.outward.weight)
    inputs = tokens(2, 9)
    shuffled = torch.cat((inputs[:, torch.arange(8).flip(0)], inputs[:, 8:]), 1)
    torch.testing.assert_close(model(shuffled)[:, -1], model(inputs)[:, -1], atol=1e-10, rtol=0)


class Identity(torch.nn.Module):
    def __init__(self, width, heads, head_dim):
        super().__init__()

    def forward(self, x):
        return x


@pytest.mark.parametrize(("second", "recipe"), [("gpt2", "matched"), ("kimi_linear", "published")])
@torch.no_grad()
def test_identity_mixers_in_place_of_memories_leave_a_transformer_without_positions(second, recipe):
    register_mixer("identity")(Identity)
    try:
        options = {"conv": 0} if second == "gpt2" else {}
        model = small("identity", second=second, ratio="3:1", depth=4, recipe=recipe, **options).double()
    finally:
        del STAGES._entries["identity"]
    inputs = tokens(2, 9)
    # the same network without mixers below attention: each of the three layers is a map of single tokens
    h = model.embedding.weight[inputs]
    for block in model.layers[:3]:
        h = h + block.norm1(h)
        h = h + block.channel(block.norm2(h))
    last = model.layers[3]
    h = h + last.mixer(last.norm1(h))[0]
    h = h + last.channel(last.norm2(h))
    torch.testing.assert_close(model(inputs), model.norm(h) @ model.head_weight.T, atol=1e-12, rtol=0)
    shuffled = torch.cat((inputs[:, torch.arange(8).flip(0)], inputs[:, 8:]), 1)
    torch.testing.assert_close(model(shuffled)[:, -1], model(inputs)[:, -1], atol=1e-12, rtol=0)
    assert (model(shuffled)[:, 3] - model(inputs)[:, 3]).abs().max() > 1e-3


def test_without_attention_memory_is_constant_in_length_and_with_it_it_grows():
    for name, recipe in ALL:
        model = small(name, recipe=recipe)
        grows = name in ("gpt2", "kimi_linear", "kimi_k3")
        assert (model.state_elements(1000) > model.state_elements(10)) == grows, name


@pytest.mark.parametrize(
    ("request_", "parts"),
    [
        (("kdaa", {}), ("stage", "'kdaa'", "'kda'")),
        (("kda", {"recipe": "publish"}), ("publish", "matched and published")),
        (("lstm", {"recipe": "matched"}), ("lstm", "published only")),
        (("kda", {"half_lief": 3}), ("half_lief", "'half_life'")),
        (("gpt2", {"decay": "none"}), ("unknown field 'decay'", "gpt2")),
        (("kda", {"decay": "chanel"}), ("chanel", "'channel'")),
        (("kda", {"width": 0}), ("width=0", "least is 1")),
        (("kda", {"width": "wide"}), ("width", "wide")),
        (("kda", {"heads": 3, "head_dim": 0}), ("heads=3", "width=64", "head_dim")),
        (("kda", {"head_dim": 300}), ("300", "256")),
        (("mamba2", {"heads": 3, "key_heads": 2}), ("key_heads=2", "heads=3")),
        (("gpt2", {"head_dim": 7, "positions": "rotary"}), ("rotary", "even", "7")),
        (("lstm", {"positions": "rotary"}), ("rotary", "none")),
        (("kimi_linear", {"recipe": "published", "positions": "rotary"}), ("rotary", "none")),
        (("kimi_linear", {"recipe": "published", "experts": 2, "top_k": 3}), ("top_k=3", "experts=2")),
        (("kimi_linear", {"depth": 3}), ("depth=3", "3:1", "depth 4")),
        (("kda", {"ratio": "3:1"}), ("ratio", "second")),
        (("kda", {"second": "gpt2", "ratio": "3-1"}), ("3-1", "3:1")),
        (("kda", {"second": "gpt2", "ratio": "²:1"}), ("²:1", "3:1")),
        (("kda", {"second": "gpt2", "ratio": 181}), ("ratio=181", "quotes", "'3:1'")),
        (("kda", {"second": "gtp2"}), ("gtp2", "'gpt2'")),
        (("kda", {"half_life": 0.01}), ("half_life=0.01", "0.2")),
        (("kda", {"half_life": float("inf")}), ("half_life=inf", "decay='none'")),
        (("kda", {"half_life": float("nan")}), ("half_life=nan", "a number")),
        (("deltanet", {"normalize": True}), ("normalize", "additive")),
        (("linear_attention", {"normalize": True}), ("normalize", "elu1")),
        (("kda", {"write": "step"}), ("step", "scalar")),
        (("kda", {"top_k": 3}), ("top_k=3", "kda", "mlp='moe' or 'latent_moe'")),
        (("kimi_k3", {"experts": 4, "top_k": 8}), ("experts=4", "kimi_k3", "recipe='published'")),
        (("kda", {"mlp": "moe", "depth": 1}), ("dense_layers=1", "depth=1", "dense_layers=0")),
        (("kimi_linear", {"recipe": "published", "dense_layers": 4}), ("dense_layers=4", "depth=4", "dense_layers=3")),
        (("kda", {"match": "param"}), ("match='param'", "'params'")),
        (("gpt2", {"match": "state"}), ("state", "token", "params")),
        (("kda", {"match": "params", "mlp_width": 8}), ("mlp_width=8", "params")),
        (("kda", {"match": "params", "mlp": "none"}), ("mlp='none'", "match='params'", "match='none'")),
        (("deltanet", {"half_life": 10.0}), ("half_life=10.0", "decay", "leave half_life out", "deltanet")),
        (("deltanet", {"decay_gate": "bounded"}), ("decay_gate='bounded'", "decay='scalar' or 'channel'")),
        (("kda", {"decay": "fixed", "decay_gate": "bounded"}), ("decay_gate='bounded'", "decay='scalar' or 'channel'")),
        (("gated_deltanet", {"decay_rank": 4}), ("decay_rank=4", "decay='channel'")),
        (("kda", {"half_life": 9.0, "decay_floor": 0.0}), ("decay_floor=0.0", "half_life=0")),
        (("linear_attention", {"beta_max": 2.0}), ("beta_max=2.0", "write")),
        (("mamba2", {"beta_max": 2.0}), ("beta_max=2.0", "write")),
        (("mamba2", {"decay_gate": "logsigmoid"}), ("decay_gate='logsigmoid'", "write='step'", "'softplus'")),
        (("mamba2", {"decay_gate": "bounded"}), ("decay_gate='bounded'", "write='step'", "'softplus'")),
        (("gpt2", {"key_heads": 1}), ("unknown field 'key_heads'", "gpt2")),
        (("gpt2", {"half_life": 10.0}), ("unknown field 'half_life'", "gpt2")),
        (("gpt2", {"extra": True}), ("extra=True", "second")),
        (("kda", {"mlp": "none", "mlp_width": 9}), ("mlp_width=9", "mlp")),
        (("kda", {"residual_block": 3}), ("residual_block=3", "residual='attention'")),
        (("kda", {"activation": "situ"}), ("activation='situ'", "mlp='moe' or 'latent_moe'")),
        (("kda", {"mlp": "moe", "latent_width": 8}), ("latent_width=8", "latent_moe")),
        (("kda", {"mlp": "moe", "balance": "none", "balance_rate": 0.1}), ("balance_rate=0.1", "balance='sign'")),
        (("kda", {"conv": 0, "conv_bias": True}), ("conv_bias=True", "conv")),
        (("kda", {"gate_bias": True}), ("gate_bias=True", "gate_rank")),
        (("kda", {"gate": "none", "gate_rank": 4}), ("gate_rank=4", "gate")),
        (("kda", {"output_norm": False, "gate_first": True}), ("gate_first=True", "output_norm")),
        (("kda", {"key_dim": 8, "expand_key": 0.5}), ("expand_key=0.5", "key_dim")),
        (("kimi_linear", {"recipe": "published", "query_rank": 8}), ("query_rank=8", "low_rank_query")),
        (("linear_attention", {"positions": "rotary", "feature_map": "elu1"}), ("rotary", "elu1", "silu_l2")),
        (("linear_attention", {"recipe": "published", "positions": "rotary"}), ("rotary", "elu1", "learned")),
        (("gated_deltanet2", {"match": "params", "width": 4, "head_dim": 64}), ("gated_deltanet2", "parameters")),
    ],
    ids=lambda value: str(value)[:60],
)
def test_bad_requests_get_one_clear_line(request_, parts):
    name, options = request_
    with pytest.raises(BadRequest) as error:
        make_model(name, vocab_size=9, **options)
    message = str(error.value)
    assert "\n" not in message
    assert all(part in message for part in parts), message


@pytest.mark.parametrize("name", STAGES)
def test_a_block_of_defaults_fits_every_stage(name):
    """A sweep over stages shares one block: a setting at its default is no setting, whatever the stage."""
    block = {"half_life": 0.0, "beta_max": 1.0, "decay_gate": "softplus", "residual_block": 0, "activation": "swiglu"}
    for recipe in STAGES[name].recipes:
        config = model_config(name, recipe=recipe, vocab_size=9)
        known = {field for part in (config, *config.mixers) for field in vars(part)}
        told = {field: value for field, value in block.items() if field in known}
        # K3 has a decay gate and an activation of its own
        told = {field: value for field, value in told.items() if (name, field) not in DIFFERENT}
        assert model_config(name, recipe=recipe, vocab_size=9, **told) == config


DIFFERENT = {("kimi_k3", "activation"), ("kimi_k3", "decay_gate"), ("gla", "decay_gate")}


@pytest.mark.parametrize(("name", "recipe"), ALL)
def test_what_a_stage_says_of_itself_can_be_given_back(name, recipe):
    told = describe(name)["recipes"][recipe]["fields"]
    told.pop("second")
    assert model_config(name, recipe=recipe, **{k: v for k, v in told.items() if v is not None}).pattern


def test_a_default_is_one_however_it_is_written():
    assert model_config("deltanet", half_life="0", vocab_size=9) == model_config("deltanet", vocab_size=9)


def test_a_setting_counts_when_either_mixer_of_a_hybrid_has_a_use_for_it():
    assert model_config("deltanet", second="kda", half_life=9.0, vocab_size=9).depth == 4
    with pytest.raises(BadRequest, match=r"half_life=9.0"):
        model_config("deltanet", second="linear_attention", half_life=9.0, vocab_size=9)


def test_more_tokens_than_learned_positions():
    model = small("gpt2", recipe="published", max_length=8)
    with pytest.raises(BadRequest, match="9 tokens but max_length=8"):
        model(tokens(1, 9))
    _, state = model.prefill(tokens(1, 8))
    with pytest.raises(BadRequest, match="max_length=8"):
        model.step(tokens(1, 1)[:, 0], state)


def test_describe_says_what_a_stage_is_made_of():
    told = describe("kimi_k3", length=100)
    published = told["recipes"]["published"]
    assert published["mixers"] == ["memory"] * 3 + ["latent"]
    assert published["parameters"] > published["active_parameters"] > 0
    model = make_model("kimi_k3", vocab_size=64, recipe="published")
    assert published["parameters"] == sum(p.numel() for p in model.parameters())
    assert published["state_elements"] == model.state_elements(100)
    assert published["fields"]["top_k"] == 2 and published["fields"]["decay_gate"] == "bounded"
    assert told["source"] and published["cache_bytes_per_token"] == 2 * (64 + 16)


def test_model_configs_can_be_hashed_compared_and_are_frozen():
    assert model_config("kda", vocab_size=9) == model_config("kda", vocab_size=9, width=64)
    assert len({model_config("kda", vocab_size=9), model_config("kda", vocab_size=9, beta_max=2.0)}) == 2
    with pytest.raises(AttributeError):
        model_config("kda", vocab_size=9).width = 3  # type: ignore[misc]
    assert SIZES["width"] == small("kda").config.width


def test_stage_presets_describe_models():
    presets = sorted(entry.name for entry in files("mnemolab.configs").joinpath("stages").iterdir())
    assert "kimi_k3_mini.yaml" in presets
    for preset in presets:
        sections = yaml.safe_load(files("mnemolab.configs").joinpath("stages", preset).read_text())
        assert list(sections) == ["model"]
        assert model_config(vocab_size=64, **sections["model"]).depth == sections["model"]["depth"]


def test_an_mlp_is_eight_thirds_wide_in_eights_or_four_times():
    """SwiGLU of 8/3 the width has the parameters of a plain MLP of 4; a multiple of 8 suits tensor cores."""
    assert model_config("kda", vocab_size=9, width=64).hidden == 176
    assert model_config("kda", vocab_size=9, width=96).hidden == 256
    assert model_config("gpt2", vocab_size=9, width=64, recipe="published").hidden == 256
