"""Modules of one's own as mixers, and the optional adapters."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from mnemolab.errors import BadRequest
from mnemolab.models import STAGES, make_model, register_mixer
from mnemolab.models.adapters.fla import fla_mixer
from mnemolab.models.adapters.huggingface import HuggingFaceModel
from tests.models.stages import SIZES, tokens


class RunningMean(nn.Module):
    """The mean of all inputs so far, projected."""

    def __init__(self, width: int, heads: int, head_dim: int):
        super().__init__()
        self.out = nn.Linear(width, width)

    def forward(self, x):
        count = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)[:, None]
        return self.out(x.cumsum(1) / count)


@pytest.fixture
def registered():
    names = []

    def add(name, factory):
        names.append(name)
        register_mixer(name, summary="of one's own")(factory)

    yield add
    for name in names:
        del STAGES._entries[name]


@torch.no_grad()
def test_any_causal_module_is_a_stage_that_prefills_and_steps(registered):
    registered("running_mean", RunningMean)
    assert STAGES.summary("running_mean") == "of one's own"
    variants: list[dict[str, Any]] = [{}, {"second": "gpt2", "ratio": "1:1"}]
    for options in variants:
        model, inputs = make_model("running_mean", **SIZES, **options).eval(), tokens(2, 9)
        wanted = model(inputs)
        _, state = model.prefill(inputs[:, :5])
        for t in range(5, 9):
            logits, state = model.step(inputs[:, t], state)
            torch.testing.assert_close(logits, wanted[:, t], atol=1e-5, rtol=0)
        assert model.layers[0].mixer.state_elements(9) == 9 * 16
        _, state = model.prefill(inputs[:, :5])
        none, state = model.prefill(inputs[:, :0], state)
        assert none.shape == (2, 0, SIZES["vocab_size"])
        torch.testing.assert_close(model.prefill(inputs[:, 5:], state)[0], wanted[:, 5:], atol=1e-5, rtol=0)
    hybrid = make_model("kda", second="running_mean", **SIZES)
    assert hybrid(tokens(1, 4)).shape == (1, 4, SIZES["vocab_size"])


class OwnStart(RunningMean):
    """Starts as the identity plus two, which is its own business."""

    def __init__(self, *sizes: int):
        super().__init__(*sizes)
        nn.init.eye_(self.out.weight)
        nn.init.constant_(self.out.bias, 2.0)


@pytest.mark.parametrize("init", ["scaled", "xavier"])
def test_a_module_of_one_s_own_keeps_its_own_start(registered, init):
    registered("own_start", OwnStart)
    for options in ({}, {"second": "own_start"}):
        model = make_model("own_start" if not options else "kda", init=init, **SIZES, **options)
        wrapped: Any = model.layers[-1].mixer
        torch.testing.assert_close(wrapped.module.out.weight, torch.eye(16))
        assert (wrapped.module.out.bias == 2).all()


def test_a_mixer_that_is_no_module_or_loses_tokens(registered):
    registered("no_module", lambda width, heads, head_dim: "nothing")
    with pytest.raises(BadRequest, match="'no_module'"):
        make_model("no_module", **SIZES)
    registered("shortens", lambda width, heads, head_dim: nn.AvgPool1d(2))
    with pytest.raises(BadRequest, match=r"keep \(B,T,D\)"):
        make_model("shortens", **SIZES)(tokens(1, 4))
    with pytest.raises(BadRequest, match="registered already"):
        register_mixer("kda")(RunningMean)


class FlaLike(nn.Module):
    """The calling convention of flash-linear-attention's layers."""

    def __init__(self, hidden_size: int = 8, num_heads: int = 1, expand_v: float = 1.0, **kwargs: Any):
        super().__init__()
        assert not kwargs
        self.sizes = (hidden_size, num_heads, expand_v)
        self.proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x):
        return self.proj(x), None, None


@pytest.fixture
def fla(monkeypatch):
    layers: Any = ModuleType("fla.layers")
    layers.GatedDeltaNet = FlaLike
    monkeypatch.setitem(sys.modules, "fla", ModuleType("fla"))
    monkeypatch.setitem(sys.modules, "fla.layers", layers)


