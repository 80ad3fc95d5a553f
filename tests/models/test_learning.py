"""Every stage can learn: one batch by heart, and an easy recall task from scratch."""

import pytest
import torch

from mnemolab.models import make_model
from mnemolab.tasks import make_task
from tests.models.stages import ALL


def fit(model, batches, steps, rate):
    optimiser = torch.optim.AdamW(model.parameter_groups(0.0), lr=rate, betas=(0.9, 0.95))
    losses = []
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 10)
        batch = batches(step)
        loss = model.loss(batch.inputs, batch.targets)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
        if len(losses) >= 5 and max(losses[-5:]) < 0.02:  # one batch alone may be an easy one
            break
    return losses


@torch.no_grad()
def accuracy(model, batch):
    model.eval()
    scored = batch.targets >= 0
    return (model(batch.inputs).argmax(-1) == batch.targets)[scored].float().mean().item()


@pytest.mark.parametrize(("name", "recipe"), ALL)
def test_one_batch_is_learned_by_heart(name, recipe):
    task = make_task("associative_recall", length=24, pairs=4)
    batch = task.sample(torch.arange(8))
    torch.manual_seed(0)
    model = make_model(name, recipe=recipe, vocab_size=task.vocabulary.size, width=32, heads=2, head_dim=16)
    losses = fit(model, lambda step: batch, 150, 1e-2)
    assert accuracy(model, batch) == 1.0, losses[::10]


@pytest.mark.parametrize("name", ("gpt2", "kda"))
def test_easy_recall_is_solved_from_scratch(name):
    task = make_task("associative_recall", length=24, pairs=4, key_vocabulary=16, value_vocabulary=16)
    torch.manual_seed(0)
    model = make_model(name, vocab_size=task.vocabulary.size, width=64, depth=1)
    fit(model, lambda step: task.sample(torch.arange(64 * step, 64 * step + 64)), 600, 3e-3)
    assert accuracy(model, task.sample(torch.arange(256), split="test")) > 0.99
