"""`mnemolab train` and `mnemolab sweep` as a user types them, in this process."""

import json
import shutil
import subprocess
import sys

import pandas as pd
import pytest
import yaml

from mnemolab.cli import main
from mnemolab.models.backbone import Backbone
from mnemolab.trainers import load_run

RUN = [
    "train",
    "--task",
    "key_overwrite",
    "--model",
    "deltanet",
    "--model.width",
    "8",
    "--model.depth=1",
    "--model.heads",
    "1",
    "--model.head_dim",
    "8",
    "--steps",
    "2",
    "--budget.batch_size",
    "2",
    "--budget.validation_examples",
    "2",
    "--budget.test_examples",
    "2",
    "--device",
    "cpu",
]


def words_for_run(*words: str) -> list[str]:
    """RUN with `words` in place of the flags that they give again."""
    given = {word.partition("=")[0] for word in words}
    kept, skip = [], False
    for word in RUN:
        skip = word in given or (skip and not word.startswith("--"))
        if not skip:
            kept.append(word)
    return [*kept, *words]


def test_train_writes_a_run_folder(tmp_path, capsys):
    assert main([*RUN, "--seed", "3", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    run = load_run(shown.out.strip())
    assert (run.config.seed, run.config.budget.steps, run.config.model["depth"]) == (3, 2, 1)
    assert "test accuracy" in shown.err


def test_train_from_a_file_with_flags_above_it(tmp_path, capsys, values):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(values(seed=4, **{"task.versions": 3})))
    words = ["train", "--config", str(path), "--steps", "2", "--model.depth", "2", "--out", str(tmp_path), "--json"]
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)
    config = load_run(tmp_path / result["run_id"]).config
    assert (config.seed, config.budget.steps, config.model["depth"], config.task["versions"]) == (4, 2, 2, 3)


