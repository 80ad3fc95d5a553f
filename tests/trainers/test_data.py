"""The feed: batch s is examples s*B to (s+1)*B, whatever the block, the order of asking or the number of ranks."""

import pytest
import torch

from mnemolab.tasks import make_task
from mnemolab.trainers.data import Feed, sample_range


@pytest.mark.parametrize("block", [1, 3, 64])
def test_steps_are_consecutive_examples_of_the_train_stream(block):
    task = make_task("key_overwrite")
    feed = Feed(task, 4, seed=5, device="cpu")
    feed.block = block
    whole = sample_range(task, 0, 32, "train", 5, "cpu")
    for step in (0, 1, 2, 3, 7, 4):  # also backwards, as after a resume
        inputs, targets = feed(step)
        assert torch.equal(inputs, whole.inputs[4 * step : 4 * step + 4])
        assert torch.equal(targets, whole.targets[4 * step : 4 * step + 4])


def test_ranks_share_a_batch():
    task = make_task("key_overwrite")
    whole, _ = Feed(task, 6, seed=0, device="cpu")(3)
    parts = [Feed(task, 6, seed=0, device="cpu", rank=rank, world=3)(3)[0] for rank in range(3)]
    assert torch.equal(torch.cat(parts), whole)
