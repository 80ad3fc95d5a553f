"""How long the analysis of many records takes, and how much memory: python -m mnemolab.benchmarks.analysis [QUERIES].

A folder of 8 runs of one model is written with the columns of training, then read and analysed in a process of its own: retention
curves and fits run by run, versions, intrusions by class and age, stale/new ratio, interference by load at matched lag. One
JSON line is printed: seconds on the clock, seconds of CPU, peak memory.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

__all__ = ["analyse", "measure", "write_runs"]

_RUNS, _QUERIES_A_SEQUENCE = 8, 64


def write_runs(folder: Path, queries: int, runs: int = _RUNS) -> None:
    """`runs` finished runs with `queries` records in all, as training leaves them, the list column `stale` included."""
    each = queries // runs
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        version = rng.integers(0, 4, each).astype(np.int32)
        writes = rng.integers(0, 64, each).astype(np.int32)
        lag = (2 * writes + rng.integers(1, 200, each)).astype(np.int32)
        right = rng.random(each) < np.exp2(-lag / 300) * 0.9**version
        stale = ~right & (version > 0) & (rng.random(each) < 0.5)
        frame = pd.DataFrame(
            {
                "example": (np.arange(each) // _QUERIES_A_SEQUENCE).astype(np.int32),
                "query": (np.arange(each) % _QUERIES_A_SEQUENCE).astype(np.int32),
                "lag_tokens": lag,
                "lag_writes": writes,
                "version": version,
                "serial_position": 64 - writes,
                "query_index": (np.arange(each) % _QUERIES_A_SEQUENCE).astype(np.int32),
                "load": np.int32(65),
                "correct": right,
                "outcome": np.where(right, "correct", np.where(stale, "stale", "other_key")),
                "stale_age": np.where(stale, 1, 0).astype(np.int32),
                "log_odds_stale": np.where(version > 0, rng.normal(2, 1, each), np.nan),
                "log_odds_other": rng.normal(2, 1, each),
                "chance": 1 / 65,
                "scoring": "forked",
            }
        )
        held = np.repeat(np.arange(4, dtype=np.int32)[None], 4, 0)
        lists = [held[v, :v] for v in range(4)]
        frame["stale"] = np.array([*lists, None], dtype=object)[:-1][version]
        run = folder / f"run-{seed}"
        run.mkdir(parents=True)
        frame.to_parquet(run / "records.parquet")
        config = {"task": {"name": "synthetic"}, "model": {"name": "kda"}, "seed": seed, "scoring": "forked"}
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        (run / "result.json").write_text(json.dumps({"run_id": run.name, "test": {"accuracy": float(right.mean())}}))


def analyse(folder: Path) -> dict[str, float]:
    """Seconds of each step, then `seconds` and `cpu_seconds` of all, and `peak_gb` of this process."""
    from mnemolab.analysis import interference, retention
    from mnemolab.analysis.records import load_records

    found: dict[str, float] = {}
    begun, cpu = time.perf_counter(), time.process_time()
    last = begun
    records = load_records(folder)
    for name, measure in (
        ("load", lambda: None),
        ("retention curve", lambda: retention.curve(records, "lag_tokens")),
        ("fits of each run", lambda: retention.fit_runs(records)),
        ("versions", lambda: interference.accuracy_by_versions(records)),
        ("intrusions", lambda: interference.intrusions(records)),
        ("intrusions by age", lambda: interference.stale_ages(records)),
        ("stale/new ratio", lambda: interference.stale_new_ratio(records)),
        ("interference by load", lambda: interference.load_interference(records)),
        ("version slope", lambda: interference.version_slope(records)),
    ):
        measure()
        now = time.perf_counter()
        found[name] = round(now - last, 2)
        last = now
    found["queries"] = len(records)
    found["seconds"] = round(time.perf_counter() - begun, 1)
    found["cpu_seconds"] = round(time.process_time() - cpu, 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux, bytes on macOS
    found["peak_gb"] = round(peak / (1e9 if sys.platform == "darwin" else 1e6 / 1.024), 2)
    return found


def measure(queries: int = 10_000_000) -> dict:
    """`analyse` in a process of its own, over freshly written runs."""
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder), queries)
        done = subprocess.run(
            [sys.executable, "-m", "mnemolab.benchmarks.analysis", "--folder", folder],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pandas": pd.__version__,
    }
    return {"benchmark": "analysis", **json.loads(done.stdout), **machine}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("queries", type=int, nargs="?", default=10_000_000)
    parser.add_argument("--folder", type=Path, help="analyse the runs that lie here instead of writing some")
    words = parser.parse_args()
    print(json.dumps(measure(words.queries) if words.folder is None else analyse(words.folder)))
