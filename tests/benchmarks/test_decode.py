"""The decoding benchmark: state bytes are those of the accounting, one JSON value comes out, bad sizes are named."""

import json

import pytest

from mnemolab.cli import main
from mnemolab.models import make_model

QUICK = ["bench", "decode", "--batch", "2", "--width", "32", "--depth", "4", "--tokens", "2", "--repeats", "2"]


def test_bytes_and_times_of_fixed_and_growing_states(capsys, tmp_path):
    saved = tmp_path / "new" / "decode.jsonl"
    args = [*QUICK, "--stages", "kda,gpt2,kimi_linear", "--contexts", "8,40", "--save", str(saved)]
    assert main([*args, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert json.loads(saved.read_text(encoding="utf-8")) == result
    held = {(row["stage"], row["context"]): row["state_bytes"] for row in result["rows"]}
    for stage in ("kda", "gpt2", "kimi_linear"):
        model = make_model(stage, vocab_size=64, width=32, depth=4, heads=1, head_dim=32)
        for context in (8, 40):
            assert held[stage, context] == 4 * model.state_elements(context)  # float32
    assert held["kda", 8] == held["kda", 40]
    assert held["gpt2", 40] > held["kimi_linear", 40] > held["kimi_linear", 8]
    assert all(row["milliseconds"] > 0 for row in result["rows"])
    assert main(args) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table[-3:]] == ["kda", "gpt2", "kimi_linear"]
    assert len(table[-1].split()) == 5


@pytest.mark.parametrize(
    "words,told",
    (
        (["--contexts", "8,x"], "--contexts 8,x"),
        (["--contexts", "0"], "--contexts 0"),
        (["--width", "40"], "--width 40"),
        (["--batch", "0"], "--batch 0"),
        (["--stages", "kdaa"], "did you mean 'kda'"),
    ),
)
def test_bad_sizes_are_named(words, told, capsys):
    assert main(["bench", "decode", *words]) == 2
    shown = capsys.readouterr().err
    assert told in shown and shown.count("\n") == 1
