"""What holds for every stage: three ways of running agree, nothing leaks, every parameter learns, sizes are as declared."""

import copy
from functools import cache

import pytest
import torch

from mnemolab.errors import BadRequest
from mnemolab.models import make_model
from mnemolab.models.state import count_elements, map_state
from tests.models.stages import ALL, CASES, SIZES, VOCABULARY, case_id, small, tokens

LENGTHS = (1, 2, 3, 4, 63, 64, 65, 200)
# of the largest logit. fp32: sums in another order. fp64 with the loop: the same sums, so only attention's order differs
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}

every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=case_id)
CASE_IDS = [f"{name}-{case_id(options)}" for name, options in CASES]


@torch.no_grad()
def stepped(model, inputs, state=None):
    logits = []
    for t in range(inputs.shape[1]):
        y, state = model.step(inputs[:, t], state)
        logits.append(y)
    return torch.stack(logits, 1), state


@cache
@torch.no_grad()
def walked(case, dtype, backend):
    """The case's model, its logits token by token, and the size of its state after each of the LENGTHS."""
    name, options = CASES[case]
    model, state = small(name, backend=backend, **options).to(dtype), None
    logits, sizes, done = [], {}, 0
    for length in (*LENGTHS, max(LENGTHS) + 2):
        more, state = stepped(model, tokens(2, max(LENGTHS) + 2)[:, done:length], state)
        logits.append(more)
        sizes[length], done = count_elements(state), length
    return model, torch.cat(logits, 1), sizes


@pytest.mark.parametrize("case", range(len(CASES)), ids=CASE_IDS)
@pytest.mark.parametrize(("dtype", "backend"), [(torch.float32, "auto"), (torch.float64, "loop")], ids=("fp32", "fp64"))
def test_forward_is_stepping_is_prefill_then_stepping(case, dtype, backend):
    model, wanted, _ = walked(case, dtype, backend)
    inputs = tokens(2, max(LENGTHS) + 2)
    assert wanted.std() > 0.01
    tolerance = TOLERANCE[dtype] * max(1.0, wanted.abs().max().item())
    for length in LENGTHS:
        with torch.no_grad():
            whole = model(inputs[:, :length])
            start, state = model.prefill(inputs[:, :length])
            more, state = model.prefill(inputs[:, length : length + 1], state)
        last, state = stepped(model, inputs[:, length + 1 : length + 2], state)
        found = torch.cat((start, more, last), 1)
        torch.testing.assert_close(whole, wanted[:, :length], atol=tolerance, rtol=0)
        torch.testing.assert_close(found, wanted[:, : length + 2], atol=tolerance, rtol=0)


@every_case
def test_later_tokens_leave_earlier_outputs_bit_identical(name, options):
    model = small(name, **options)
    inputs = tokens(2, 70)
    changed = inputs.clone()
    changed[:, 41:] = (changed[:, 41:] + 1) % VOCABULARY
    with torch.no_grad():
        before, after = model(inputs), model(changed)
    assert torch.equal(before[:, :41], after[:, :41])
    assert not torch.equal(before[:, 41], after[:, 41])


@every_case
def test_examples_of_a_batch_do_not_see_each_other(name, options):
    model = small(name, **options)
    inputs = tokens(3, 20)
    with torch.no_grad():
        together, alone = model(inputs), model(inputs[1:2])
    torch.testing.assert_close(together[1:2], alone, atol=1e-5, rtol=0)


@every_case
def test_gradients_reach_every_parameter(name, options):
    model = small(name, **options).train()
    inputs = tokens(4, 24)
    model.loss(inputs, inputs.roll(-1, 1)).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("case", range(len(CASES)), ids=CASE_IDS)
@torch.no_grad()
def test_state_elements_are_those_of_the_real_state(case):
    model, _, sizes = walked(case, torch.float32, "auto")
    inputs = tokens(2, max(LENGTHS))
    for length in LENGTHS:
        _, prefilled = model.prefill(inputs[:, :length])
        assert count_elements(prefilled) == sizes[length] == model.state_elements(length)


