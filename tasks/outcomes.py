"""What an answer is: right, an earlier value of the same key, another key's value, a value never shown, or no value.

B batch, Q queries, V value tokens.
"""

import torch
from torch import Tensor

from mnemolab.tasks.base import Batch
from mnemolab.tasks.vocabulary import Vocabulary

__all__ = ["OUTCOMES", "classify", "first_shown", "presented"]

OUTCOMES = ("correct", "stale", "other_key", "absent", "invalid")


def first_shown(batch: Batch, vocabulary: Vocabulary) -> Tensor:
    """(B,V) position at which each value token first stands in the inputs, T where it never does."""
    values, length = vocabulary.values, batch.inputs.shape[1]
    index = torch.where(
        (batch.inputs >= values.start) & (batch.inputs < values.stop), batch.inputs - values.start, len(values)
    )
    places = torch.arange(length, device=index.device).expand_as(index)
    first = torch.full((len(batch), len(values) + 1), length, dtype=torch.int64, device=index.device)
    return first.scatter_reduce_(1, index, places, "amin")[:, : len(values)]


def presented(batch: Batch, vocabulary: Vocabulary) -> Tensor:
    """(B,V) bool: whether each value token stands anywhere in the inputs."""
    return first_shown(batch, vocabulary) < batch.inputs.shape[1]


def classify(batch: Batch, predictions: Tensor, vocabulary: Vocabulary) -> Tensor:
    """(B,Q) int8 codes into OUTCOMES of the predicted tokens (B,Q), -1 in unused slots; the first that fits.

    correct: the target. stale: another value that this key has or had. other_key: a value shown before the query.
    absent: a value not shown before it, or NONE or another verdict where it is wrong. invalid: any other token.
    """
    queries, values = batch.queries, vocabulary.values
    is_value = (predictions >= values.start) & (predictions < values.stop)
    shown = first_shown(batch, vocabulary).gather(1, (predictions - values.start).clamp(0, len(values) - 1))
    judged = vocabulary["answers"]
    answer = is_value | ((predictions >= judged.start) & (predictions < judged.stop))
    if vocabulary.has("none"):
        answer = answer | (predictions == vocabulary.token("none"))
    stale = (queries["stale"] == predictions[..., None]).any(-1)
    codes = torch.full_like(predictions, OUTCOMES.index("invalid"))
    for name, fits in (
        ("absent", answer),
        ("other_key", is_value & (shown < queries["start"])),
        ("stale", stale),
        ("correct", predictions == queries["target"]),
    ):
        codes = torch.where(fits, OUTCOMES.index(name), codes)
    return torch.where(queries["position"] < 0, -1, codes).to(torch.int8)
