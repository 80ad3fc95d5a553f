"""`mnemolab bench generation` measures what it says, after it has checked the examples."""

import json

import pytest

from mnemolab.benchmarks import generation
from mnemolab.cli import main
from mnemolab.tasks import TASKS


def test_it_covers_every_task():
    assert {name for name, _ in generation.SIZES.values()} == set(TASKS)


def test_json_is_one_value(capsys, tmp_path):
    saved = tmp_path / "deep" / "generation.jsonl"
    words = ["bench", "generation", "--json", "--tasks", "stack,associative_recall", "--batch", "64", "--repeats", "1"]
    assert main([*words, "--save", str(saved)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["rows"][0]["label"] == "associative_recall" and len(result["rows"]) == 4
    assert all(row["correct"] and row["examples_per_second"] > 0 for row in result["rows"])
    assert json.loads(saved.read_text()) == result


def test_wrong_examples_are_reported(monkeypatch, capsys):
    monkeypatch.setattr(generation, "_correct", lambda task, device: False)
    assert main(["bench", "generation", "--tasks", "stack", "--batch", "32", "--repeats", "1"]) == 1
    assert "WRONG" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, message",
    [
        (["--tasks", "stak"], "did you mean 'stack'"),
        (["--batch", "0"], "--batch 0"),
        (["--device", "cuda"], "no CUDA device"),
    ],
)
def test_bad_requests(words, message, capsys):
    import torch

    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("there is one")
    assert main(["bench", "generation", *words]) == 2
    assert message in capsys.readouterr().err