def test_fla_layers_come_at_the_model_s_sizes_and_their_tuples_are_unpacked(fla, registered):
    registered("fla_gdn", fla_mixer("GatedDeltaNet", expand_v=2.0))
    model = make_model("fla_gdn", **SIZES)
    wrapped: Any = model.layers[0].mixer
    assert wrapped.module.sizes == (16, 2, 2.0)
    assert model(tokens(1, 4)).shape == (1, 4, SIZES["vocab_size"])
    with pytest.raises(BadRequest, match="'GatedDeltaNet'"):
        fla_mixer("GatedDeltaNets")
    with pytest.raises(BadRequest, match="'expand_v'"):
        fla_mixer("GatedDeltaNet", expand_vv=2.0)


def test_absent_libraries_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "fla", None)
    monkeypatch.setitem(sys.modules, "fla.layers", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BadRequest, match="pip install flash-linear-attention"):
        fla_mixer("GatedDeltaNet")
    with pytest.raises(BadRequest, match="pip install transformers"):
        HuggingFaceModel("gpt2")


class Cache:
    """The three methods of a transformers cache that are used."""

    def __init__(self, total):
        self.total = total

    def batch_repeat_interleave(self, n):
        self.total = self.total.repeat_interleave(n, 0)

    def batch_select_indices(self, index):
        self.total = self.total[index]


class SumLM(nn.Module):
    """A causal LM with transformers' calling convention: hidden states are running sums of embeddings."""

    def __init__(self, vocabulary=11, width=6):
        super().__init__()
        self.embed, self.lm_head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)

    @property
    def base_model(self):
        return self.body

    def get_output_embeddings(self):
        return self.lm_head

    def body(self, input_ids, past_key_values=None, use_cache=False):
        hidden = self.embed(input_ids).cumsum(1)
        if past_key_values is not None:
            hidden = hidden + past_key_values.total[:, None]
        return SimpleNamespace(last_hidden_state=hidden, past_key_values=Cache(hidden[:, -1]) if use_cache else None)


@torch.no_grad()
def test_a_causal_lm_scores_prefills_steps_and_forks():
    torch.manual_seed(0)
    plain = SumLM()
    model, inputs = HuggingFaceModel(plain), torch.randint(11, (2, 6))
    wanted = plain.lm_head(plain.embed(inputs).cumsum(1))
    torch.testing.assert_close(model(inputs), wanted)
    _, state = model.prefill(inputs[:, :4])
    pair, _ = model.step(inputs[:, 4].repeat_interleave(2), model.repeat_state(state, 2))
    torch.testing.assert_close(pair, wanted[:, 4].repeat_interleave(2, 0))
    one, _ = model.step(inputs[1:, 4], model.select_state(state, torch.tensor([1])))
    torch.testing.assert_close(one, wanted[1:, 4])
    targets = torch.full((2, 6), -100)
    targets[:, -1] = 3
    loss = nn.functional.cross_entropy(wanted[:, -1], targets[:, -1])
    torch.testing.assert_close(model.loss(inputs, targets), loss)
    # three tokens of a task, under other ids
    translated = HuggingFaceModel(plain, token_ids=[7, 2, 5])
    torch.testing.assert_close(translated(torch.tensor([[1, 0]])), model(torch.tensor([[2, 7]]))[..., [7, 2, 5]])


@pytest.mark.slow
@torch.no_grad()
def test_a_real_transformers_model():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=19, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    lm = transformers.GPT2LMHeadModel(config).eval()
    model, inputs = HuggingFaceModel(lm), torch.randint(19, (2, 9))
    wanted = lm(input_ids=inputs).logits
    torch.testing.assert_close(model(inputs), wanted, atol=1e-5, rtol=0)
    _, state = model.prefill(inputs[:, :6])
    copies = model.repeat_state(state, 3)
    for t in range(6, 9):
        logits, state = model.step(inputs[:, t], state)
        torch.testing.assert_close(logits, wanted[:, t], atol=1e-5, rtol=0)
        many, copies = model.step(inputs[:, t].repeat_interleave(3), copies)
        torch.testing.assert_close(many, wanted[:, t].repeat_interleave(3, 0), atol=1e-5, rtol=0)
