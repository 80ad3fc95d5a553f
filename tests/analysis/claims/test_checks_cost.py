"""Cost checks: what is timed is right, made-up times are judged as they should be, and the oracle's share."""

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from mnemolab.analysis.claims.checks import CHECKS, Undecidable, decoding, training, units
from mnemolab.kernels import situ_glu
from mnemolab.models import make_model
from mnemolab.models.state import count_elements


def made_up(times):
    """A `rounds` that runs every case once, and says that each took times(name) seconds with a little noise."""

    def rounds(cases, repeats, device):
        noise = 1 + 0.01 * np.random.default_rng(0).standard_normal((len(cases), repeats))
        for case in cases.values():
            case()
        return {name: times(name) * noise[n] for n, name in enumerate(cases)}

    return rounds


def passed(name, tier="quick", **options):
    return {check.name: check.passed for check in CHECKS[name](tier, "cpu", **options)}


# ---- decoding


@pytest.fixture
def short(monkeypatch):
    shapes = {"cpu": {"quick": decoding.Decoding((64, 256, 1024), 2, 1, 5)}}
    monkeypatch.setattr(decoding, "SHAPES", shapes)


def decode_times(fixed=0.0, hybrid=0.25, softmax=1.0):
    share = {"fixed": fixed, "hybrid": hybrid, "softmax": softmax}
    return made_up(lambda name: 1 + share[name.split()[0]] * int(name.split()[1]) / 100)


def test_decoding_is_judged_by_its_powers(monkeypatch, short):
    monkeypatch.setattr(decoding, "rounds", decode_times())
    found = passed("fixed-state-constant")
    assert len(found) == 7 and all(found.values()), found
    for broken, wrong in (
        ({"fixed": 0.2}, {"time, fixed (kda)", "time, hybrid less fixed"}),
        ({"softmax": 0.02}, {"time, softmax (gpt2)", "time, softmax less hybrid"}),
        ({"hybrid": 1.0}, {"time, softmax less hybrid"}),
    ):
        monkeypatch.setattr(decoding, "rounds", decode_times(**broken))
        assert {name for name, ok in passed("fixed-state-constant").items() if not ok} == wrong


def test_a_fixed_state_that_grows_is_found(monkeypatch, short):
    monkeypatch.setattr(decoding, "rounds", decode_times())
    monkeypatch.setitem(decoding.MODELS, "fixed", ("gpt2", {}))
    assert not passed("fixed-state-constant")["bytes, fixed (kda)"]


@torch.no_grad()
@pytest.mark.parametrize("stage", ("gpt2", "kimi_linear"))
def test_a_grown_cache_is_as_large_as_one_that_was_read(stage):
    torch.manual_seed(0)
    model = make_model(stage, vocab_size=64, width=16, depth=4, heads=2, head_dim=8).eval()
    state = decoding.with_context(model, 300, 2, "cpu", room=3)
    _, read = model.prefill(torch.zeros(2, 300, dtype=torch.int64))
    assert count_elements(state) == count_elements(read) == model.state_elements(300)
    assert decoding.state_size(state) == decoding.state_size(read) == 2 * 4 * model.state_elements(300)
    for _ in range(3):
        logits, state = model.step(torch.zeros(2, dtype=torch.int64), state)
    assert logits.isfinite().all() and count_elements(state) == model.state_elements(303)


# ---- training


def test_the_quadratic_form_is_attention():
    q, k, v = torch.randn(3, 2, 9, 2, 4, generator=torch.Generator().manual_seed(0))
    wanted = scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)
    torch.testing.assert_close(training.quadratic_attention(q, k, v), wanted)


@pytest.fixture
def short_training(monkeypatch):
    lengths = (16, 32, 64)
    shape = training.Training(((1, 1), lengths), ((1, 1), lengths), ((1, 1), lengths), 8, 5, ((128, 1), lengths))
    monkeypatch.setattr(training, "SHAPES", {"cpu": {"quick": shape}})


def training_times(recurrence=1.0, quadratic=2.0, flash=2.0, lstm=0.9, gain=4.0):
    powers = {"recurrence": recurrence, "quadratic": quadratic, "flash": flash, "lstm": lstm}

    def times(name):
        if name == "flash, same":
            return 64.0**quadratic / gain
        form, T = name.split()
        return float(T) ** powers[form]

    return made_up(times)


def test_training_is_judged_by_its_powers(monkeypatch, short_training):
    # here the recurrence's time grows along the axis at as many tokens too, and the LSTM's grows faster
    monkeypatch.setattr(training, "rounds", training_times(lstm=1.5))
    found = passed("linear-training")
    assert len(found) == 5 and all(found.values()), found
    for broken, wrong in (
        ({"recurrence": 1.4, "lstm": 2.0}, {"recurrence: power of T"}),
        ({"quadratic": 1.2}, {"quadratic: power of T"}),
        ({"flash": 1.1}, {"flash: power of T"}),
        ({"gain": 0.5}, {"quadratic over flash at T=64"}),
        ({"lstm": 1.05}, {"as many tokens: power of T, LSTM less recurrence"}),
    ):
        monkeypatch.setattr(training, "rounds", training_times(**{"lstm": 1.5, **broken}))
        assert {name for name, ok in passed("linear-training").items() if not ok} == wrong


def test_the_time_axis_is_left_to_parallel_hardware():
    assert training.SHAPES["cpu"]["quick"].axis[1] == () and training.SHAPES["cuda"]["quick"].axis[1]


# ---- units


def test_situ_needs_a_gpu_and_its_plain_form_is_right():
    with pytest.raises(Undecidable, match="a CUDA device would decide it"):
        CHECKS["situ-fused"]("quick", "cpu")
    gate, up = 30 * torch.randn(2, 100, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(units.plain_situ(gate, up), situ_glu(gate, up))


@pytest.mark.parametrize(("cost", "ok"), ((1.02, True), (1.2, False)))
def test_attention_residuals_may_cost_a_few_percent(monkeypatch, cost, ok):
    monkeypatch.setattr(units, "LATENCY", {"cpu": {"quick": units.Latency(128, 4, (1, 8), 2, 1, 9)}})
    monkeypatch.setattr(units, "rounds", made_up(lambda name: cost if name.endswith("attention") else 1.0))
    assert list(passed("attnres-latency").values()) == [ok, ok]


@torch.no_grad()
def test_both_residual_rules_run_on_the_same_weights():
    models = units._models(units.Latency(128, 4, (1, 8), 2, 1, 9), 0, "cpu", torch.float32)
    inputs = torch.arange(16).view(2, 8)
    # pseudo-queries start at zero, which is the plain network up to the norms' epsilon, in several layers
    attention, plain = (model(inputs).flatten() for model in models.values())
    assert torch.corrcoef(torch.stack((attention, plain)))[0, 1] > 0.99
    assert models["attention"].embedding.weight.data_ptr() == models["add"].embedding.weight.data_ptr()
    assert models["attention"].config.residual == "attention" and models["add"].config.residual == "add"


# ---- the oracle


def test_the_oracle_s_share_of_additive_interference():
    found = passed("additive-interference")
    assert len(found) == 7 and all(found.values()), found


def test_another_rule_is_found():
    # decay takes from the crosstalk as from the signal
    decayed = passed("additive-interference", additive="gated")
    assert not decayed["additive crosstalk over N/d, N=128"]
    same = passed("additive-interference", delta="additive")
    assert [name for name, ok in same.items() if not ok] == [f"kept, delta over additive, N={N}" for N in (64, 128)]
