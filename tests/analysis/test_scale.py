"""Ten million queries, and a probe of one run: in seconds of CPU, which a busy machine stretches less than the clock."""

import json
import os
import resource
import subprocess
import sys

import pytest
import torch
import yaml

from mnemolab.benchmarks.analysis import measure
from mnemolab.trainers.config import RunConfig
from mnemolab.trainers.scoring import score


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
    run = tmp_path / "runs" / config.run_id
    run.mkdir(parents=True)
    torch.manual_seed(0)
    model, task = config.make_model().eval(), config.make_task()
    score(model, task, 1000, 0).to_parquet(run / "records.parquet")
    torch.save({"state_dict": model.state_dict(), "config": config.to_dict(), "step": 0}, run / "model.pt")
    (run / "config.yaml").write_text(yaml.safe_dump(config.to_dict()))
    result = {"run_id": config.run_id, "status": "done", "test": {"accuracy": 0.1}, "device": "cpu"}
    (run / "result.json").write_text(json.dumps(result))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "mnemolab", "probe", str(run), "--out", str(tmp_path / "page")],
        check=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 30
