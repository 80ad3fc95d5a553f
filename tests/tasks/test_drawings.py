"""The example that each task's docstring draws is run: its targets are what the oracle says of its inputs."""

import inspect

import pytest
import torch

from mnemolab.tasks import TASKS, make_task

# fields that give a drawing's task the tokens and modes that the drawing shows
FIELDS = {
    "topic_switch": {"topic_values": 16, "pairs": 4},
    "needle": {"value_tokens": 2},
    "random_copy": {},
}


def drawing(cls):
    """Rows of tokens after `inputs` and `targets` in the docstring."""
    lines = [line.split() for line in (inspect.getdoc(cls) or "").splitlines()]
    found = {line[0]: line[1:] for line in lines if line and line[0] in ("inputs", "targets")}
    return found["inputs"], found["targets"]


@pytest.mark.parametrize("name", list(TASKS))
def test_the_drawing_is_right(name):
    task = make_task(name, **FIELDS.get(name, {}))
    vocabulary = task.vocabulary
    tokens = {vocabulary.text(token): token for token in range(vocabulary.size)} | {".": vocabulary.filler[0]}
    inputs, targets = drawing(type(task))
    assert len(inputs) == len(targets) and any(word != "-" for word in targets)
    solved = task.solve(torch.tensor([[tokens[word] for word in inputs]]))[0].tolist()
    assert ["-" if token == -100 else vocabulary.text(token) for token in solved] == targets
