"""Attention residuals: zero queries are the plain network, and how sources are formed and mixed."""

from typing import Any

import pytest
import torch
from torch import nn

from mnemolab.models import published_config
from mnemolab.models.accounting import skeleton
from mnemolab.models.norms import add_norm, make_norm
from mnemolab.models.residual import AttentionResidual, SumStream, residual_block
from tests.models.stages import small, tokens


def plain_copy(model, **options):
    """The same weights with plain residuals."""
    plain = small(model.config.name, residual="add", **options).double()
    plain.load_state_dict({n: p for n, p in model.state_dict().items() if not n.startswith("residual.")})
    return plain


@pytest.mark.parametrize("block", (1, 2, 3, 6, 100))
def test_zero_queries_are_the_plain_residual_network(block):
    options = {"depth": 4, "norm_eps": 0.0}
    model = small("kda", residual="attention", residual_block=block, **options).double()
    plain, inputs = plain_copy(model, **options), tokens(2, 9)
    assert (model(inputs) - plain(inputs)).abs().max() > 1e-2
    nn.init.zeros_(model.residual.query)
    torch.testing.assert_close(model(inputs), plain(inputs), atol=1e-10, rtol=0)


def run(rule, outputs):
    """What each site reads when the sub-layers say `outputs` whatever they read."""
    stream = rule.open(outputs[0])
    read = []
    for y in outputs[1:]:
        read.append(stream.read(nn.Identity()))
        stream.write(y)
    return [*read, stream.read(nn.Identity())], stream


def rule(block, sites=7, seed=0) -> Any:
    torch.manual_seed(seed)
    made = AttentionResidual(4, sites, block, 1e-5).double()
    nn.init.normal_(made.query)
    return made


def test_blocks_of_one_sub_layer_keep_every_output_as_a_source():
    outputs = list(torch.randn(7, 2, 3, 4, dtype=torch.float64))
    _, stream = run(rule(1), outputs)
    assert all(torch.equal(a, b) for a, b in zip(stream.sources, outputs, strict=True))


def test_one_block_is_embedding_and_partial_sum():
    outputs = list(torch.randn(7, 2, 3, 4, dtype=torch.float64))
    _, stream = run(rule(100), outputs)
    embedding, partial = stream.sources
    assert torch.equal(embedding, outputs[0])
    torch.testing.assert_close(partial, sum(outputs[1:]))


@pytest.mark.parametrize("block", (1, 100))
def test_the_full_form_and_a_single_block_written_out(block):
    """Block of one sub-layer: every output is a source. One block of all: the embedding and the sum of the rest."""
    made, outputs = rule(block), list(torch.randn(7, 2, 3, 4, dtype=torch.float64))
    read, _ = run(made, outputs)
    for site in range(1, 7):
        sources = outputs[: site + 1] if block == 1 else [outputs[0], sum(outputs[1 : site + 1])]
        wanted = mixed(sources, made.query[site], made.gain[site])
        torch.testing.assert_close(read[site], wanted, atol=1e-12, rtol=0)


def test_finished_blocks_and_a_ragged_tail():
    outputs = list(torch.randn(6, 2, 3, 4, dtype=torch.float64))
    read, stream = run(rule(2), outputs)
    e, a, b, c, d, f = outputs
    for found, wanted in zip(stream.sources, (e, a + b, c + d, f), strict=True):
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(read[0], e)  # a single source


def mixed(sources, query, gain):
    """softmax_j(query . (gain * rms(v_j))) v_j, written out."""
    values = torch.stack(sources)
    keys = values / (values.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return ((keys * gain * query).sum(-1).softmax(0)[..., None] * values).sum(0)


def test_a_site_mixes_by_its_own_query_and_gain():
    made = rule(2)
    nn.init.normal_(made.gain)
    outputs = list(torch.randn(6, 2, 3, 4, dtype=torch.float64))
    read, stream = run(made, outputs)
    torch.testing.assert_close(read[-1], mixed(stream.sources, made.query[5], made.gain[5]))
    e, a, b, *_ = outputs
    torch.testing.assert_close(read[2], mixed([e, a + b], made.query[2], made.gain[2]))


def test_a_duplicate_source_splits_the_weight_and_a_larger_source_keeps_its_logit():
    from mnemolab.kernels.neighbours.attention_residual import attention_residual

    query, gain = torch.randn(2, 4, dtype=torch.float64)
    a, b = torch.randn(2, 1, 1, 4, dtype=torch.float64)
    torch.testing.assert_close(attention_residual([a, a], query, gain), a)
    # three sources, two of them equal: together they have the weight of both
    logit = lambda v: (query * gain * v).sum() / (v.square().mean() + 1e-5).sqrt()
    share = 2 * logit(a).exp() / (2 * logit(a).exp() + logit(b).exp())
    torch.testing.assert_close(attention_residual([a, b, a], query, gain), share * a + (1 - share) * b)
    # its weight stays, its contribution grows
    weight = lambda b: ((attention_residual([a, b], query, gain) - a) / (b - a)).mean()
    torch.testing.assert_close(weight(b), weight(3 * b), atol=1e-4, rtol=0)


def test_published_block_sizes_follow_from_depth():
    assert residual_block(27, 2) == 6 and residual_block(93, 2) == 24
    # a layer without an MLP is one sub-layer
    assert residual_block(24, 1) == 3
    lean: Any = small("kda", residual="attention", mlp="none", depth=24).residual
    assert lean.block == 3 and lean.query.shape[0] == 25
    config = published_config("kimi_k3")
    found: Any = skeleton(config).residual
    assert found.query.shape == (187, 7168) and found.block == 24


def test_a_plain_stream_adds_each_output_once_whenever_it_is_read():
    stream, norm = SumStream(torch.ones(2, 3)), nn.Identity()
    assert torch.equal(stream.read(norm), torch.ones(2, 3))
    stream.write(torch.full((2, 3), 2.0))
    assert torch.equal(stream.read(norm), torch.full((2, 3), 3.0))
    assert torch.equal(stream.read(norm), torch.full((2, 3), 3.0))
    for value in (1.0, 4.0):
        stream.write(torch.full((2, 3), value))
    assert torch.equal(stream.read(norm), torch.full((2, 3), 8.0))


@pytest.mark.parametrize("kind", ("rms", "layer"))
def test_the_sum_and_its_norm_are_those_of_two_operations(kind):
    norm = make_norm(kind, 6, 1e-5)
    h, y = (torch.randn(4, 6, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    total, x = add_norm(norm, h, y)
    assert torch.equal(total, h + y) and torch.equal(x, norm(h + y))
    assert add_norm(norm, h, None)[0] is h
    with torch.autocast("cpu", torch.bfloat16):
        total, x = add_norm(norm, h, y.bfloat16())
    assert total.dtype == torch.float32 and (kind == "layer" or x.dtype == torch.bfloat16)
