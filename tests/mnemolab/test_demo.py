"""The demo in seconds: the same path as the real one, on tiny sweeps."""

import pytest
import yaml

from mnemolab import cli
from mnemolab.commands import demo


@pytest.fixture
def tiny(tmp_path, monkeypatch, inline):
    for name in ("key_overwrite", "associative_recall"):
        sweep = yaml.safe_load(demo._config(name).read_text())
        sweep["base"]["budget"] = {
            "steps": 3,
            "batch_size": 4,
            "evaluate_every": 2,
            "validation_examples": 8,
            "test_examples": 16,
        }
        sweep["base"]["model"] |= {"width": 16, "head_dim": 8}
        sweep["grid"] = {"seed": [0, 1], "model.name": ["gpt2", "deltanet"]}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(sweep))
    monkeypatch.setattr(demo, "_config", lambda name: tmp_path / f"{name}.yaml")
    return tmp_path / "out"


def test_demo_trains_tells_and_reports(tiny, capsys):
    words = ["demo", "--out", str(tiny), "--workers", "1"]
    assert cli.main([*words, "--minutes", "0"]) == 0
    assert "associative_recall: left out" in capsys.readouterr().err
    before = {path: path.stat().st_mtime_ns for path in (tiny / "runs").glob("*/result.json")}
    assert len(before) == 4

    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "DeltaNet" in out and "4 versions" in out
    assert out.strip().endswith("report/index.html")
    page = (tiny / "report" / "index.html").read_text()
    assert "data:image/png;base64," in page
    assert {path.suffix for path in (tiny / "report" / "figures").iterdir()} == {".png", ".pdf", ".csv"}
    after = {path: path.stat().st_mtime_ns for path in (tiny / "runs").glob("*/result.json")}
    assert len(after) == 8
    assert before.items() <= after.items(), "a finished run was trained again"
