"""Run folders as training leaves them, with fresh weights in place of trained ones."""

import json
from pathlib import Path

import torch
import yaml

from mnemolab.trainers import RunConfig
from mnemolab.trainers.scoring import score

__all__ = ["fresh_run"]


def fresh_run(root: Path, config: RunConfig, examples: int) -> Path:
    """The folder below `root` of a finished run whose model was never trained."""
    run = root / config.run_id
    run.mkdir(parents=True)
    torch.manual_seed(0)
    model, task = config.make_model().eval(), config.make_task()
    score(model, task, examples, 0).to_parquet(run / "records.parquet")
    torch.save({"state_dict": model.state_dict(), "config": config.to_dict(), "step": 0}, run / "model.pt")
    (run / "config.yaml").write_text(yaml.safe_dump(config.to_dict()))
    result = {"run_id": config.run_id, "status": "done", "test": {"accuracy": 0.1}, "device": "cpu"}
    (run / "result.json").write_text(json.dumps(result))
    return run
