"""Attention: cached equals uncached, latent attention absorbed equals expanded, and what it cannot see."""

from typing import Any

import pytest
import torch

from mnemolab.models.config import LatentConfig, ModelConfig
from mnemolab.models.mixers.latent import LatentMixer
from mnemolab.models.mixers.softmax import causal_attention
from mnemolab.models.positions import rotate
from mnemolab.models.state import Cache
from tests.models.stages import small, tokens

SIZES = ModelConfig(width=16, heads=2, head_dim=8)


def latent(**options) -> Any:
    torch.manual_seed(0)
    mixer = LatentMixer(SIZES, LatentConfig(**options)).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.normal_(0.0, 0.5)
    return mixer


def plain_attention(q, k, v):
    """Softmax attention of whole sequences (B,T,H,K), written out."""
    scores = torch.einsum("bthk,bshk->bhts", q, k) / q.shape[-1] ** 0.5
    future = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1)
    return torch.einsum("bhts,bshv->bthv", scores.masked_fill(future, -torch.inf).softmax(-1), v)


def test_softmax_attention_as_written_out_also_for_the_last_tokens_alone():
    q, k, v = torch.randn(3, 2, 11, 2, 4, dtype=torch.float64).unbind(0)
    wanted = plain_attention(q, k, v)
    for n in (11, 4, 1):
        torch.testing.assert_close(causal_attention(q[:, -n:], k, v), wanted[:, -n:], atol=1e-12, rtol=0)


@pytest.mark.parametrize("options", [{}, {"low_rank_query": True, "latent_gate": True}, {"shared_dim": 0}], ids=str)
def test_absorbed_decoding_equals_the_expanded_form(options):
    mixer, x = latent(**options), torch.randn(2, 9, 16, dtype=torch.float64)
    expanded, _ = mixer(x)
    state: Any = None
    for t in range(x.shape[1]):
        absorbed, state = mixer.step(x[:, t], state)
        torch.testing.assert_close(absorbed, expanded[:, t], atol=1e-12, rtol=0)
    cached = state["latent"].view
    assert cached.shape == (2, 9, mixer.rank + mixer.shared)


def test_latent_attention_of_full_rank_without_shared_channels_is_ordinary_attention():
    mixer, x = latent(kv_rank=16, shared_dim=0), torch.randn(2, 7, 16, dtype=torch.float64)
    # a norm that changes nothing: every latent has mean square 1, and there is no epsilon
    mixer.latent_norm.eps = 0.0
    with torch.no_grad():
        rows = torch.linalg.qr(torch.randn(16, 16, dtype=torch.float64)).Q
        mixer.inward.weight[16:] = rows
        mixer.latent_norm.weight.fill_(1.0)
    x = x / x.square().mean(-1, keepdim=True).sqrt()
    q = (x @ mixer.inward.weight[:16].T).unflatten(-1, (2, 8))
    k, v = (x @ rows.T @ mixer.expand.weight.T).unflatten(-1, (2, 16)).split(8, -1)
    wanted = plain_attention(q, k, v).flatten(2) @ mixer.outward.weight.T
    torch.testing.assert_close(mixer(x)[0], wanted, atol=1e-10, rtol=0)


def test_latent_attention_does_not_know_the_order_of_the_past():
    mixer, x = latent(low_rank_query=True, latent_gate=True), torch.randn(2, 10, 16, dtype=torch.float64)
    shuffled = torch.cat((x[:, torch.randperm(9)], x[:, 9:]), 1)
    torch.testing.assert_close(mixer(shuffled)[0][:, -1], mixer(x)[0][:, -1], atol=1e-12, rtol=0)
    assert (mixer(shuffled)[0][:, :-1] - mixer(x)[0][:, :-1]).abs().max() > 0.1


@torch.no_grad()
def test_order_enters_through_the_recurrence_below():
    inputs = tokens(2, 12)
    shuffled = torch.cat((inputs[:, torch.arange(11).flip(0)], inputs[:, 11:]), 1)
    attention = small("gpt2", conv=0, depth=1).double()
    torch.testing.assert_close(attention(shuffled)[:, -1], attention(inputs)[:, -1], atol=1e-12, rtol=0)
    # no convolution here: the recurrence alone
    hybrid = small("kda", second="gpt2", ratio="1:1", conv=0).double()
    assert (hybrid(shuffled)[:, -1] - hybrid(inputs)[:, -1]).abs().max() > 1e-3


def test_a_closed_gate_of_zero_weights_halves_the_output():
    gated, x = latent(latent_gate=True), torch.randn(2, 6, 16, dtype=torch.float64)
    ungated = latent()
    with torch.no_grad():
        width = ungated.inward.weight.shape[0]
        gated.inward.weight[width:] = 0.0
        ungated.inward.weight.copy_(gated.inward.weight[:width])
        for part in ("latent_norm", "expand", "outward"):
            getattr(ungated, part).load_state_dict(getattr(gated, part).state_dict())
    torch.testing.assert_close(gated(x)[0], ungated(x)[0] / 2, atol=1e-12, rtol=0)


def test_rotary_scores_depend_on_distance_alone():
    q, k = torch.randn(2, 1, 6, 2, 8, dtype=torch.float64).unbind(0)
    start = torch.tensor([0])
    near = torch.einsum("bthk,bthk->bth", rotate(q, start + 3), rotate(k, start))
    far = torch.einsum("bthk,bthk->bth", rotate(q, start + 40), rotate(k, start + 37))
    torch.testing.assert_close(near, far, atol=1e-5, rtol=0)
    torch.testing.assert_close(rotate(q, start).norm(dim=-1), q.norm(dim=-1))
    assert not torch.allclose(near, torch.einsum("bthk,bthk->bth", q, k), atol=1e-2)


def test_cache_grows_without_touching_what_was_read_before():
    cache = Cache.of(torch.arange(3.0)[None, :, None])
    longer = cache
    with torch.no_grad():
        for value in range(3, 40):
            longer = longer.append(torch.full((1, 1, 1), float(value)))
    assert longer.view.flatten().tolist() == list(range(40))
    assert cache.view.flatten().tolist() == [0.0, 1.0, 2.0]
    with torch.no_grad():
        branch = longer.append(torch.full((1, 1, 1), 50.0))
        other = longer.append(torch.full((1, 1, 1), 60.0))
        further = branch.append(torch.full((1, 1, 1), 51.0))
    assert further.view[0, -2:, 0].tolist() == [50.0, 51.0] and other.view[0, -2:, 0].tolist() == [39.0, 60.0]
    # appending goes on in place where nothing else was appended
    assert branch.buffer is longer.buffer is further.buffer
    weight = torch.ones(1, 2, 1, requires_grad=True)
    Cache.of(torch.zeros(1, 1, 1)).append(weight).view.sum().backward()
    assert weight.grad is not None and weight.grad.eq(1).all()
