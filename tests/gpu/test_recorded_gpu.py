"""What a recording reads outlives its maker: graphs own nothing, and a benchmark keeps only the replay."""

import gc
import weakref

import pytest
import torch

from mnemolab.analysis.claims.checks import decoding
from mnemolab.benchmarks.timing import WARM, recorded
from mnemolab.models import make_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICE = "cuda"


def overwrite_freed_memory():
    gc.collect()
    torch.cuda.empty_cache()
    return [torch.full((1 << 18,), 7.0, device=DEVICE) for _ in range(64)]


def test_a_replay_keeps_what_its_function_closes_over():
    seen, out = [], torch.zeros(1 << 18, device=DEVICE)

    def make():
        x = torch.arange(1 << 18, device=DEVICE, dtype=torch.float32)
        seen.append(weakref.ref(x))
        return recorded(lambda: out.copy_(2 * x), DEVICE)

    replay = make()
    taken = overwrite_freed_memory()
    replay()
    assert seen[0]() is not None
    assert torch.equal(out, 2 * torch.arange(1 << 18, device=DEVICE, dtype=torch.float32))
    del taken, replay
    gc.collect()
    assert seen[0]() is None


def last_logits(stage, calls):
    """Logits (B,V) of the last token of `calls` calls of the decoding that is timed, whose maker is gone by then."""
    kept = []

    def make():
        torch.manual_seed(0)
        sizes = {"vocab_size": 64, "depth": 4, "heads": 2, "head_dim": 32, "width": 64}
        model = make_model(stage, **sizes).eval().to(DEVICE, torch.bfloat16)
        head = model.step

        def step(token, state):
            logits, state = head(token, state)
            kept[:] = [logits]
            return logits, state

        model.step = step
        with torch.no_grad():
            state = model.prefill(torch.arange(64, device=DEVICE).view(2, 32))[1]
        return decoding._decode(model, state, decoding.Decoding((32,), batch=2, tokens=3, repeats=2), DEVICE)

    call = make()
    taken = overwrite_freed_memory()
    for _ in range(calls):
        call()
    found = kept[0].float().clone()
    del taken
    return found


@pytest.mark.parametrize("stage", ["kda", "kimi_linear", "gpt2"])
def test_the_first_replay_is_the_call_after_the_warm_ones(stage, monkeypatch):
    """Memory states are updated in place and go on; a cache is written at the same place by every replay."""
    replayed = last_logits(stage, 1)
    monkeypatch.setattr(decoding, "replayed", lambda run, device: run)
    called = last_logits(stage, WARM + 1)
    assert called.abs().max() > 1 and called.isfinite().all()
    assert (replayed - called).abs().max() < 0.02 * called.abs().max()
