"""Files that are whole or absent, and locks that die with their holder."""

import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mnemolab.errors import BadRequest

__all__ = ["append_line", "existing", "held", "output_folder", "write_atomic", "write_json", "write_text"]


def write_atomic(path: Path, write: Callable[[Path], object]) -> Path:
    """Call `write(temporary)` in the folder of `path`, flush to disk, then rename: readers see all of it or nothing."""
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def write_text(path: Path, text: str) -> Path:
    return write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> Path:
    return write_text(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n")


def append_line(path: Path, value: Any) -> None:
    """Append one JSON line in a single write, so that a crash costs at most the line being written."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(value, sort_keys=True) + "\n")


def output_folder(path: str | Path, option: str = "--out") -> Path:
    """Make `path` and prove that it can be written. Raises BadRequest naming `option` and what is in the way."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadRequest(f"{option} {folder}: cannot write there ({error.strerror}); choose another folder") from error
    return folder


def existing(path: str | Path, what: str) -> Path:
    """`path`, when there is something. Raises BadRequest that says `what` was asked for."""
    if not Path(path).exists():
        raise BadRequest(f"{path}: there is no such {what}; check the path")
    return Path(path)


@contextmanager
def held(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold an exclusive lock on `path`; yields whether it was had. The kernel frees it when the process dies.

    Raises BadRequest when the file cannot be opened.
    """
    try:
        file = open(path, "a", encoding="utf-8")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise BadRequest(f"{path}: cannot open this lock ({error.strerror}); remove it") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
