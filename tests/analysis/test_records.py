"""Run folders to tables."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml

from mnemolab.analysis.records import Study, arms, find_runs, load_metrics, load_records, load_runs, require, tidy
from mnemolab.errors import BadRequest


def test_records_of_a_folder_have_run_columns_and_no_lists(runs):
    records = load_records(runs)
    assert len(records) == 15 * 360
    assert set(records["stage"].unique()) == {"linear_attention", "deltanet", "gpt2", "gated_deltanet", "kda"}
    assert {"run_id", "task", "arm", "seed", "n_stale", "correct", "scoring"} <= set(records)
    assert "stale" not in records
    assert (records["n_stale"] == records["version"]).all()
    assert records["example"].dtype == np.int32 and records["run_id"].dtype == "category"


def test_columns_limit_what_is_read(runs):
    assert set(load_records(runs, ["correct"])) == {
        "correct", "run_id", "task", "stage", "arm", "recipe", "seed", "depth", "width",
    }  # fmt: skip


def test_runs_and_metrics(runs):
    table = load_runs(runs)
    assert len(table) == 15 and table["model.width"].eq(64).all() and table["test.accuracy"].between(0, 1).all()
    metrics = load_metrics(runs)
    assert len(metrics) == 15 * 14 and set(metrics["split"]) == {"train", "validation"}


def test_arm_names_the_factors_that_vary_within_a_stage(tmp_path, write_run):
    for depth in (1, 2):
        write_run(tmp_path, "kda", 0, depth=depth)
    write_run(tmp_path, "gpt2", 0)
    assert sorted(load_runs(tmp_path)["arm"]) == ["gpt2, depth 1", "kda, depth 1", "kda, depth 2"]


def change(run, **fields):
    """Write fields (`optimiser.learning_rate` as optimiser__learning_rate) into a run's config."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    for name, value in fields.items():
        room, _, field = name.partition("__")
        config[room][field] = value
    (run / "config.yaml").write_text(yaml.safe_dump(config))


def test_an_arm_is_everything_but_the_seed(tmp_path, write_run):
    """Other task settings, learning rates or budgets are other arms, never replicates."""
    for at, (length, rate) in enumerate(((64, 1e-3), (64, 1e-3), (128, 1e-3), (128, 1e-2))):
        change(write_run(tmp_path, "kda", at), task__length=length, optimiser__learning_rate=rate)
    runs = load_runs(tmp_path).set_index("seed")["arm"]
    assert runs[0] == runs[1] == "kda, length 64, learning rate 0.001"
    assert runs[2] == "kda, length 128, learning rate 0.001" and runs[3] == "kda, length 128, learning rate 0.01"
    records = load_records(tmp_path)
    assert records.groupby("arm", observed=True)["run_id"].nunique().max() == 2
    apart = arms(load_runs(tmp_path), apart=["task.length"])
    assert sorted(set(apart)) == ["kda, learning rate 0.001", "kda, learning rate 0.01"]


def test_what_the_model_already_tells_is_not_said_twice(tmp_path, write_run):
    """Each depth has the learning rate that validation chose for it; candidates that were not chosen are arms of their own."""
    for depth, rate in ((1, 1e-3), (2, 1e-2)):
        for seed in range(2):
            change(write_run(tmp_path, "kda", seed, depth=depth), optimiser__learning_rate=rate)
    lost = write_run(tmp_path, "kda", 9, depth=1)
    change(lost, optimiser__learning_rate=0.1)
    result = json.loads((lost / "result.json").read_text())
    (lost / "result.json").write_text(json.dumps(result | {"test": {}}))
    table = load_runs(tmp_path)
    assert sorted(set(table["arm"][table["seed"] < 9])) == ["kda, depth 1", "kda, depth 2"]
    assert table["arm"][table["seed"] == 9].tolist() == ["kda, depth 1, learning rate 0.1"]


def test_a_field_of_one_task_does_not_name_the_arms_of_another(tmp_path, write_run):
    for length in (64, 128):
        change(write_run(tmp_path, "kda", length), task__length=length)
    write_run(tmp_path, "kda", 0, task="other")
    assert load_runs(tmp_path).set_index("task")["arm"]["other"] == "kda"


def test_what_is_not_there_is_a_bad_request(tmp_path):
    with pytest.raises(BadRequest, match="no such folder"):
        find_runs(tmp_path / "nowhere")
    with pytest.raises(BadRequest, match="no finished run"):
        Study.of(tmp_path).runs.head()


def test_missing_records_and_broken_results_are_named(tmp_path, write_run):
    run = write_run(tmp_path, "kda", 0)
    (run / "records.parquet").write_bytes(b"")
    with pytest.raises(BadRequest, match=r"records\.parquet: not a Parquet table"):
        load_records(tmp_path)
    (run / "records.parquet").unlink()
    with pytest.raises(BadRequest, match=r"records\.parquet: missing"):
        load_records(tmp_path)
    (run / "result.json").write_text("{")
    with pytest.raises(BadRequest, match="not JSON"):
        load_runs(tmp_path)


def test_unfinished_runs_are_left_out(tmp_path, write_run):
    write_run(tmp_path, "kda", 0)
    (write_run(tmp_path, "kda", 1) / "result.json").unlink()
    assert len(load_runs(tmp_path)) == 1


def test_foreign_tables_get_run_columns():
    frame = tidy(
        pd.DataFrame({"example": [0, 0], "stale": [[5, -1], [-1, -1]], "correct": [True, False]}), stage="mine"
    )
    assert frame["n_stale"].tolist() == [1, 0] and frame["arm"].tolist() == ["mine", "mine"]


def test_require_names_the_missing_column():
    with pytest.raises(BadRequest, match="lack the column lag_tokens"):
        require(pd.DataFrame({"a": [1]}), ["lag_tokens"], "retention")
    with pytest.raises(BadRequest, match="no query is left"):
        require(pd.DataFrame({"a": []}), ["a"], "retention")


def test_a_run_listed_twice_counts_once(runs):
    assert len(load_runs([runs, runs])) == 15
    assert json.dumps(sorted(load_runs([runs])["run_id"])) == json.dumps(sorted(load_runs([runs, runs])["run_id"]))


def test_tasks_with_different_fields_and_columns_share_a_table(tmp_path, write_run):
    """A text field that one task has and another lacks, and query columns of one task only."""
    from mnemolab.analysis.records import Study

    first = write_run(tmp_path, "kda", 0)
    frame = pd.read_parquet(first / "records.parquet").assign(haystack_rank=1, depth=50)
    second = write_run(tmp_path, "gpt2", 1, task="other", frame=frame)
    config = (second / "config.yaml").read_text()
    (second / "config.yaml").write_text(config.replace("versions: 4", "haystack: noise\n  rate: 0.5"))
    records = load_records(tmp_path)
    assert records.groupby("task", observed=True)["task.haystack"].first()["other"] == "noise"
    assert set(records["depth"]) == {1} and records["query_depth"].dropna().unique().tolist() == [50]
    parts = Study.of(tmp_path).by_task
    assert "query_depth" in parts["other"] and "query_depth" not in parts["synthetic"]
