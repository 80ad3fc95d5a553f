"""The norm on the heads' output: whatever a memory gives, the matched block hands on vectors of length one."""

import pytest
import torch

from mnemolab.kernels.neighbours.norms import rms_norm_gated
from mnemolab.models import STAGES, make_model, model_config
from mnemolab.models.config import HeadsConfig
from mnemolab.models.mixers import heads
from tests.models.stages import ALL

MATCHED = [name for name in STAGES if "matched" in STAGES[name].recipes]
RATED = [name for name in MATCHED if getattr(model_config(name, vocab_size=9).mixers[0], "decay", "none") != "none"]


def normed_heads(name, monkeypatch, **options):
    """RMS over all tokens and channels of what the norm makes of each layer's heads, before gain and gate."""
    found = []

    def seen(o, gate, weight, **rest):
        plain = rms_norm_gated(o, None, None, eps=rest["eps"])
        found.append(plain.square().mean().sqrt().item())
        return rms_norm_gated(o, gate, weight, **rest)

    monkeypatch.setattr(heads, "rms_norm_gated", seen)
    torch.manual_seed(0)
    model = make_model(name, vocab_size=64, **options)
    with torch.no_grad():
        model(torch.randint(64, (4, 128)))
    assert len(found) == model.config.depth
    return found


@pytest.mark.parametrize(
    ("name", "half_life"), [(n, 0.0) for n in MATCHED] + [(n, h) for n in RATED for h in (10.0, 640.0)]
)
def test_matched_heads_leave_their_norm_at_length_one(name, half_life, monkeypatch):
    # Mamba-2 writes by the step size that drives its decay: the slower it forgets, the smaller its output
    assert min(normed_heads(name, monkeypatch, half_life=half_life or None)) > 0.9


@pytest.mark.parametrize(("name", "recipe"), ALL)
def test_published_norms_keep_their_papers_epsilon(name, recipe):
    for mixer in model_config(name, recipe=recipe, vocab_size=9).mixers:
        if isinstance(mixer, HeadsConfig) and mixer.output_norm:
            assert mixer.output_eps == (1e-12 if recipe == "matched" else 1e-5)
