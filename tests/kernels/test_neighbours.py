"""The plain PyTorch neighbours against formulas written another way, their properties, and the faults of known kernels."""

from typing import Any

import pytest
import torch
from torch.nn.functional import conv1d, cross_entropy, pad, silu

from mnemolab.errors import BadRequest
from mnemolab.kernels import (
    add_rms_norm,
    attention_residual,
    glu,
    l2_norm,
    rms_norm_gated,
    scored_cross_entropy,
    short_conv,
    short_conv_qkv,
    short_conv_step,
    situ_glu,
)
from mnemolab.kernels.neighbours import cross_entropy as cross_entropy_module


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# ---- short convolution


@pytest.mark.parametrize("W", (1, 2, 4, 7))
@pytest.mark.parametrize("bias", (False, True))
def test_short_conv_is_a_depthwise_causal_convolution(W, bias):
    x, weight, b = draw(2, 11, 5), draw(5, W, seed=1), draw(5, seed=2) if bias else None
    wanted = conv1d(pad(x.mT, (W - 1, 0)), weight[:, None], b, groups=5).mT
    y, cache = short_conv(x, weight, b, activation=None)
    torch.testing.assert_close(y, wanted, rtol=1e-12, atol=1e-12)
    assert torch.equal(cache, x[:, 11 - (W - 1) :])
    torch.testing.assert_close(short_conv(x, weight, b)[0], silu(wanted), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("pieces", ((1,) * 9, (3, 3, 3), (2, 7), (0, 1, 8), (9,)))
def test_short_conv_in_pieces_and_steps_equals_the_whole(bench, pieces):
    """Fault 28: a piece shorter than W - 1 must hand on what the cache already held; also in the backward pass."""
    x, weight = draw(2, 9, 3).requires_grad_(), draw(3, 4, seed=1).requires_grad_()
    whole, end = short_conv(x, weight)
    wanted = torch.autograd.grad(whole.square().sum(), (x, weight))
    cache, outputs, start = None, [], 0
    for n in pieces:
        y, cache = short_conv(x[:, start : start + n], weight, cache=cache)
        outputs.append(y)
        start += n
    y = torch.cat(outputs, 1)
    found = torch.autograd.grad(y.square().sum(), (x, weight))
    torch.testing.assert_close(y, whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(cache, end)
    assert end.untyped_storage().nbytes() == end.numel() * end.element_size()  # no view of the whole padded input
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        cache = torch.zeros(2, 3, 3).double()
        steps = [short_conv_step(x[:, t], weight, cache=cache) for t in range(9)]
    torch.testing.assert_close(torch.stack(steps, 1), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(cache, end)


@pytest.mark.parametrize("W", range(1, 9))
@pytest.mark.parametrize("silu_on", ((True, True, True), (False, False, True), (True, False, False)))
@pytest.mark.parametrize("unit", (0, 3))
def test_short_conv_qkv_is_what_it_is_made_of(W, silu_on, unit):
    mixed, weight, cache = draw(2, 7, 20), draw(15, W, seed=1), draw(2, W - 1, 15, seed=2)
    rows = torch.cat((cache, mixed[..., :15]), 1)
    parts = conv1d(rows.mT, weight[:, None], groups=15).mT.split((6, 3, 6), -1)
    q, k, v = (silu(part) if on else part for part, on in zip(parts, silu_on, strict=True))
    if unit:
        q, k = (
            u / u.unflatten(-1, (-1, 3)).norm(dim=-1, keepdim=True).expand(-1, -1, -1, 3).flatten(2) for u in (q, k)
        )
    options: dict[str, Any] = {"sizes": (6, 3, 6), "silu": silu_on, "unit": unit}
    *found, rest, following = short_conv_qkv(mixed, weight, cache=cache, eps=0.0, **options)
    for a, b in zip(found, (q, k, v), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert torch.equal(following, rows[:, 7:])
    assert torch.equal(rest, mixed[..., 15:]) and rest.data_ptr() == mixed[..., 15:].data_ptr()


def test_short_conv_qkv_names_sizes_that_do_not_fit():
    mixed, weight = draw(2, 4, 10), draw(9, 2, seed=1)
    for options, message in (
        ({"sizes": (3, 3, 5)}, r"mixed has shape \(2, 4, 10\); it must be .* M >= sum\(sizes\)=11"),
        ({"sizes": (3, 6, 0)}, r"sizes=\(3, 6, 0\)"),
        ({"sizes": (3, 3, 3), "unit": 2}, "unit=2 does not divide the 3 and 3 channels"),
        ({"sizes": (2, 3, 3)}, r"weight has shape \(9, 2\); with D=8"),
    ):
        with pytest.raises(BadRequest, match=message):
            short_conv_qkv(mixed, weight, **options)
    with pytest.raises(TypeError, match=r"mixed is torch.int64"):
        short_conv_qkv(torch.ones(2, 4, 10, dtype=torch.int64), weight, sizes=(3, 3, 3))


def test_a_step_names_a_cache_that_it_cannot_update():
    x, weight = draw(2, 3), draw(3, 4, seed=1)
    for cache, message in (
        (None, "cache is None"),
        (draw(2, 3, 3).requires_grad_(), "cache is a leaf"),
        (draw(1, 3, 3).expand(2, 3, 3), "cache is expanded"),
    ):
        with pytest.raises(BadRequest, match=message):
            short_conv_step(x, weight, cache=cache)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match=r"x has shape \(2, 1, 3\)"):
        short_conv_step(x[:, None], weight, cache=draw(2, 3, 3))


@pytest.mark.parametrize(
    "call",
    (
        lambda x: l2_norm(x),
        lambda x: rms_norm_gated(x),
        lambda x: rms_norm_gated(x.float(), gate=x),
        lambda x: short_conv(x, torch.ones(3, 2)),
        lambda x: situ_glu(x, x.float()),
        lambda x: attention_residual([x], torch.zeros(3), torch.ones(3)),
        lambda x: scored_cross_entropy(x, torch.ones(5, 3), torch.zeros(2, 4, dtype=torch.int64)),
    ),
)
def test_integers_are_refused_by_name(call):
    with pytest.raises(TypeError, match=r"(x|gate|sources\[0\]|hidden) is torch.int64; it must be a floating-point"):
        call(torch.ones(2, 4, 3, dtype=torch.int64))


def test_scored_cross_entropy_checks_what_it_is_given():
    hidden, weight, targets = torch.zeros(2, 4, 3), torch.zeros(5, 3), torch.zeros(2, 4, dtype=torch.int64)
    narrow = scored_cross_entropy(hidden, weight, targets.int())
    assert torch.equal(narrow, scored_cross_entropy(hidden, weight, targets))
    for change, error, message in (
        ({"targets": targets + 5}, BadRequest, "targets holds 5; it must be 0 to 4"),
        ({"targets": targets - 7}, BadRequest, "targets holds -7"),
        ({"targets": targets.float()}, TypeError, "float32"),
        ({"targets": targets.bool()}, TypeError, "bool"),
        ({"bias": torch.zeros(4)}, BadRequest, r"bias has shape \(4,\)"),
        ({"weight": torch.zeros(0, 3)}, BadRequest, "at least 1 token"),
    ):
        with pytest.raises(error, match=message):
            scored_cross_entropy(**({"hidden": hidden, "weight": weight, "targets": targets} | change))
    with pytest.raises(BadRequest, match="gate_bound=inf"):
        situ_glu(hidden, hidden, gate_bound=torch.inf)


def test_short_conv_is_causal_bit_for_bit_and_checks_its_operands():
    x, weight = draw(2, 9, 3, dtype=torch.float32), draw(3, 4, seed=1, dtype=torch.float32)
    changed = x.clone()
    changed[:, 5:] = torch.nan
    assert torch.equal(short_conv(x, weight)[0][:, :5], short_conv(changed, weight)[0][:, :5])
    low = short_conv(x.bfloat16(), weight)[0]
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), short_conv(x.bfloat16().float(), weight)[0], rtol=2**-8, atol=1e-6)
    for given, message in (
        ({"x": x[0]}, r"x has shape \(9, 3\)"),
        ({"weight": weight.mT}, r"weight has shape \(4, 3\)"),
        ({"bias": torch.zeros(4)}, r"bias has shape \(4,\)"),
        ({"cache": torch.zeros(2, 4, 3)}, r"cache has shape \(2, 4, 3\).*\(2, 3, 3\)"),
        ({"activation": "slu"}, "did you mean 'silu'"),
    ):
        whole: dict[str, Any] = {"x": x, "weight": weight, **given}
        with pytest.raises(BadRequest, match=message):
            short_conv(**whole)


# ---- norms


def test_l2_norm():
    x = draw(3, 4, 8)
    torch.testing.assert_close(l2_norm(x), x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt(), rtol=1e-12, atol=0)
    zero = torch.zeros(2, 8, requires_grad=True)
    l2_norm(zero).sum().backward()
    # the eps sits inside the root: finite slope at 0
    torch.testing.assert_close(zero.grad, torch.full((2, 8), 1e3))
    assert l2_norm(x.bfloat16()).dtype == torch.bfloat16
    assert l2_norm(torch.full((1, 8), 200.0).half()).isfinite().all(), "the sum of squares exceeds float16"


@pytest.mark.parametrize("rows", (1, 3, 7, 131))
@pytest.mark.parametrize("activation", ("silu", "sigmoid", "none"))
def test_rms_norm_gated(rows, activation):
    """Faults 29, 52: any number of rows, a gate of 0, a random weight."""
    x, gate, weight = draw(rows, 6), draw(rows, 6, seed=1), draw(6, seed=2)
    gate[0] = 0
    act = {"silu": silu, "sigmoid": torch.sigmoid, "none": lambda g: g}[activation]
    rms = torch.nn.functional.rms_norm
    torch.testing.assert_close(
        rms_norm_gated(x, gate, weight, activation=activation),
        rms(x, (6,), weight, 1e-5) * act(gate),
        rtol=1e-12,
        atol=1e-14,
    )
    torch.testing.assert_close(
        rms_norm_gated(x, gate, weight, activation=activation, gate_first=True),
        rms(x * act(gate), (6,), weight, 1e-5), rtol=1e-12, atol=1e-14,
    )  # fmt: skip
    torch.testing.assert_close(rms_norm_gated(x), rms(x, (6,), None, 1e-5), rtol=1e-12, atol=1e-14)


def test_rms_norm_gated_gradients_and_checks():
    given = tuple(draw(*shape, seed=n).requires_grad_() for n, shape in enumerate(((7, 6), (7, 6), (6,))))
    assert torch.autograd.gradcheck(lambda x, g, w: rms_norm_gated(x, g, w), given)
    with pytest.raises(BadRequest, match=r"gate has shape \(7, 5\)"):
        rms_norm_gated(draw(7, 6), draw(7, 5))
    with pytest.raises(BadRequest, match=r"weight has shape \(5,\)"):
        rms_norm_gated(draw(7, 6), None, draw(5))
    with pytest.raises(BadRequest, match="sigmoid"):
        rms_norm_gated(draw(7, 6), draw(7, 6), activation="sigmoidd")


# ---- SiTU


def test_situ_glu_is_bounded_and_becomes_swiglu():
    gate, up = 200 * draw(1000), 200 * draw(1000, seed=1)
    assert situ_glu(gate, up).abs().max() <= 100
    assert (situ_glu(gate, up, gate_bound=1.0, up_bound=2.0).abs() <= 2).all()
    small = draw(50), draw(50, seed=1)
    swiglu = silu(small[0]) * small[1]
    torch.testing.assert_close(situ_glu(*small, gate_bound=1e6, up_bound=1e6), swiglu, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(situ_glu(*small, gate_bound=None, up_bound=None), swiglu, rtol=1e-12, atol=1e-14)
    linear = situ_glu(small[0], small[1], up_bound=None)
    torch.testing.assert_close(situ_glu(small[0], 2 * small[1], up_bound=None), 2 * linear, rtol=1e-12, atol=1e-14)
    grid = torch.linspace(-20, 20, 100001).double()
    branch = situ_glu(grid, torch.ones_like(grid), up_bound=None)
    assert abs(float(branch.min()) + 0.2698) < 1e-4 and float(branch.max()) < 4
    torch.testing.assert_close(
        situ_glu(torch.tensor([1.0]), torch.tensor([2.0])), torch.tensor([1.4288]), rtol=1e-3, atol=0
    )
    for name in ("gate_bound", "up_bound"):
        with pytest.raises(BadRequest, match=name):
            situ_glu(*small, **{name: 0.0})
    with pytest.raises(BadRequest, match=r"up has shape \(3,\)"):
        situ_glu(draw(2), draw(3))


# ---- attention residuals


def test_attention_residual_is_a_softmax_mix():
    sources, query, gain = draw(4, 2, 3, 6), draw(6, seed=1), draw(6, seed=2)
    keys = torch.nn.functional.rms_norm(sources, (6,), gain, 1e-5)
    weights = torch.einsum("nbtd,d->nbt", keys, query).softmax(0)
    wanted = torch.einsum("nbt,nbtd->btd", weights, sources)
    torch.testing.assert_close(attention_residual(sources, query, gain), wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(attention_residual(list(sources), query, gain), wanted, rtol=1e-12, atol=1e-12)


def test_attention_residual_properties():
    a, b = draw(2, 3, 6), draw(2, 3, 6, seed=3)
    query, gain = draw(6, seed=1), draw(6, seed=2)
    torch.testing.assert_close(attention_residual([a, b], 0 * query, gain), (a + b) / 2, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(attention_residual([a], query, gain), a, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(attention_residual([a, a, a], query, gain), a, rtol=1e-12, atol=1e-12)
    # scaling a source leaves its own logit (the key is normalised) and scales what it contributes
    big = 1e4 * a
    share = attention_residual([big, b], query, gain) - attention_residual([2 * big, b], query, gain)
    weight = (-share / big)[..., :1]
    assert ((weight > 0) & (weight < 1)).all()
    torch.testing.assert_close(-share, weight * big, rtol=1e-5, atol=0)
    with pytest.raises(BadRequest, match="empty"):
        attention_residual([], query, gain)
    with pytest.raises(BadRequest, match=r"sources\[1\] has shape \(2, 2, 6\)"):
        attention_residual([a, a[:, :2]], query, gain)
    with pytest.raises(BadRequest, match=r"query has shape \(5,\)"):
        attention_residual([a], query[:5], gain)


# ---- scored cross-entropy


@pytest.mark.parametrize("bias", (False, True))
@pytest.mark.parametrize("pieces", (1, 7))
def test_scored_cross_entropy_equals_the_full_one(monkeypatch, bias, pieces):
    hidden, weight = draw(3, 8, 6).requires_grad_(), draw(11, 6, seed=1).requires_grad_()
    b = draw(11, seed=2).requires_grad_() if bias else None
    targets = torch.randint(0, 11, (3, 8), generator=torch.Generator().manual_seed(0))
    targets[torch.rand(3, 8, generator=torch.Generator().manual_seed(1)) < 0.4] = -100
    given = [hidden, weight, *([b] if b is not None else [])]
    full = cross_entropy(
        (hidden @ weight.mT + (0 if b is None else b)).flatten(0, 1), targets.flatten(), ignore_index=-100
    )
    wanted = torch.autograd.grad(full, given)
    if pieces > 1:
        monkeypatch.setattr(cross_entropy_module, "_LOGITS_AT_ONCE", 11 * 2)
    loss = scored_cross_entropy(hidden, weight, targets, b)
    torch.testing.assert_close(loss, full, rtol=1e-12, atol=0)
    for a, c in zip(torch.autograd.grad(loss, given), wanted, strict=True):
        torch.testing.assert_close(a, c, rtol=1e-12, atol=1e-14)


def test_scored_cross_entropy_never_forms_unscored_logits():
    """One scored position among 4096: the largest tensor kept for the backward pass is not B x T x vocabulary."""
    hidden, weight = torch.randn(1, 4096, 4, requires_grad=True), torch.randn(2000, 4, requires_grad=True)
    targets = torch.full((1, 4096), -100)
    targets[0, 17] = 3
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (sizes.append(x.numel()), x)[1], lambda x: x):
        loss = scored_cross_entropy(hidden, weight, targets)
    assert max(sizes) <= 4096 * 4
    loss.backward()
    assert hidden.grad is not None and hidden.grad[0, 17].all() and hidden.grad.count_nonzero() == 4


def test_scored_cross_entropy_without_scored_positions_and_with_low_precision():
    hidden, weight = torch.randn(2, 3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    loss = scored_cross_entropy(hidden, weight, torch.full((2, 3), -100))
    loss.backward()
    assert loss.item() == 0
    assert all(x.grad is not None and x.grad.abs().max() == 0 for x in (hidden, weight))
    targets = torch.zeros(2, 3, dtype=torch.long)
    assert scored_cross_entropy(hidden.bfloat16(), weight, targets).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert scored_cross_entropy(hidden, weight, targets).dtype == torch.float32
    with pytest.raises(BadRequest, match=r"targets has shape \(2, 2\)"):
        scored_cross_entropy(hidden, weight, targets[:, :2])
    with pytest.raises(BadRequest, match=r"weight has shape \(5, 3\)"):
        scored_cross_entropy(hidden, weight[:, :3], targets)


def test_glu_is_swiglu_and_with_bounds_situ_glu():
    x = draw(2, 5, 14)
    gate, up = x.chunk(2, -1)
    torch.testing.assert_close(glu(x), torch.nn.functional.silu(gate) * up)
    torch.testing.assert_close(glu(x, gate_bound=4.0, up_bound=25.0), situ_glu(gate, up))
    for given, message in (({"x": x[..., :5]}, "even"), ({"x": x, "up_bound": -1.0}, "up_bound=-1.0")):
        with pytest.raises(BadRequest, match=message):
            glu(**given)


def test_add_rms_norm_is_the_sum_and_its_norm():
    h, y, w = draw(2, 5, 6), draw(2, 5, 6, seed=1), draw(6, seed=2)
    total, x = add_rms_norm(h, y, w, eps=1e-3)
    torch.testing.assert_close(total, h + y)
    torch.testing.assert_close(x, w * total / (total.square().mean(-1, keepdim=True) + 1e-3).sqrt())
    same, low = add_rms_norm(h, None, w, dtype=torch.bfloat16)
    assert same is h and low.dtype == torch.bfloat16
    assert add_rms_norm(h.bfloat16(), y.float(), w)[0].dtype == torch.float32
    for change, message in (
        ({"y": y[:1]}, r"y has shape \(1, 5, 6\)"),
        ({"weight": w[:5]}, r"weight has shape \(5,\)"),
    ):
        with pytest.raises(BadRequest, match=message):
            add_rms_norm(**({"h": h, "y": y, "weight": w} | change))
