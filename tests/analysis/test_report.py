"""Figures, the page, and the two commands that make them."""

import re
import sys
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
import pandas as pd
import pytest

from mnemolab.analysis import report
from mnemolab.analysis.figures import FIGURES, make
from mnemolab.analysis.style import look
from mnemolab.cli import main
from mnemolab.errors import BadRequest


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    """What `mnemolab report runs` writes, and says."""
    out = tmp_path_factory.mktemp("report") / "r"
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as said:
        patch.setattr(sys, "argv", ["mnemolab", "report", "runs"])
        assert main(["report", str(runs), "--out", str(out)]) == 0
    assert said.getvalue().strip() == str(out / "index.html")
    return out / "index.html"


def test_the_page_is_self_contained_and_complete(page):
    html = page.read_text()
    pictures = re.findall(r'<img src="(data:image/png;base64,)[^"]+" alt="([^"]+)"', html)
    assert len(pictures) == 6 and all(len(alt) > 40 for _, alt in pictures)
    assert not re.search(r'(src|href)="https?:', html)
    for text in ("mnemolab report runs", "Commit", "torch 2", "Linear attention", "3/3"):
        assert text in html


def test_one_run_has_an_accuracy_and_no_interval():
    """An interval over one run would be a point that looks like certainty."""
    runs = pd.DataFrame({"task": "t", "arm": ["kda", "kda", "gpt2"], "test.accuracy": [0.98, 1.0, 0.7]})
    table = report.summary(runs).set_index("model")
    low, high = table["low"], table["high"]
    assert np.isnan(low["GPT-2"]) and np.isnan(high["GPT-2"])
    assert 0.5 < low["KDA"] < 0.9 and high["KDA"] == 1
    shown = report._merged(table.reset_index()).set_index("model")["accuracy"]
    assert shown["GPT-2"] == "0.700" and shown["KDA"].startswith("0.990 (0.") and shown["KDA"].endswith("to 1.000)")
    alone = report._merged(report.summary(runs[2:]))
    assert alone["accuracy"].tolist() == ["0.700"] and "task" not in alone


def test_every_figure_has_png_pdf_and_its_numbers(page):
    folder = page.parent / "figures"
    for csv in folder.glob("*.csv"):
        assert csv.with_suffix(".png").stat().st_size > 10_000 and csv.with_suffix(".pdf").stat().st_size > 5_000
        assert len(pd.read_csv(csv)) > 2
    assert {p.stem for p in folder.glob("*.csv")} >= {
        "versions-synthetic",
        "intrusions-synthetic",
        "learning-synthetic",
    }
    assert b"/Type3" not in (folder / "versions-synthetic.pdf").read_bytes()


def test_the_command_may_be_given(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "make", lambda *args: ([], {}))
    assert "mnemolab report mine" in report.build(runs, tmp_path, command="mnemolab report mine").read_text()


def test_figures_repeat_byte_for_byte(page, runs, tmp_path):
    make(runs, tmp_path, ["versions"])
    for kind in ("png", "pdf", "csv"):
        first, second = (folder / f"versions-synthetic.{kind}" for folder in (page.parent / "figures", tmp_path))
        assert first.read_bytes() == second.read_bytes()


def test_what_does_not_apply_is_explained(runs, tmp_path):
    saved, skipped = make(runs, tmp_path, ["query-order"])
    assert not saved and "sequential" in skipped["query-order"]
    with pytest.raises(BadRequest, match="did you mean 'versions'"):
        make(runs, tmp_path, ["version"])
    assert len(FIGURES) >= 6


def test_a_stage_looks_the_same_in_every_figure():
    alone, among = look(["kda"])["kda"], look(["gpt2", "kda", "deltanet"])["kda"]
    assert alone == among
    both = look(["kda, depth 1", "kda, depth 2"])
    assert both["kda, depth 1"].color == both["kda, depth 2"].color == alone.color
    assert both["kda, depth 1"].dash != both["kda, depth 2"].dash
    assert look(["mine", "kda"])["mine"].color != alone.color
    everything = look(["rnn", "lstm", "gru", "gpt2", "linear_attention", "mamba2", "gla", "deltanet", "kda", "kimi_k3"])
    assert len({(x.color, x.marker) for x in everything.values()}) == len(everything)


def test_a_probe_as_a_command(runs, tmp_path):
    assert main(["probe", str(runs), "--probe", "interference", "--out", str(tmp_path / "p")]) == 0
    assert (tmp_path / "p" / "tables" / "stale-ages.csv").exists() and (tmp_path / "p" / "index.html").exists()


def test_commands_refuse_in_one_line(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert main(["probe", str(tmp_path), "--probe", "retentoin"]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 2 and "no finished run" in lines[0] and "did you mean 'retention'" in lines[1]
