"""The Triton neighbours are the plain ones in float64, outputs and gradients; through the interpreter without a GPU."""

from importlib.util import find_spec

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)

from mnemolab.kernels import add_rms_norm as plain_add_norm
from mnemolab.kernels import attention_residual as plain_residual
from mnemolab.kernels import decay_gate as plain_decay
from mnemolab.kernels import glu as plain_glu
from mnemolab.kernels import l2_norm as plain_l2
from mnemolab.kernels import linear_pair as plain_pair
from mnemolab.kernels import rms_norm_gated as plain_rms
from mnemolab.kernels import scalar_gates as plain_scalar_gates
from mnemolab.kernels import scored_cross_entropy as plain_loss
from mnemolab.kernels import short_conv as plain_conv
from mnemolab.kernels import short_conv_qkv as plain_qkv
from mnemolab.kernels import situ_glu as plain_situ
from mnemolab.kernels.neighbours.decay_gate import GATES
from mnemolab.kernels.triton import (
    add_norm,
    attention_residual,
    cross_entropy,
    decay_gate,
    linear_pair,
    norms,
    scalar_gates,
    short_conv,
    situ,
)

# the interpreter's numpy warns where the machine quietly gives inf, as the formula wants
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def draw(*shape, seed=0, scale=1.0):
    x = scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.float()


def compare(fused, plain, tensors, tolerance=2e-6):
    """Outputs and the gradient of every tensor, against the plain form on the same numbers in float64."""
    found, wanted = [], []
    for form, cast, results in (
        (fused, lambda x: x.to(DEVICE), found), (plain, lambda x: x.double(), wanted),
    ):  # fmt: skip
        leaves = [None if x is None else cast(x).detach().clone().requires_grad_() for x in tensors]
        outputs = form(*leaves)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        kept = [y for y in outputs if y.numel()]
        weights = [draw(*y.shape, seed=7 + i).to(y) for i, y in enumerate(kept)]
        inputs = [x for x in leaves if x is not None]
        gradients = torch.autograd.grad(kept, inputs, weights, allow_unused=True)
        results += [*kept, *(torch.zeros_like(x) if g is None else g for g, x in zip(gradients, inputs, strict=True))]
    for a, b in zip(found, wanted, strict=True):
        assert a.isfinite().all()
        assert float((a.detach().cpu().double() - b.detach()).norm()) <= tolerance * max(float(b.detach().norm()), 1e-6)


@pytest.mark.parametrize("T", (1, 2, 3, 70))
@pytest.mark.parametrize("W", (1, 2, 3, 4))
@pytest.mark.parametrize("cached", (False, True))
def test_short_conv(T, W, cached):
    tensors = [draw(2, T, 5), draw(5, W, seed=1), draw(5, seed=2) if cached else None]
    tensors.append(draw(2, W - 1, 5, seed=3) if cached and W > 1 else None)
    for silu in (True, False):
        compare(
            lambda x, w, b, c, silu=silu: short_conv.short_conv(x, w, b, c, silu),
            lambda x, w, b, c, silu=silu: plain_conv(x, w, b, cache=c, activation="silu" if silu else None),
            tensors,
        )


def check_qkv(B, T, sizes, W, *, rest=0, silu=(True, True, True), unit=0, bias=False, cached=False, pick=tuple, **more):
    """`pick` says which of q, k, v, rest and cache are used, and so have a gradient."""
    C = sum(sizes)
    tensors = [draw(B, T, C + rest), draw(C, W, seed=1), draw(C, seed=2) if bias else None]
    tensors.append(draw(B, W - 1, C, seed=3) if cached and W > 1 else None)
    options = {"sizes": sizes, "silu": silu, "unit": unit}
    compare(
        lambda x, w, b, c: pick(short_conv.short_conv_qkv(x, w, b, c, sizes, silu, unit, 1e-6)),
        lambda x, w, b, c: pick(plain_qkv(x, w, b, cache=c, **options)),
        tensors,
        **more,
    )


@pytest.mark.parametrize("T", (1, 2, 3, 5, 35))
@pytest.mark.parametrize("W", (1, 2, 3, 4))
@pytest.mark.parametrize("cached", (False, True))
def test_short_conv_qkv(T, W, cached):
    """Odd widths, heads that fill no tile, fewer tokens than taps, and walks that end within a sequence."""
    check_qkv(2, T, (6, 6, 5), W, rest=3, unit=3, bias=cached, cached=cached)
    check_qkv(2, T, (6, 3, 5), W, silu=(False, False, True), bias=not cached, cached=cached)


