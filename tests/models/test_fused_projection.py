"""What a GPU runs between a projection and a memory, and behind it, gives each kind of model the plain operations' results.

The Triton forms run in the interpreter here; only that they are chosen is forced.
"""

from importlib.util import find_spec

import pytest
import torch

from mnemolab.kernels.neighbours import norms, scalar_gates, short_conv
from tests.models.stages import case_id, small, tokens

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)
if torch.cuda.is_available():
    pytest.skip(
        "the interpreter is off where there is a GPU, and tests/gpu/test_models.py compares", allow_module_level=True
    )

CASES = [
    ("deltanet", {"recipe": "matched"}),
    ("gpt2", {"recipe": "matched"}),
    ("mamba2", {"recipe": "published"}),
    ("gated_deltanet", {"recipe": "published"}),
    ("kda", {"recipe": "matched"}),
    ("gla", {"recipe": "matched"}),
    ("linear_attention", {"feature_map": "elu1"}),
    ("gated_deltanet", {"positions": "rotary", "key_heads": 1}),
]


def results(name, options):
    """Logits, gradients, and the logits of a prompt that is continued by a piece and by steps."""
    model, inputs = small(name, depth=1, **options), tokens(2, 11)
    logits = model(inputs)
    cotangent = torch.randn(logits.shape, generator=torch.Generator().manual_seed(3))
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(logits, parameters, cotangent, allow_unused=True)
    with torch.no_grad():
        pieces, state = model.prefill(inputs[:, :5])
        more, state = model.prefill(inputs[:, 5:9], state)
        one, state = model.step(inputs[:, 9], state)
        other, _ = model.step(inputs[:, 10], state)
    decoded = torch.cat((pieces, more, one[:, None], other[:, None]), 1)
    return [logits.detach(), decoded, *(torch.zeros(()) if g is None else g for g in gradients)]


@pytest.mark.parametrize(("name", "options"), CASES, ids=case_id)
@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
def test_the_fused_forms_change_nothing(name, options, monkeypatch):
    wanted = results(name, options)
    calls = []
    for module in (short_conv, norms, scalar_gates):
        monkeypatch.setattr(module, "fused", lambda x, *others, module=module: bool(calls.append(module) or x.numel()))
    found = results(name, options)
    by_head = name in ("deltanet", "mamba2", "gated_deltanet", "kda")
    assert set(calls) == ({short_conv, norms, scalar_gates} if by_head else {short_conv, norms})
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5 * max(1.0, float(b.abs().max())), rtol=0)
