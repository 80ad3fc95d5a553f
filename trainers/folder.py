"""The run folder: what lies in it, in which order it appears, and how it is read back.

`config.yaml` first; `metrics.jsonl` and `resume.ckpt` while training; `model.pt`, `records.parquet`, then `result.json`,
written last and atomically: a run with `result.json` is finished, one without it is not. `failure.json` says why the last
attempt failed, and is gone when a later one succeeds.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnemolab.errors import BadRequest
from mnemolab.files import write_text
from mnemolab.trainers.config import RunConfig, read_yaml

if TYPE_CHECKING:
    import pandas as pd

    from mnemolab.models.backbone import Backbone
    from mnemolab.tasks.base import Task

__all__ = [
    "Run",
    "find_runs",
    "is_diverged",
    "is_finished",
    "load_checkpoint",
    "load_run",
    "read_metrics",
    "write_config",
]

CONFIG, METRICS, RECORDS, RESULT = "config.yaml", "metrics.jsonl", "records.parquet", "result.json"
MODEL, RESUME, FAILURE, LOCK = "model.pt", "resume.ckpt", "failure.json", "lock"


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its config, and what `result.json` says."""

    folder: Path
    config: RunConfig
    result: dict[str, Any]

    @cached_property
    def records(self) -> "pd.DataFrame":
        """One row a test query. Raises BadRequest when the test stream was not read (a sweep's unchosen candidate)."""
        import pandas as pd

        path = self.folder / RECORDS
        if not path.exists():
            raise BadRequest(f"{self.folder}: no {RECORDS}; this run's test stream was not read")
        try:
            return pd.read_parquet(path)
        except Exception as error:
            raise BadRequest(
                f"{path}: not a readable Parquet file ({error}); delete the folder and run it again"
            ) from error

    @cached_property
    def metrics(self) -> "pd.DataFrame":
        """One row a line of `metrics.jsonl`."""
        import pandas as pd

        return pd.DataFrame(read_metrics(self.folder))

    def task(self) -> "Task":
        return self.config.make_task()

    def model(self, device: str = "cpu") -> "Backbone":
        """The trained model, in evaluation mode."""
        saved = load_checkpoint(self.folder / MODEL)
        model = self.config.make_model()
        try:
            model.load_state_dict(saved["state_dict"])
        except (KeyError, RuntimeError) as error:
            first = str(error).strip().splitlines()[0]
            raise BadRequest(f"{self.folder / MODEL}: does not fit the model of config.yaml ({first})") from error
        return model.to(device).eval()


def is_finished(folder: Path) -> bool:
    return (folder / RESULT).is_file()


def is_diverged(folder: Path) -> bool:
    """Whether the last attempt at this run ended because loss or gradient was not finite, as every attempt will."""
    try:
        return str(_read_object(folder / FAILURE)["error"]).startswith("NotFiniteRun")
    except (BadRequest, KeyError):
        return False


def write_config(folder: Path, config: RunConfig) -> None:
    import yaml

    write_text(folder / CONFIG, yaml.safe_dump(config.to_dict(), sort_keys=False))


def load_run(folder: str | Path) -> Run:
    """The finished run in `folder`. Raises BadRequest, in one line, for a folder that is foreign, unfinished or corrupt."""
    folder = Path(folder)
    if not folder.is_dir():
        raise BadRequest(f"{folder}: no such folder")
    if not (folder / CONFIG).is_file():
        raise BadRequest(f"{folder}: not a run folder (no {CONFIG}); runs lie one level below `--out`")
    if not is_finished(folder):
        failed = (folder / FAILURE).is_file()
        state = f"failed (see {FAILURE})" if failed else "not finished"
        raise BadRequest(f"{folder}: this run is {state}; start it again and it continues")
    try:
        config = RunConfig.from_dict(read_yaml(folder / CONFIG))
    except BadRequest as error:
        raise BadRequest(f"{folder / CONFIG}: {error}") from error
    return Run(folder, config, _read_object(folder / RESULT))


def find_runs(root: str | Path) -> list[Path]:
    """Folders of finished runs: `root` itself, or those at any depth below it, in order of their names."""
    root = Path(root)
    if not root.is_dir():
        raise BadRequest(f"{root}: no such folder")
    return sorted(path.parent for path in root.rglob(RESULT) if (path.parent / CONFIG).is_file())


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Rows of `metrics.jsonl`; a last line that a crash cut short is left out."""
    path = folder / METRICS
    if not path.exists():
        return []
    rows = []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row = json.loads(line)
            row["step"] + 0
        except (json.JSONDecodeError, TypeError, KeyError) as error:
            if number == len(lines):  # no newline after it: the write did not finish
                break
            raise BadRequest(f"{path}, line {number}: not a row of metrics; delete the folder, run it again") from error
        rows.append(row)
    return rows


def keep_metrics(folder: Path, step: int) -> None:
    """Drop rows after `step`: they will be written again by the resumed run."""
    rows: Iterable[dict[str, Any]] = (row for row in read_metrics(folder) if row["step"] <= step)
    write_text(folder / METRICS, "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))


def load_checkpoint(path: Path) -> dict[str, Any]:
    """What `torch.save` put in `path`, loaded with `weights_only=True`. Raises BadRequest when it is not ours or is cut."""
    import torch

    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise BadRequest(f"{path}: no such file") from error
    except Exception as error:  # torch raises pickle, zip, runtime and OS errors for foreign and cut files
        raise BadRequest(f"{path}: not a mnemolab checkpoint, or cut short ({type(error).__name__})") from error
    if not isinstance(saved, dict) or "state_dict" not in saved:
        raise BadRequest(f"{path}: not a mnemolab checkpoint (no state_dict)")
    return saved


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadRequest(f"{path}: not readable JSON ({error}); delete the folder and run it again") from error
    if not isinstance(value, dict):
        raise BadRequest(f"{path}: holds {type(value).__name__}, not a result; delete the folder and run it again")
    return value
