"""Checkpoints: whole or absent, plain values and tensors only, and never a reason to lose a run."""

import io
import sys
from pathlib import Path
from typing import Any

import torch

from mnemolab.errors import BadRequest
from mnemolab.files import write_atomic
from mnemolab.trainers.folder import RESUME, load_checkpoint
from mnemolab.trainers.state import TrainState

__all__ = ["put_aside", "read_resume", "save_bytes"]


def save_bytes(path: Path, value: dict[str, Any]) -> None:
    """`torch.save` through memory, so that a full disk is an OSError and never half a file."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    write_atomic(path, lambda temporary: temporary.write_bytes(buffer.getbuffer()) and None)


def read_resume(folder: Path, config: dict[str, Any]) -> dict[str, Any] | None:
    """The checkpoint of the run `config` to go on from, or None.

    One that cannot be read, or is another run's, is put aside with a note: the run starts again.
    """
    path = folder / RESUME
    if not path.exists():
        return None
    try:
        saved = load_checkpoint(path)
        if saved.get("config") != config or "optimiser" not in saved:
            raise BadRequest(f"{path}: not a checkpoint of this run")
        saved["state"] = TrainState.from_dict(saved["state"])
        if saved["state"].step > config["budget"]["steps"]:
            raise BadRequest(f"{path}: at step {saved['state'].step} of {config['budget']['steps']}")
    except (BadRequest, KeyError, TypeError, AttributeError) as error:
        put_aside(path, error)
        return None
    return saved


def put_aside(path: Path, error: Exception) -> None:
    """Keep a checkpoint that is of no use under another name, and say so: the run starts again."""
    aside = path.with_suffix(".unreadable")
    path.replace(aside)
    said = " ".join(str(error).split())[:300]
    print(f"mnemolab: {said}; kept as {aside.name}, starting this run from step 0", file=sys.stderr)
