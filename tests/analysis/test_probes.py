"""Probes of real run folders with small models, and of predictions from elsewhere."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from mnemolab.analysis import interventions
from mnemolab.analysis.decay import residual_weights
from mnemolab.analysis.foreign import foreign_records
from mnemolab.analysis.probes import PROBES, run_probes
from mnemolab.analysis.records import Study
from mnemolab.cli import main
from mnemolab.errors import BadRequest
from mnemolab.models import make_model
from mnemolab.models.mixers.memory import Operands
from mnemolab.tasks import make_task
from mnemolab.trainers.config import RunConfig
from tests.analysis.fresh import fresh_run

SIZES: dict[str, Any] = {"width": 16, "depth": 1, "heads": 2, "head_dim": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Run folders as training leaves them, with fresh weights in place of trained ones."""
    out = tmp_path_factory.mktemp("probes")
    for stage in ("kda", "gpt2"):
        config = RunConfig.from_dict(
            {"task": {"name": "key_overwrite", "ask": "mixed"}, "model": {"name": stage, **SIZES}}
        )
        fresh_run(out, config, 24)
    return out


def test_every_probe_of_a_folder(folder, tmp_path):
    page = run_probes(Study.of(folder), list(PROBES), tmp_path)
    tables = {p.stem for p in (tmp_path / "tables").iterdir()}
    assert tables >= {
        "retention-lag-writes", "fits", "versions", "proactive", "retroactive", "intrusions", "stale-new-ratio",
        "gates-by-token", "half-lives", "dispersion", "functional-half-lives", "state", "attention", "interventions",
    }  # fmt: skip
    html = page.read_text()
    assert (
        "Half-lives of the gates" in html
        and "Interventions" in html
        and "nan" not in html.lower().split("<main>")[1][:2000]
    )
    gates = pd.read_csv(tmp_path / "tables" / "gates-by-token.csv")
    assert set(gates["token"]) >= {"keys", "values", "special", "query"} and (gates["decay"] <= 1).all()
    changes = pd.read_csv(tmp_path / "tables" / "interventions.csv")
    assert set(changes["arm"]) == {"kda"} and {"no-erase", "mean-over-channels", "wipe-state"} <= set(
        changes["intervention"]
    )


def test_how_deep_a_probe_looks_is_a_setting_and_said(folder, tmp_path, capsys):
    kda = next(p for p in folder.iterdir() if "kda" in (p / "config.yaml").read_text())
    options = ["--runs", "1", "--sequences", "5", "--examples", "6", "--wipe-at", "3", "--out", str(tmp_path)]
    assert main(["probe", str(kda), "--probe", "decay,interventions", *options]) == 0
    html = (tmp_path / "index.html").read_text()
    for words in ("traced on 5 test sequences", "same 6 test sequences", "wiped at token 3", "1 of 1 run per model"):
        assert words in html, words
    changed = pd.read_csv(tmp_path / "tables" / "interventions.csv")
    assert changed["queries"].eq(6 * make_task("key_overwrite").keys).all()
    capsys.readouterr()
    assert main(["probe", str(kda), "--examples", "0"]) == 2 and "examples=0" in capsys.readouterr().err


def test_one_probe_that_cannot_is_a_bad_request(folder, tmp_path, capsys):
    gpt2 = next(p for p in folder.iterdir() if "gpt2" in (p / "config.yaml").read_text())
    assert main(["probe", str(gpt2), "--probe", "interventions", "--out", str(tmp_path)]) == 2
    assert "has anything to intervene on" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.html"))


# ---- interventions


@pytest.fixture(scope="module")
def kda():
    torch.manual_seed(0)
    task = make_task("key_overwrite")
    return make_model("kda", vocab_size=task.vocabulary.size, **SIZES).eval(), task


def outputs(model, task, name: str) -> torch.Tensor:
    batch = task.sample(torch.arange(4), split="test")
    setting = interventions._setting(model, batch, None, "sequential", 0)
    with torch.no_grad(), interventions._held(model, interventions.INTERVENTIONS[name], setting):
        return model(batch.inputs)


