"""The CPU benchmark measures what it says: the forms agree, FLOPs follow the operations, one JSON value comes out."""

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mnemolab.benchmarks.kernels_cpu import STAGES, _targets, flops, operands, quadratic
from mnemolab.benchmarks.timing import Times, interleaved
from mnemolab.cli import main
from mnemolab.kernels import memory_scan


@pytest.mark.parametrize("stage", STAGES)
def test_the_forms_that_are_compared_agree(stage):
    given = operands(stage, (2, 40, 2, 8))
    loop, chunked = (memory_scan(**given, backend=backend)[0] for backend in ("loop", "chunked"))
    torch.testing.assert_close(chunked, loop, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(quadratic(**given), loop, rtol=1e-4, atol=1e-5)


def test_flops_follow_the_matrix_products():
    """Matrix products as PyTorch counts them: the loop's state terms alone, and growth with C as the formula has it."""
    T, D = 64, 16
    with torch.no_grad():
        given = operands("kda", (1, T, 1, D))
        counted = {}
        for C in (16, 32, 64):
            with FlopCounterMode(display=False) as counter:
                memory_scan(**given, backend="chunked", chunk_size=C)
            counted[C] = counter.get_total_flops() / T
    for C, found in counted.items():
        useful = flops("kda", 10**9, D, D, C)
        # the counter does not see products that accumulate in place: W S, the write to the state, and A R
        whole = found + 4 * D * D + 2 * C * D
        # here half of a triangle's products are with zeros and the inverse comes on top
        assert useful < whole < 2 * useful
    assert counted[16] < counted[32] < counted[64]


def test_one_token_chunks_have_the_fewest_flops_without_decay():
    """Without decay nothing is saved by sharing a state between tokens; with it, its cost falls as KV/C."""
    for D in (16, 64):
        counts = [flops("deltanet", 1024, D, D, C) for C in (1, 2, 4, 16, 64)]
        assert counts == sorted(counts)
        assert flops("kda", 1024, D, D, 2) < flops("kda", 1024, D, D, 1)
    assert flops("gla", 64, 16, 16, 64) == 32 * 65 + 32, "one chunk of full length has no state"


def test_interleaved_takes_turns():
    order = []
    times = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3, slow=1.0)
    assert order == ["a", "b"] * 4 and len(times["a"].rounds) == 3
    assert 0 <= times["a"].least <= times["a"].median
    ticks = iter(range(100))
    slow = interleaved({"a": lambda: None}, 7, clock=lambda: float(next(ticks)), slow=0.5)
    assert len(slow["a"].rounds) == 3 and slow["a"].least == 1.0


def test_bench_kernels_prints_one_json_value(capsys, tmp_path):
    threads = torch.get_num_threads()
    saved = tmp_path / "new" / "kernels.jsonl"
    args = [
        "bench",
        "kernels",
        "--quick",
        "--repeats",
        "2",
        "--threads",
        "1",
        "--clock",
        "cpu",
        "--json",
        "--save",
        str(saved),
    ]
    assert main(args) == 0
    result = json.loads(capsys.readouterr().out)
    assert json.loads(saved.read_text(encoding="utf-8")) == result
    assert result["targets"] == []  # their bounds hold at the full shape alone
    assert {row["form"] for row in result["grid"]} == {"loop", "quadratic", "chunked"}
    assert {row["stage"] for row in result["chunks"]} == {"deltanet", "gated_deltanet", "kda"}
    fewest = {(row["stage"], row["D"]): row["C"] for row in result["fewest_flops"]}
    assert fewest["deltanet", 256] == 1 and fewest["kda", 4] == 1 and fewest["kda", 256] > 1
    assert torch.get_num_threads() == threads
    assert main([*args[:-3]]) == 0
    table = capsys.readouterr().out
    assert "fewest FLOPs at C=" in table and "no ratios" in table
    times = {"attention": 2.0, "loop kda": 60.0, "chunked kda": 5.0, "chunked gated_deltanet": 6.0}
    rows = _targets({name: Times((x, x, 2 * x)) for name, x in times.items()})
    assert [(row["ratio"], row["met"]) for row in rows] == [(12.0, True), (2.5, True), (3.0, False)]
