"""docs/kernels.md: its code runs, and its table of stages is the one that is benchmarked."""

import re
from pathlib import Path

import torch

from mnemolab.benchmarks.kernels_cpu import STAGES
from mnemolab.kernels import KERNELS
from mnemolab.kernels.scan import BACKENDS

PAGE = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text(encoding="utf-8")


def test_the_code_runs(capsys):
    names = {n: torch.rand(2, 5, 2, 4) for n in ("q", "k", "v")} | {
        "beta": torch.rand(2, 5, 2),
        "g": -torch.rand(2, 5, 2),
    }
    names |= {f"{n}_t": x[:, 0] for n, x in names.items()}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)  # noqa: S102 - the page is ours
    assert names["o"].shape == (2, 5, 2, 4) and names["o_t"].shape == (2, 2, 4)
    assert capsys.readouterr().out.startswith("chunked")


def test_the_table_of_stages():
    kinds = {"-": "none", "(B,T,H)": "scalar", "beta": "scalar", "(B,T,H,K)": "channel", "(B,T,H,V)": "channel"}
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)
    found = {}
    for name, *cells in rows:
        stage = name.lower().replace("-2", "2").replace(" ", "_")
        if stage in STAGES:
            found[stage] = tuple(kinds[re.split(r", | \(with", cell)[0]] for cell in cells)
    assert found == STAGES


def test_every_kernel_and_backend_is_named():
    assert all(f"`{name}" in PAGE or f"{name}(" in PAGE for name in KERNELS)
    assert all(f"| `{name}` |" in PAGE for name in BACKENDS)
