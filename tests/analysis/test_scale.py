"""Ten million queries, and a probe of one run: in seconds of CPU, which a busy machine stretches less than the clock."""

import os
import resource
import subprocess
import sys

import pytest

from mnemolab.benchmarks.analysis import measure
from mnemolab.trainers.config import RunConfig
from tests.analysis.fresh import fresh_run


def test_the_benchmark_runs_and_counts():
    found = measure(64_000)
    assert found["queries"] == 64_000 and 0 < found["cpu_seconds"] and 0 < found["peak_gb"] < 8


@pytest.mark.slow
def test_ten_million_queries_in_two_minutes_and_8_gb():
    found = measure(10_000_000)
    assert found["queries"] == 10_000_000 and found["cpu_seconds"] < 120 and found["peak_gb"] < 8


@pytest.mark.slow
def test_a_probe_of_one_run_takes_under_30_seconds(tmp_path):
    """Width 64, T 256, 1,000 test sequences; every probe, with tables, figures and the page."""
    config = RunConfig.from_dict(
        {
            "task": {"name": "key_overwrite", "length": 256, "keys": 16, "lags": 16, "key_vocabulary": 40},
            "model": {"name": "kda", "width": 64, "depth": 2, "heads": 2, "head_dim": 32},
        }
    )
    run = fresh_run(tmp_path / "runs", config, 1000)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "mnemolab", "probe", str(run), "--out", str(tmp_path / "page")],
        check=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 30