def test_each_intervention_does_what_it_says(kda):
    """On the traces: averaging makes channels equal, freezing makes tokens equal, and so on."""
    model, task = kda
    batch = task.sample(torch.arange(4), split="test")
    setting = interventions._setting(model, batch, 10, "sequential", 0)
    seen = {}
    plain = model.traces(batch.inputs)[0]
    for name in ("mean-over-channels", "mean-over-heads", "shuffle-channels", "freeze-decay", "no-decay", "no-erase", "full-erase", "wipe-state"):  # fmt: skip
        with interventions._held(model, interventions.INTERVENTIONS[name], setting):
            seen[name] = model.traces(batch.inputs)[0]
    g = plain["log_decay"]
    torch.testing.assert_close(seen["mean-over-channels"]["log_decay"], g.mean(-1))
    torch.testing.assert_close(seen["mean-over-heads"]["log_decay"][:, :, 0], g.mean(2))
    shuffled = seen["shuffle-channels"]["log_decay"]
    torch.testing.assert_close(shuffled.sort(-1).values, g.sort(-1).values)
    assert not torch.equal(shuffled, g)
    frozen = seen["freeze-decay"]["log_decay"]
    torch.testing.assert_close(frozen, g.mean((0, 1)).expand_as(g))
    assert seen["no-decay"]["log_decay"] is None and seen["no-erase"]["erase"] is None
    assert (seen["full-erase"]["erase"] == 1).all() and (seen["full-erase"]["write"] == 1).all()
    torch.testing.assert_close(seen["no-erase"]["write"], plain["write"])
    assert (seen["wipe-state"]["log_decay"][:, 10] == -60).all() and torch.equal(
        seen["wipe-state"]["log_decay"][:, 11:], g[:, 11:]
    )


def test_a_wiped_state_forgets_what_came_before(kda):
    """With the state emptied at t, the output after t (beyond the convolution) does not depend on tokens before it."""
    model, task = kda
    batch = task.sample(torch.arange(2), split="test")
    other = batch.inputs.clone()
    other[:, :4] = other[:, :4].flip(1)
    setting = interventions._setting(model, batch, 10, "sequential", 0)
    with torch.no_grad(), interventions._held(model, interventions.INTERVENTIONS["wipe-state"], setting):
        torch.testing.assert_close(model(batch.inputs)[:, 10:], model(other)[:, 10:])
    with torch.no_grad():
        assert not torch.allclose(model(batch.inputs)[:, 10:], model(other)[:, 10:])


def test_a_question_is_not_wiped():
    """Questions longer than the position at which the context is wiped keep their own state."""
    operands = Operands(*(torch.zeros(1, 20, 2, 8) for _ in range(3)))
    setting = interventions.Setting(wipe_at=3, lengths=(50,))
    assert interventions._wiped(0, operands, setting).log_decay is None
    held = interventions._wiped(0, operands, replace(setting, lengths=(20,))).log_decay
    assert held is not None and held[0, 3].tolist() == [-60, -60] and held.sum() == -120


def test_tied_gates_are_the_mean_of_the_two():
    gates = {"erase": torch.full((1, 4, 2, 8), 0.2), "write": torch.full((1, 4, 2, 8), 0.6)}
    operands = Operands(*(torch.zeros(1, 4, 2, 8) for _ in range(3)), **gates)
    tied = interventions._tied(0, operands, interventions.Setting())
    assert tied.erase is not None
    torch.testing.assert_close(tied.erase, torch.full((1, 4, 2), 0.4))
    assert tied.write is tied.erase


def test_effects_are_paired_and_leave_the_model_as_it_was(kda):
    model, task = kda
    batch = task.sample(torch.arange(4), split="test")
    with torch.no_grad():
        before = model(batch.inputs)
    rows, skipped = interventions.effects(model, task, ["no-decay", "drop-softmax"], examples=8)
    assert set(rows["intervention"]) == {"no-decay"} and "hybrid" in skipped["drop-softmax"]
    assert (rows["change"] == rows["correct"].astype(int) - rows["before"].astype(int)).all() and len(
        rows
    ) == 8 * task.keys
    with torch.no_grad():
        torch.testing.assert_close(model(batch.inputs), before)
    with pytest.raises(BadRequest, match="did you mean 'no-decay'"):
        interventions.effects(model, task, ["no-decays"], examples=2)
    with pytest.raises(BadRequest, match="outside the context"):
        interventions.effects(model, task, ["wipe-state"], examples=2, wipe_at=1000)


def test_changes_by_hand():
    rows = pd.DataFrame(
        {
            "run_id": "a", "arm": "kda", "intervention": "x", "example": [0, 0, 1, 1], "correct": [1, 0, 0, 0],
            "before": [1, 1, 1, 0], "change": [0, -1, -1, 0], "stale": [0, 1, 0, 0], "stale_before": [0, 0, 0, 0],
        }
    )  # fmt: skip
    out = interventions.changes(rows).iloc[0]
    assert (out["change"], out["before"], out["after"], out["stale_change"]) == (-0.5, 0.75, 0.25, 0.25)
    assert out["low"] <= -0.5 <= out["high"]