@pytest.mark.parametrize("unit", (16, 33, 48, 64, 128, 256))
def test_short_conv_qkv_at_every_head_size(unit):
    check_qkv(1, 13, (2 * unit, unit, 40), 4, rest=130, unit=unit)


@pytest.mark.parametrize("silu", ((True, False, False), (False, True, True), (False, False, False)))
@pytest.mark.parametrize("unit", (0, 8))
def test_short_conv_qkv_activates_what_it_is_told(silu, unit):
    check_qkv(3, 20, (16, 16, 24), 4, silu=silu, unit=unit, cached=True)


@pytest.mark.parametrize("used", ((0,), (1, 3), (2, 4), (3,)))
def test_short_conv_qkv_where_not_everything_is_used(used):
    """Without a gradient from it, a part's columns of the gradient are zero, not what memory held."""
    check_qkv(2, 20, (16, 16, 8), 4, rest=5, unit=8, cached=True, pick=lambda found: tuple(found[i] for i in used))


@pytest.mark.parametrize("rows", (4, 8, 128))
def test_short_conv_qkv_in_walks_of_any_length(rows, monkeypatch):
    for name in ("FORWARD", "BACKWARD"):
        monkeypatch.setattr(short_conv, name, short_conv.Walk(rows=rows))
    check_qkv(1, 37, (16, 16, 16), 4, rest=16, unit=16, bias=True, cached=True)


@pytest.mark.parametrize("cut", (lambda x: x[..., 3:], lambda x: x[:, 1:], lambda x: x.mT, lambda x: x[::2]))
def test_short_conv_qkv_of_a_part_of_a_tensor(cut):
    x = draw(4, 30, 30)
    channels = cut(x).shape[2] - 2
    sizes = (6, 6, channels - 12)
    compare(
        lambda x, w: short_conv.short_conv_qkv(cut(x), w, None, None, sizes, (True, True, True), 3, 1e-6),
        lambda x, w: plain_qkv(cut(x), w, sizes=sizes, unit=3),
        [x, draw(channels, 4, seed=1)],
    )


def test_short_conv_qkv_rounds_its_results_alone():
    """bfloat16 in and out, float32 between: each result is the float32 one of the same numbers, rounded (or cut, by the
    interpreter)."""
    mixed, weight = draw(2, 40, 56).bfloat16().to(DEVICE), draw(48, 4, seed=1).to(DEVICE)
    cotangents = [draw(2, 40, 16, seed=5 + i).bfloat16().to(DEVICE) for i in range(3)]
    found, wanted = [], []
    for results, dtype in ((found, torch.bfloat16), (wanted, torch.float32)):
        x, w = mixed.to(dtype).requires_grad_(), weight.clone().requires_grad_()
        q, k, v, _, _ = short_conv.short_conv_qkv(x, w, None, None, (16, 16, 16), (True, True, True), 8, 1e-6)
        results += [q, k, v, *torch.autograd.grad((q, k, v), (x, w), [c.to(dtype) for c in cotangents])]
    assert [x.dtype for x in found] == [torch.bfloat16] * 4 + [torch.float32]
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.float(), b, rtol=2**-7, atol=1e-6)


def test_short_conv_reads_nothing_beyond_its_filter():
    """An infinity that no tap reaches leaves no NaN behind, as a weight of 0 would."""
    for W in (1, 2, 3, 4):
        x = draw(1, 12, 16).to(DEVICE)
        x[:, 3] = torch.inf
        y, _ = short_conv.short_conv(x, draw(16, W, seed=1).to(DEVICE), None, None, False)
        assert y[:, 3 + W :].isfinite().all() and y[:, :3].isfinite().all()
        assert not y[:, 3 : 3 + W].isfinite().any()


@pytest.mark.parametrize("rows", (1, 3, 131))
@pytest.mark.parametrize("activation", ("silu", "sigmoid", "none"))
def test_rms_norm_gated(rows, activation):
    for first in (False, True):
        compare(
            lambda x, g, w, f=first: norms.rms_norm_gated(x, g, w, 1e-5, activation, f),
            lambda x, g, w, f=first: plain_rms(x, g, w, activation=activation, gate_first=f),
            [draw(rows, 18), draw(rows, 18, seed=1), draw(18, seed=2)],
        )