@every_case
@torch.no_grad()
def test_no_tokens_give_no_outputs_and_a_state_to_start_from(name, options):
    model, inputs = small(name, **options), tokens(2, 5)
    assert model(inputs[:, :0]).shape == (2, 0, VOCABULARY)
    _, state = model.prefill(inputs[:, :0])
    first, state = model.prefill(inputs[:, :3], state)
    nothing, state = model.prefill(inputs[:, :0], state)
    rest, _ = model.prefill(inputs[:, 3:], state)
    torch.testing.assert_close(torch.cat((first, nothing, rest), 1), model(inputs), atol=1e-5, rtol=0)


@every_case
def test_traces_of_a_model_in_training_change_nothing(name, options):
    model, inputs = small(name, **options).train(), tokens(2, 8)
    held = {n: t.clone() for n, t in model.state_dict().items()}
    model.traces(inputs)
    assert all(torch.equal(t, held[n]) for n, t in model.state_dict().items())
    assert all(module.training for module in model.modules())


@every_case
def test_state_continues_after_repeating_and_selecting(name, options):
    model = small(name, **options)
    inputs = tokens(3, 12)
    with torch.no_grad():
        wanted = model(inputs)
        _, state = model.prefill(inputs[:, :9])
        copies = model.repeat_state(state, 2)
        chosen = model.select_state(state, torch.tensor([2, 0]))
        pairs, _ = stepped(model, inputs[:, 9:].repeat_interleave(2, 0), copies)
        swapped, _ = stepped(model, inputs[[2, 0], 9:], chosen)
        # the copies were stepped, and the state that they came from is still what it was
        again, _ = stepped(model, inputs[:, 9:], state)
    torch.testing.assert_close(pairs, wanted[:, 9:].repeat_interleave(2, 0), atol=1e-5, rtol=0)
    torch.testing.assert_close(swapped, wanted[[2, 0], 9:], atol=1e-5, rtol=0)
    torch.testing.assert_close(again, wanted[:, 9:], atol=1e-5, rtol=0)


@every_case
@torch.no_grad()
def test_two_continuations_of_one_state_do_not_see_each_other(name, options):
    model = small(name, **options)
    context, one, other = tokens(2, 9, seed=1), tokens(2, 4, seed=2), tokens(2, 3, seed=3)
    _, state = model.prefill(context)
    # the second branch is read before the first goes on, and room for both was kept
    _, state = model.prefill(tokens(2, 1, seed=4), state)
    context = torch.cat((context, tokens(2, 1, seed=4)), 1)
    branches = [model.prefill(part[:, :-1], state) for part in (one, other)]
    for part, (logits, branch) in zip((one, other), branches, strict=True):
        wanted = model(torch.cat((context, part), 1))[:, context.shape[1] :]
        last, _ = model.step(part[:, -1], branch)
        torch.testing.assert_close(torch.cat((logits, last[:, None]), 1), wanted, atol=1e-5, rtol=0)


@every_case
def test_checkpoint_round_trip(name, options, tmp_path):
    model, other = small(name, **options), small(name, seed=5, **options)
    inputs = tokens(2, 10)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    assert not torch.equal(model(inputs), other(inputs))
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert torch.equal(model(inputs), other(inputs))


@every_case
def test_optimiser_groups_hold_each_parameter_once_and_spare_gates_norms_and_biases(name, options):
    model = small(name, **options)
    decayed, spared = model.parameter_groups(0.1)
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = [*decayed["params"], *spared["params"]]
    assert len(groups) == len(set(groups)) == len(names)
    spare = {"A_log", "dt_bias", "bias", "control", "decay_up", "positions", "skip", "query", "gain"}
    wrong = [names[p] for p in decayed["params"] if spare & set(names[p].split(".")) or "norm" in names[p]]
    assert wrong == []
    assert any("embedding" in names[p] for p in decayed["params"])


def kept_in_fp32(name):
    """Decay rates, Mamba-2's D, routers with their bias and loads, queries and gains of attention residuals."""
    return name.endswith(("A_log", "dt_bias", "skip", "log_decay")) or "router." in name or "residual." in name