def test_hybrid_and_residual_interventions():
    task = make_task("key_overwrite")
    torch.manual_seed(0)
    sizes: dict[str, Any] = {**SIZES, "depth": 2, "second": "gpt2", "ratio": "1:1"}
    hybrid = make_model("kda", vocab_size=task.vocabulary.size, **sizes).eval()
    assert interventions.applicable(hybrid)["drop-softmax"] == ""
    batch = task.sample(torch.arange(2), split="test")
    with torch.no_grad():
        plain = hybrid(batch.inputs)
    dropped = outputs(hybrid, task, "drop-softmax")
    assert not torch.allclose(dropped[:2], plain)
    k3 = make_model(
        "kimi_k3", vocab_size=task.vocabulary.size, recipe="published", width=16, heads=2, head_dim=8
    ).eval()
    if interventions.applicable(k3)["uniform-residuals"] == "":
        rule: Any = k3.residual
        with torch.no_grad():
            rule.query.normal_()
        kept = rule.query.clone()
        with interventions._held(k3, interventions.INTERVENTIONS["uniform-residuals"], interventions.Setting()):
            weights = residual_weights(k3, batch.inputs)
        torch.testing.assert_close(torch.tensor(weights["weight"]), torch.tensor(weights["uniform"]), rtol=1e-5, atol=0)
        assert torch.equal(rule.query, kept)


# ---- predictions from elsewhere


@pytest.fixture
def exported(tmp_path):
    assert main(["data", "key_overwrite", "--n", "40", "--split", "test", "--out", str(tmp_path / "x.parquet")]) == 0
    queries = pd.read_parquet(tmp_path / "x.queries.parquet")
    return tmp_path, queries


def test_foreign_predictions_become_records(exported):
    folder, queries = exported
    stale = [s[0] if len(s) else t for s, t in zip(queries["stale"], queries["target"], strict=True)]
    frame = pd.concat(
        [
            queries[["example", "query"]].assign(prediction=queries["target"], stage="oracle"),
            queries[["example", "query"]].assign(prediction=stale, stage="blend"),
        ]
    )
    records = foreign_records(frame, folder / "x.task.json")
    good, bad = records[records["stage"] == "oracle"], records[records["stage"] == "blend"]
    assert good["correct"].all() and (good["outcome"] == "correct").all()
    rebound = bad["n_stale"] > 0
    assert (bad["outcome"][rebound] == "stale").all() and (bad["stale_age"][rebound] == 1).all()
    assert (bad["outcome"][~rebound] == "correct").all() and set(records["condition"]) == {
        "fresh",
        "rebound",
        "control",
    }
    assert (
        set(records["run_id"]) == {"oracle-0", "blend-0"}
        and np.isclose(records["chance"], 1 / make_task("key_overwrite").writes).all()
    )


def test_foreign_predictions_on_the_command_line(exported, capsys):
    folder, queries = exported
    queries[["example", "query"]].assign(prediction=queries["target"]).to_parquet(folder / "mine.parquet")
    assert (
        main(["probe", str(folder / "mine.parquet"), "--data", str(folder / "x.parquet"), "--out", str(folder / "p")])
        == 0
    )
    assert (folder / "p" / "tables" / "versions.csv").exists() and (folder / "p" / "index.html").exists()
    capsys.readouterr()
    assert main(["probe", str(folder / "mine.parquet"), "--probe", "decay", "--data", str(folder / "x.parquet")]) == 2
    assert "without a model" in capsys.readouterr().err


def test_bad_predictions_are_named(exported):
    folder, queries = exported
    about, rows = folder / "x.task.json", queries[["example", "query"]].assign(prediction=0)
    with pytest.raises(BadRequest, match="lack the column prediction"):
        foreign_records(queries[["example", "query"]], about)
    with pytest.raises(BadRequest, match="there twice"):
        foreign_records(pd.concat([rows, rows]), about)
    with pytest.raises(BadRequest, match="query number does not exist"):
        foreign_records(rows.assign(query=rows["query"] + 90), about)
    with pytest.raises(BadRequest, match="outside 0 to 39"):
        foreign_records(rows.assign(example=rows["example"] + 1), about)
    for bad, match in (
        (rows.assign(prediction=np.nan), "prediction is missing in 240 of 240"),
        (rows.assign(prediction="7"), "column prediction holds str, such as '7'"),
        (rows.assign(prediction=0.5), "it must hold a token number"),
        (rows.assign(example=rows["example"].where(rows["example"] > 0)), "example is missing in 6 of 240"),
        (rows.iloc[:0], "no query is left"),
    ):
        with pytest.raises(BadRequest, match=match):
            foreign_records(bad, about)
    (folder / "empty.parquet").write_bytes(b"")
    assert main(["probe", str(folder / "empty.parquet"), "--data", str(about)]) == 2
    with pytest.raises(BadRequest, match=r"not a NAME\.task\.json"):
        foreign_records(rows, folder / "x.parquet")
    (folder / "old.task.json").write_text(json.dumps({"task": json.loads(about.read_text())["task"]}))
    with pytest.raises(BadRequest, match=r"not a NAME\.task\.json.*version"):
        foreign_records(rows, folder / "old.task.json")