@pytest.mark.parametrize("first", (False, True))
@pytest.mark.parametrize(
    "gate_of",
    (
        lambda wide: wide[..., 20:56].unflatten(-1, (3, 12)),
        lambda wide: wide[..., :36].unflatten(-1, (3, 12)).transpose(0, 1).contiguous().transpose(0, 1),
        lambda wide: wide[..., 8:44].unflatten(-1, (12, 3)).mT,
        lambda wide: wide[..., :12].unsqueeze(2).expand(-1, -1, 3, -1),
        lambda wide: wide[:, :1, :36].unflatten(-1, (3, 12)).expand(-1, 7, -1, -1),
    ),
)
def test_rms_norm_with_a_gate_among_other_columns(gate_of, first):
    """The gate is read where it stands; layouts that no two strides describe are copied."""
    compare(
        lambda x, wide, w: norms.rms_norm_gated(x, gate_of(wide), w, 1e-5, "sigmoid", first),
        lambda x, wide, w: plain_rms(x, gate_of(wide), w, activation="sigmoid", gate_first=first),
        [draw(2, 7, 3, 12), draw(2, 7, 60, seed=1), draw(12, seed=2)],
    )


def test_norms_without_gate_or_weight():
    x = draw(7, 5)
    compare(lambda x: norms.rms_norm_gated(x, None, None, 1e-5, "silu", False), plain_rms, [x])
    compare(lambda x: norms.l2_norm(x, 1e-6), plain_l2, [x])
    zero = torch.zeros(2, 5, device=DEVICE, requires_grad=True)
    norms.l2_norm(zero, 1e-6).sum().backward()
    assert zero.grad is not None and zero.grad.isfinite().all()


@pytest.mark.parametrize("bounds", ((4.0, 25.0), (4.0, None), (None, None)))
@pytest.mark.parametrize("scale", (1e-4, 1.0, 100.0))
def test_situ_glu(bounds, scale):
    compare(
        lambda g, u: situ.situ_glu(g, u, *bounds),
        lambda g, u: plain_situ(g, u, gate_bound=bounds[0], up_bound=bounds[1]),
        [draw(3, 41, scale=scale), draw(3, 41, seed=1, scale=scale)],
    )


@pytest.mark.parametrize("bounds", ((4.0, 25.0), (None, None)))
@pytest.mark.parametrize("F", (1, 41, 300))
def test_glu_of_one_tensor(bounds, F):
    compare(
        lambda x: situ.glu(x, *bounds),
        lambda x: plain_glu(x, gate_bound=bounds[0], up_bound=bounds[1]),
        [draw(3, 7, 2 * F)],
    )


@pytest.mark.parametrize("rows", (1, 3, 131))
@pytest.mark.parametrize("added", (False, True))
def test_add_rms_norm(rows, added):
    tensors = [draw(rows, 18), draw(rows, 18, seed=1) if added else None, draw(18, seed=2)]
    compare(
        lambda h, y, w: add_norm.add_rms_norm(h, y, w, 1e-5, torch.float32),
        lambda h, y, w: plain_add_norm(h, y, w),
        tensors,
    )
    for which in (0, 1):  # the last norm's sum is not read again, and a sum's norm may not be
        compare(
            lambda h, y, w, which=which: add_norm.add_rms_norm(h, y, w, 1e-5, torch.float32)[which],
            lambda h, y, w, which=which: plain_add_norm(h, y, w)[which],
            tensors,
        )


def test_add_rms_norm_in_the_dtypes_of_mixed_precision():
    """A float32 stream, a bfloat16 output to add, a bfloat16 norm: what the plain operations give under autocast."""
    tensors = draw(37, 24).to(DEVICE), draw(37, 24, seed=1).bfloat16().to(DEVICE), draw(24, seed=2).to(DEVICE)
    weights = draw(37, 24, seed=8).to(DEVICE), draw(37, 24, seed=9).bfloat16().to(DEVICE)
    found, wanted = [], []
    for results in (found, wanted):
        h, y, w = (x.detach().clone().requires_grad_() for x in tensors)
        if results is found:
            outputs = add_norm.add_rms_norm(h, y, w, 1e-5, torch.bfloat16)
        else:
            outputs = plain_add_norm(h, y, w, dtype=torch.bfloat16)
        results += [*outputs, *torch.autograd.grad(outputs, (h, y, w), weights)]
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=2**-6, atol=1e-4)


@pytest.mark.parametrize("count", (1, 2, 5))
def test_attention_residual(count):
    compare(
        lambda q, g, *v: attention_residual.attention_residual(list(v), q, g, 1e-5),
        lambda q, g, *v: plain_residual(list(v), q, g),
        [draw(19, seed=8), draw(19, seed=9), *(draw(2, 9, 19, seed=j) for j in range(count))],
        5e-6,
    )


