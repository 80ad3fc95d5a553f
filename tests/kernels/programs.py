"""Programs of this folder run in a process of their own: the interpreter is on in the tests', and they need the compiler."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["may_be_wgmma", "told_by"]

# Four warps and 64 rows or more are Hopper's wgmma, in which Triton 3.4 to 3.7 has miscompiled products of transposed results:
# there the table takes it only in bfloat16 at 64 and 128 channels, all kinds of which tests/gpu compares with float64
RECURRENCES = (
    "forward.forward_kernel",
    "backward.backward_kernel",
    "segments.carry_kernel",
    "segments.carry_back_kernel",
)


def told_by(program: str, *jobs: str, **environment: str) -> list[dict[str, Any]]:
    """The JSON objects that `program`, a file of this folder, prints for its jobs, one a line; `environment` is added."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(program)), *jobs], capture_output=True, text=True, check=False,
        env={**os.environ, "TRITON_INTERPRET": "0", "TRITON_DEFAULT_FP_FUSION": "1", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def may_be_wgmma(row: dict[str, Any]) -> bool:
    """Whether the kernel that `row` tells of is one of those to which the table gives wgmma."""
    kind, D, dtype = row.get("job", "::").split(":")[:3]
    if dtype != "bf16" or D not in ("64", "128") or row["num_warps"] != 4:
        return False
    return kind in ("linear", "scalar_decay", "mamba2") or (D == "128" and row["kernel"] in RECURRENCES)
