"""flash-linear-attention as the other side of the kernel benchmark (an optional extra: `pip install mnemolab[bench]`).

As released, fla-core 0.6.0 refuses gated backward passes on Hopper with Triton 3.4 to 3.7.0 (its issue 640: a miscompile).
The guard is lifted here, and every result is checked against float64 before it is timed; a wrong one is not timed.
Its autotuner compiles for one to three minutes an op and head size. `compile_all` does that in parallel processes and leaves
the code in Triton's cache; the trials that choose are then run one after the other, on a GPU that does nothing else.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

__all__ = ["compile_all", "describe", "shorten_trials", "sides"]


def installed() -> bool:
    try:
        version("fla-core")
    except PackageNotFoundError:
        return False
    return True


def describe() -> str:
    if not installed():
        return "fla not installed"
    return f"fla-core {version('fla-core')}, its Hopper guard of gated backward passes lifted"


def _lift_guard() -> None:
    import_module("fla.ops.common.chunk_o").TRITON_ABOVE_3_7_1 = True


def _call(module: str, name: str, arguments: Callable[[dict], dict]) -> Callable[[dict], Any]:
    function = getattr(import_module(module), name)
    return lambda x: function(x["q"], x["k"], x["v"], **arguments(x))[0]


def sides(op: str) -> dict[str, Callable[[dict], Any]]:
    """Every fla form of `op` that has a backward pass; its recurrent gated delta rules have none."""
    if not installed():
        return {}
    _lift_guard()
    table: dict[str, list[tuple[str, str, Callable[[dict], dict]]]] = {
        "deltanet": [
            ("fla.ops.delta_rule", "chunk_delta_rule", lambda x: {"beta": x["erase"]}),
            ("fla.ops.delta_rule", "fused_recurrent_delta_rule", lambda x: {"beta": x["erase"]}),
        ],
        "gated_deltanet": [
            ("fla.ops.gated_delta_rule", "chunk_gated_delta_rule", lambda x: {"g": x["log_decay"], "beta": x["erase"]}),
        ],
        "kda": [("fla.ops.kda", "chunk_kda", lambda x: {"g": x["log_decay"], "beta": x["erase"]})],
        "gla": [
            ("fla.ops.gla", "chunk_gla", lambda x: {"g": x["log_decay"]}),
            ("fla.ops.gla", "fused_recurrent_gla", lambda x: {"gk": x["log_decay"]}),
        ],
        "scalar_decay": [
            ("fla.ops.simple_gla", "chunk_simple_gla", lambda x: {"g": x["log_decay"]}),
            ("fla.ops.simple_gla", "fused_chunk_simple_gla", lambda x: {"g": x["log_decay"]}),
            ("fla.ops.simple_gla", "fused_recurrent_simple_gla", lambda x: {"g": x["log_decay"]}),
        ],
        "linear_normalised": [
            ("fla.ops.linear_attn", "chunk_linear_attn", lambda x: {"normalize": True}),
            ("fla.ops.linear_attn", "fused_chunk_linear_attn", lambda x: {"normalize": True}),
            ("fla.ops.linear_attn", "fused_recurrent_linear_attn", lambda x: {"normalize": True}),
        ],
        "gated_deltanet2": [
            ("fla.ops.gdn2", "chunk_gdn2", lambda x: {"g": x["log_decay"], "b": x["erase"], "w": x["write"]}),
        ],
    }
    found = {}
    for module, name, arguments in table[op]:
        try:
            found[f"fla {name}"] = _call(module, name, arguments)
        except (ImportError, AttributeError) as error:
            print(f"fla {name}: {error}", file=sys.stderr)
    return found


def shorten_trials() -> None:
    """Autotuning with trials of 10 ms instead of 100, still dozens of launches each: its choices change little, its time much."""
    import triton

    bench = partial(triton.testing.do_bench, warmup=2, rep=10)
    triton.runtime.driver.active.get_benchmarker = lambda: bench


def _compile_only() -> None:
    """Autotuning that runs every candidate once and measures none."""
    import triton

    def bench(function: Callable[[], Any], quantiles: tuple[float, ...] = (0.5,), **rest: Any) -> list[float]:
        function()
        return [1.0] * len(quantiles)

    triton.runtime.driver.active.get_benchmarker = lambda: bench


def compile_all(ops: list[str], shapes: list[tuple[int, ...]], workers: int, seconds: float = 420.0) -> None:
    """Compile what fla's autotuner would try for every op and shape, in `workers` processes, for at most `seconds`."""
    # fla tunes by heads and channels; other sizes share its choice
    kinds = {(shape[2], shape[3]): shape for shape in shapes}
    # the widest heads compile longest, so they begin
    waiting = [(op, shape) for shape in sorted(kinds.values(), key=lambda shape: -shape[3]) for op in ops]
    environment = {**os.environ, "FLA_CACHE_RESULTS": "0", "OMP_NUM_THREADS": "1"}
    running: list[subprocess.Popen] = []
    end = time.monotonic() + seconds
    while (waiting or running) and time.monotonic() < end:
        while waiting and len(running) < workers:
            op, shape = waiting.pop(0)
            command = [sys.executable, "-m", "mnemolab.benchmarks.kernels_fla", op, ",".join(map(str, shape))]
            running.append(subprocess.Popen(command, env=environment))
        time.sleep(0.2)
        running = [process for process in running if process.poll() is None]
    for process in running:
        process.kill()
    if waiting or running:
        print(f"fla: {len(waiting) + len(running)} of its tunings were not compiled beforehand", file=sys.stderr)


if __name__ == "__main__":
    from mnemolab.benchmarks.kernels_gpu import Case, operands

    _compile_only()
    _op, _shape = sys.argv[1], tuple(map(int, sys.argv[2].split(",")))
    for _side, _run in sides(_op).items():
        try:
            Case(_run, operands(_op, _shape)).both()
        except Exception as error:  # noqa: BLE001 (it is reported, and the benchmark meets it again)
            print(f"{_side} {_shape}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr, flush=True)