def test_attention_residual_of_a_zero_query_is_the_mean():
    sources = [draw(2, 3, 5, seed=j).to(DEVICE) for j in range(3)]
    zero, one = torch.zeros(5, device=DEVICE), torch.ones(5, device=DEVICE)
    mixed = attention_residual.attention_residual(sources, zero, one, 1e-5)
    torch.testing.assert_close(mixed, torch.stack(sources).mean(0))


@pytest.mark.parametrize("scored", (0, 1, 33, 90))
@pytest.mark.parametrize("bias", (False, True))
def test_scored_cross_entropy(scored, bias):
    g = torch.Generator().manual_seed(4)
    targets = torch.full((90,), -100)
    targets[torch.randperm(90, generator=g)[:scored]] = torch.randint(70, (scored,), generator=g)
    targets = targets.view(2, 45)
    compare(
        lambda h, w, b: cross_entropy.scored_cross_entropy(h, w, targets.to(DEVICE), b, -100),
        lambda h, w, b: plain_loss(h, w, targets, b),
        [draw(2, 45, 20), draw(70, 20, seed=1), draw(70, seed=2) if bias else None],
        5e-6,
    )


@pytest.mark.parametrize(("T", "D", "M", "J"), ((1, 3, 2, 1), (70, 16, 5, 2), (33, 40, 24, 16), (130, 128, 8, 4)))
def test_linear_pair(T, D, M, J):
    compare(linear_pair.linear_pair, plain_pair, [draw(2, T, D), draw(M, D, seed=1), draw(J, D, seed=2)])


@pytest.mark.parametrize("kind", ("softplus", "bounded", "logsigmoid"))
@pytest.mark.parametrize(
    ("T", "H", "K", "shift"), ((1, 1, 3, 0.0), (70, 2, 16, -6.0), (33, 3, 50, 0.0), (5, 2, 8, 9.0))
)
def test_decay_gate(kind, T, H, K, shift):
    """Shifts of -6 and 9: half-lives of hundreds of tokens, and of a fraction of one."""
    tensors = [draw(2, T, H * K), draw(H * K, seed=1) + shift, None if kind == "logsigmoid" else draw(H, seed=2)]
    compare(
        lambda u, b, a: decay_gate.decay_gate(u, b, a, GATES.index(kind), H),
        lambda u, b, a: plain_decay(u, b, a, kind, H),
        tensors,
    )


@pytest.mark.parametrize(
    ("kind", "step", "beta_max", "passed"),
    (
        (None, False, 2.0, 0), ("softplus", False, 1.0, 0), ("softplus", True, None, 0), ("bounded", False, 2.0, 3),
        ("logsigmoid", False, None, 0), (None, False, 1.0, 40),
    ),
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize(("T", "H"), ((1, 1), (70, 2), (600, 3)))
@pytest.mark.parametrize("used", (0, 1))
def test_scalar_gates(kind, step, beta_max, passed, T, H, used):
    """All results used, and the last alone: the others' columns of the gradient are then zero."""
    J = passed + H * ((kind is not None) + (beta_max is not None))
    tensors = [
        draw(2, T, J),
        draw(H, seed=1) if kind else None,
        None if kind in (None, "logsigmoid") else draw(H, seed=2),
    ]

    def of(form):
        return lambda *leaves: tuple(y for y in form(*leaves) if y is not None)[-used:]

    compare(
        of(lambda u, b, a: scalar_gates.scalar_gates(
            u, H, passed, None if kind is None else GATES.index(kind), b, a, step, beta_max
        )),
        of(lambda u, b, a: plain_scalar_gates(
            u, H, passed=passed, kind=kind, bias=b, A_log=a, step=step, beta_max=beta_max
        )),
        tensors,
        # of one token the bias's gradient may be what two numbers, fifteen times as large, leave of each other: a GPU's
        # exponential and division are some units in the last place off
        2e-6 if T > 1 else 3e-5,
    )  # fmt: skip


def test_scalar_gates_of_bfloat16_leave_as_float32():
    """A rounded column would be a rounded strength: sigmoids of bfloat16 numbers have float32 digits."""
    told = draw(2, 70, 6).bfloat16().to(DEVICE).requires_grad_()
    passed, _, _, beta = scalar_gates.scalar_gates(told, 2, 4, None, None, None, False, 2.0)
    assert passed.dtype == torch.bfloat16 and beta.dtype == torch.float32
    torch.testing.assert_close(beta, 2 * torch.sigmoid(told[..., 4:].float()), atol=1e-6, rtol=0)
    (gradient,) = torch.autograd.grad((passed.sum() + beta.sum(),), told)
    assert gradient.dtype == torch.bfloat16 and bool((gradient[..., :4] == 1).all())
