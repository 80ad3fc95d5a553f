"""Programs of this folder run in a process of their own: the interpreter is on in the tests', and they need the compiler."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["told_by"]


def told_by(program: str, *jobs: str, **environment: str) -> list[dict[str, Any]]:
    """The JSON objects that `program`, a file of this folder, prints for its jobs, one a line; `environment` is added."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(program)), *jobs], capture_output=True, text=True, check=False,
        env={**os.environ, "TRITON_INTERPRET": "0", "TRITON_DEFAULT_FP_FUSION": "1", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
