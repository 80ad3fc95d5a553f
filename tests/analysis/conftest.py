"""Synthetic run folders with the exact columns that training writes, and known probabilities of each answer."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

P_STALE = {"linear_attention": 0.9, "deltanet": 0.05, "gpt2": 0.0, "gated_deltanet": 0.1, "kda": 0.03}


def records(stage: str, seed: int, examples: int = 60, keys: int = 6, versions: int = 4) -> pd.DataFrame:
    """Queries for the latest value of keys bound 1..versions times; `stage` answers with a stale value in P_STALE of the
    chances it has, else right with a probability that falls with lag."""
    rng = np.random.default_rng([seed, len(stage), ord(stage[0])])
    rows = examples * keys
    version = rng.integers(0, versions, rows)
    lag_writes = rng.integers(0, keys * 3, rows)
    presented = 15
    stale_share = P_STALE[stage] * version / (version + 1)
    uniform = rng.random(rows)
    right = rng.random(rows) < np.exp2(-lag_writes / (200 if stage == "gpt2" else 40))
    is_stale = uniform < stale_share
    outcome = np.where(is_stale, "stale", np.where(right, "correct", "other_key"))
    age = np.where(is_stale, 1 + (rng.random(rows) * np.maximum(version, 1)).astype(int), 0)
    position = 54 + np.tile(np.arange(keys), examples) * 2 + 1
    stale = [list(range(100, 100 + v)) + [-1] * (versions - 1 - v) for v in version]
    return pd.DataFrame(
        {
            "example": np.repeat(np.arange(examples), keys),
            "query": np.tile(np.arange(keys), examples),
            "position": position,
            "start": position,
            "fork": 54,
            "key": 8 + np.tile(np.arange(keys), examples),
            "target": 90,
            "lag_tokens": lag_writes * 2 + 1,
            "lag_writes": lag_writes,
            "version": version,
            "serial_position": 17 - np.minimum(lag_writes, 17),
            "query_index": 0,
            "load": presented,
            "condition": 0,
            "stale": stale,
            "prediction": 90,
            "outcome": outcome,
            "correct": outcome == "correct",
            "stale_age": age,
            "rank": np.where(outcome == "correct", 0, 1),
            "log_odds_stale": np.where(version > 0, np.where(is_stale, -1.0, 4.0) + rng.normal(0, 0.3, rows), np.nan),
            "log_odds_other": np.where(outcome == "other_key", -1.0, 3.0) + rng.normal(0, 0.3, rows),
            "chance": 1 / presented,
            "scoring": "forked",
        }
    )


def write_run(
    folder: Path, stage: str, seed: int, task: str = "synthetic", frame: pd.DataFrame | None = None, **model
) -> Path:
    """One finished run folder below `folder`."""
    run = folder / f"{stage}-{seed}-{'-'.join(map(str, model.values()))}"
    run.mkdir(parents=True)
    config = {
        "task": {"name": task, "versions": 4},
        "model": {"name": stage, "width": 64, "depth": 1, "heads": 2, "head_dim": 32, **model},
        "optimiser": {"learning_rate": 3e-3},
        "budget": {"steps": 600},
        "seed": seed,
        "scoring": "forked",
    }
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    frame = records(stage, seed) if frame is None else frame
    frame.to_parquet(run / "records.parquet")
    end = float(frame["correct"].mean())
    with open(run / "metrics.jsonl", "w") as file:
        for step in range(0, 601, 100):
            grown = end * (1 - np.exp(-step / 150))
            file.writelines(
                json.dumps({"step": step, "split": split, "loss": 1 - grown, "accuracy": grown}) + "\n"
                for split in ("train", "validation")
            )
    solved = 300 + 10 * seed if end > 0.7 else None
    result = {
        "run_id": run.name,
        "status": "finished",
        "test": {"accuracy": end, "loss": 1 - end},
        "steps": 600,
        "steps_to_solved": solved,
        "parameters": 50_000,
        "state_elements": 2048,
        "device": "cpu",
        "backend": "chunked",
        "wall_seconds": 10.0,
        "versions": {"mnemolab": "0.1.0", "torch": "2.13.0"},
    }
    (run / "result.json").write_text(json.dumps(result))
    return run


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Path:
    """Five stages, three seeds, key_overwrite."""
    folder = tmp_path_factory.mktemp("study") / "runs"
    for stage in P_STALE:
        for seed in range(3):
            write_run(folder, stage, seed)
    return folder


@pytest.fixture(scope="session", name="write_run")
def _write_run():
    return write_run