def test_another_model_on_the_command_line_drops_the_fields_of_the_file(tmp_path, capsys, values):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(values(**{"model.write": "additive", "budget.steps": 1})))
    assert main(["train", "--config", str(path), "--model", "gpt2", "--out", str(tmp_path), "--json"]) == 0
    config = load_run(tmp_path / json.loads(capsys.readouterr().out)["run_id"]).config
    assert config.model["name"] == "gpt2"
    assert "write" not in config.model


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--task", "key_overwrit"], ["'key_overwrit'", "did you mean 'key_overwrite'"]),
        (["--model", "kdaa"], ["'kdaa'", "did you mean 'kda'"]),
        (["--task.verions", "3"], ["verions", "did you mean 'versions'"]),
        (["--modle.width", "3"], ["modle", "did you mean 'model'"]),
        (["--task.length", "10"], ["length=10", "raise length"]),
        (["--steps", "many"], ["budget.steps", "many"]),
        (["--device", "cuda:99"], ["cuda:99", "this machine"]),
        (["--devices", "0"], ["--devices 0", "at least 1"]),
        (["--config", "no.yaml"], ["no.yaml", "cannot read it"]),
        (["--plugin", "no_such_module"], ["no_such_module"]),
        (["--foo"], ["--foo", "--section.field value"]),
    ],
)
def test_bad_requests_exit_2_with_one_line_before_any_step(words, told, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Backbone, "loss", lambda *args: pytest.fail("a step was taken"))
    assert main(words_for_run("--out", str(tmp_path / "out"), *words)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mnemolab train: ")
    for word in told:
        assert word in line
    assert not list(tmp_path.glob("out/*/*"))


def test_an_unwritable_folder_exits_2(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main([*RUN, "--out", str(tmp_path / "file")]) == 2
    assert "cannot write there" in capsys.readouterr().err


def test_a_failed_run_exits_1(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Backbone, "loss", lambda self, inputs, targets: self.head_weight.sum() * float("nan"))
    assert main([*RUN, "--out", str(tmp_path)]) == 1
    assert "not finite at step 1" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("words", [["train"], ["sweep"]])
def test_help_imports_neither_torch_nor_lightning(words):
    code = (
        "import sys; from mnemolab.cli import main\n"
        f"try: main({[*words, '--help']})\n"
        "except SystemExit: pass\n"
        "sys.exit(bool({'torch', 'lightning', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_help_lists_the_fields_of_what_is_named(capsys, monkeypatch):
    words = ["train", "--task", "key_overwrite", "--model", "kda", "--help"]
    monkeypatch.setattr(sys, "argv", ["mnemolab", *words])
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for name in ("--task.versions", "--model.width", "--model.decay", "--optimiser.schedule", "--budget.stop_solved"):
        assert name in text
    assert "default channel" in text  # kda's own decay, not the class's default


@pytest.fixture
def sweep_file(tmp_path, values):
    path = tmp_path / "two.yaml"
    grid = {"seed": [0], "optimiser.learning_rate": [0.0, 0.1]}
    path.write_text(yaml.safe_dump({"base": values(**{"budget.steps": 2}), "grid": grid}))
    return path


def test_dry_run_lists_runs_and_time_and_writes_nothing(sweep_file, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["sweep", str(sweep_file), "--out", str(out), "--dry-run", "--workers", "1"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert len(lines) == 2
    assert "learning_rate 0.1" in lines[1]
    assert "2 of 2 runs left" in shown.err
    assert not out.exists()
    assert main(["sweep", str(sweep_file), "--out", str(out), "--dry-run", "--workers", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["left"] == 2
    assert 0 < found["seconds"] < 60


def test_sweep_then_collect(sweep_file, tmp_path, capsys, inline):
    out = tmp_path / "out"
    assert main(["sweep", str(sweep_file), "--out", str(out), "--collect"]) == 2
    assert "no run of two is finished there" in capsys.readouterr().err
    assert main(["sweep", str(sweep_file), "--out", str(out), "--workers", "1"]) == 0
    shown = capsys.readouterr()
    assert "two: 2 done, 0 finished before, 0 failed" in shown.err
    assert shown.out.strip() == str(out / "sweep.parquet")
    (out / "sweep.parquet").unlink()
    assert main(["sweep", str(sweep_file), "--out", str(out), "--collect"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        str(out / "sweep.parquet"),
        str(out / "collected/key_overwrite.parquet"),
    ]
    assert main(["sweep", str(sweep_file), "--out", str(out), "--collect", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sweep"] == str(out / "sweep.parquet")
    assert len(pd.read_parquet(out / "sweep.parquet")) == 2
    # another sweep in the same folder adds its rows, and a run that was removed takes its own along
    other = yaml.safe_load(sweep_file.read_text(encoding="utf-8"))
    other["grid"] = {"seed": [0, 1], "optimiser.learning_rate": [0.1]}
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other), encoding="utf-8")
    assert main(["sweep", str(tmp_path / "other.yaml"), "--out", str(out), "--workers", "1"]) == 0
    table = pd.read_parquet(out / "sweep.parquet")
    assert sorted(table["seed"]) == [0, 0, 1] and table["run_id"].is_unique
    records = pd.read_parquet(out / "collected/key_overwrite.parquet")
    assert records.groupby("run_id").size().nunique() == 1 and set(records["run_id"]) == set(table["run_id"])
    shutil.rmtree(out / table.set_index("seed")["run_id"][1])
    assert main(["sweep", str(sweep_file), "--out", str(out), "--collect"]) == 0
    assert list(pd.read_parquet(out / "sweep.parquet")["seed"]) == [0, 0]
    (out / "sweep.parquet").write_bytes(b"")
    assert main(["sweep", str(sweep_file), "--out", str(out), "--collect"]) == 2
    assert "sweep.parquet: not a table of runs; remove it" in capsys.readouterr().err
    (out / "sweep.parquet").unlink()
    assert main(["sweep", str(sweep_file), "--out", str(out), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left"] == 0


def test_collected_tables_load_in_duckdb(sweep_file, tmp_path, inline):
    duckdb = pytest.importorskip("duckdb")
    assert main(["sweep", str(sweep_file), "--out", str(tmp_path / "out"), "--workers", "1"]) == 0
    runs, records = (tmp_path / "out" / name for name in ("sweep.parquet", "collected/key_overwrite.parquet"))
    accuracy = duckdb.sql(f"select run_id, \"result.test.accuracy\" from '{runs}' order by run_id").fetchall()
    counted = duckdb.sql(
        f"select run_id, avg(correct::int) from '{records}' group by run_id order by run_id"
    ).fetchall()
    assert [run for run, _ in accuracy] == [run for run, _ in counted] and len(accuracy) == 2
    assert [share for _, share in accuracy] == pytest.approx([share for _, share in counted])
    ((longest,),) = duckdb.sql(f"select max(len(stale)) from '{records}'").fetchall()
    assert longest >= 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["none.yaml"], "cannot read it"),
        (["two.yaml", "--engine", "locale"], "did you mean 'local'"),
        (["two.yaml", "--workers", "0"], "at least 1"),
        (["two.yaml", "--out", "two.yaml"], "cannot write there"),
    ],
)
def test_bad_sweeps_exit_2(words, told, sweep_file, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
