"""The end of a run: the trained model, the records of the test stream, and `result.json`, last."""

import platform
import resource
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mnemolab import __version__
from mnemolab.files import write_atomic, write_json
from mnemolab.kernels import explain_backend
from mnemolab.trainers import folder as places
from mnemolab.trainers.checkpoint import save_bytes
from mnemolab.trainers.config import RunConfig
from mnemolab.trainers.folder import Run, load_run
from mnemolab.trainers.scoring import score

if TYPE_CHECKING:
    import pandas as pd

    from mnemolab.models.backbone import Backbone
    from mnemolab.trainers.fitting import Fitted

__all__ = ["finish", "read_test_stream", "summary"]


def finish(
    folder: Path, config: RunConfig, device: torch.device, fitted: "Fitted", read_test: bool, seconds: float
) -> None:
    """Write model.pt, records.parquet (when the test stream is read) and result.json; then drop resume.ckpt."""
    model, state, task = fitted.model.eval(), fitted.state, config.make_task()
    weights = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    save_bytes(folder / places.MODEL, {"state_dict": weights, "config": config.to_dict(), "step": state.step})
    result: dict[str, Any] = {
        "run_id": config.run_id,
        "status": "done",
        "stopped": state.stopped,
        "test": None,
        "validation": state.validation,
        "steps": state.step,
        "steps_to_solved": state.steps_to_solved,
        "best_validation_accuracy": state.best_accuracy,
        "resumed": state.resumed,
        "examples": state.step * config.budget.batch_size,
        "parameters": sum(p.numel() for p in model.parameters()),
        "state_elements": model.state_elements(task.length),  # type: ignore[attr-defined]
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "backend": fitted.how,
        "memory_backend": _memory_backend(model, device),
        "train_seconds": round(state.seconds, 3),
        "wall_seconds": round(state.wall + seconds, 3),
        "peak_memory": _peak_memory(device),
        "versions": _versions(task),
    }
    if read_test:
        result["test"] = _score_test(folder, config, model, device)
    write_json(folder / places.RESULT, result)
    (folder / places.RESUME).unlink(missing_ok=True)


def read_test_stream(folder: Path, config: RunConfig, device: torch.device) -> Run:
    """Score the test stream of a trained run that was left unread, and rewrite its result."""
    run = load_run(folder)
    result = {**run.result, "test": _score_test(folder, config, run.model(str(device)), device)}
    write_json(folder / places.RESULT, result)
    return load_run(folder)


def summary(records: "pd.DataFrame") -> dict[str, float]:
    """Means over the test queries: accuracy, loss, share of stale answers, chance."""
    return {
        "accuracy": float(records["correct"].mean()),
        "loss": float(records["loss"].mean()),
        "stale": float((records["outcome"] == "stale").mean()),
        "chance": float(records["chance"].mean()),
        "queries": len(records),
    }


def _score_test(folder: Path, config: RunConfig, model: "Backbone", device: torch.device) -> dict[str, Any]:
    records = score(
        model,
        config.make_task(),
        config.budget.test_examples,
        config.seed,
        scoring=config.scoring,
        device=device,
        precision=config.precision,
    )
    write_atomic(folder / places.RECORDS, lambda temporary: records.to_parquet(temporary, index=False))
    first = config.scoring if config.scoring != "both" else "forked"
    found = summary(records[records["scoring"] == first])
    if config.scoring == "both":
        found["sequential_accuracy"] = float(records.loc[records["scoring"] == "sequential", "correct"].mean())
    return found


def _memory_backend(model: "Backbone", device: torch.device) -> str:
    """What the recurrence ran on: the one that the config names, or what `auto` takes on this device."""
    named = str(getattr(model.config, "backend", "auto"))
    probe = torch.zeros(1, 1, 1, 8, device=device)
    return explain_backend(probe, probe, probe).backend if named == "auto" else named


def _peak_memory(device: torch.device) -> int:
    """Bytes: most that torch had allocated on the GPU, or the most that this process ever held on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _versions(task: Any) -> dict[str, Any]:
    found = {"mnemolab": __version__, "python": platform.python_version(), "torch": torch.__version__}
    for name in ("triton", "lightning"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return {**found, "task": task.version}