@every_case
@pytest.mark.parametrize("cast", (lambda m: m.to(torch.bfloat16), lambda m: m.half()), ids=("bf16", "half"))
def test_a_cast_leaves_what_needs_fp32_and_its_gradient_as_they_were(name, options, cast):
    model, inputs = small(name, **options).train(), tokens(2, 8)
    model.loss(inputs, inputs).backward()
    held = {n: t.clone() for n, t in [*model.named_parameters(), *model.named_buffers()]}
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    cast(model)
    for n, t in [*model.named_parameters(), *model.named_buffers()]:
        if kept_in_fp32(n):
            assert t.dtype == torch.float32 and torch.equal(t, held[n]), n
        assert t.grad is None or t.grad.dtype == t.dtype
        if kept_in_fp32(n) and n in grads:
            assert torch.equal(t.grad, grads[n])
    assert not any(t.dtype == torch.float32 and not kept_in_fp32(n) for n, t in model.named_parameters())


def test_a_router_balances_in_a_bf16_model():
    """Loads above 256 and steps of 0.001 at a bias of 0.5 are lost in bf16."""
    router = small("kimi_linear", recipe="published").to(torch.bfloat16).train().layers[-1].channel.router
    router.bias.fill_(0.5)
    router(torch.randn(4096, 16, dtype=torch.bfloat16))
    assert router.load.sum() == 2 * 4096
    assert (router.bias - 0.5).abs().max().item() == pytest.approx(1e-3, rel=0.01)


@every_case
def test_low_precision_runs_and_leaves_rates_in_fp32(name, options):
    model = small(name, **options)
    inputs = tokens(2, 12)
    wanted = model(inputs)
    low = copy.deepcopy(model).to(torch.bfloat16)
    for n, p in low.named_parameters():
        assert p.dtype == (torch.float32 if kept_in_fp32(n) else torch.bfloat16), n
    # the median: after rounding a router may choose another expert, and a read that nearly cancels is normed up
    assert (low(inputs).float() - wanted).abs().median() < 0.05
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(inputs, inputs)
    assert loss.isfinite()


@every_case
def test_traces_are_fp32_and_shaped_as_declared(name, options):
    model = small(name, **options)
    B, T = 2, 9
    for block, trace in zip(model.layers, model.traces(tokens(B, T)), strict=True):
        if not trace:
            continue
        assert trace["q"].shape == trace["k"].shape and trace["q"].shape[:3] == (B, T, 2)
        for part, last in (("log_decay", "k"), ("erase", "k"), ("write", "v")):
            if trace[part] is not None:
                assert trace[part].shape in (trace[last].shape, trace[last].shape[:3])
        assert all(value is None or value.dtype == torch.float32 for value in trace.values())
        assert trace["log_decay"] is None or (trace["log_decay"] <= 0).all()
        assert set(trace) == {"q", "k", "v", "log_decay", "erase", "write"}, block.mixer
        if getattr(block.mixer.config, "feature_map", "") == "silu_l2":
            for name_ in ("q", "k"):
                torch.testing.assert_close(trace[name_].norm(dim=-1), torch.ones(B, T, 2), atol=1e-2, rtol=0)


def test_a_construction_depends_on_the_seed_alone():
    for name, recipe in ALL:
        made: list = []
        for _ in range(2):
            torch.manual_seed(3)
            made.append(make_model(name, recipe=recipe, **SIZES).state_dict())
        assert all(torch.equal(a, b) for a, b in zip(made[0].values(), made[1].values(), strict=True)), name


def test_tokens_outside_the_vocabulary_are_named():
    model = small("kda")
    for bad in (VOCABULARY, -1):
        with pytest.raises(BadRequest, match=f"token {bad}.*vocab_size={VOCABULARY}.*0 to {VOCABULARY - 1}"):
            model(torch.tensor([[1, bad]]))
        with pytest.raises(BadRequest, match=f"token {bad}"):
            model.step(torch.tensor([bad]))


def test_states_can_be_walked():
    assert map_state({"a": [torch.ones(2, 3), None]}, lambda t: t * 2)["a"][0].sum() == 12
