"""From YAML to the page with real runs: a small experiment of one's own, trained in pieces."""

import json
from dataclasses import replace

import pandas as pd
import pytest
import yaml

from mnemolab.analysis.claims import (
    CLAIMS,
    Claim,
    Evidence,
    Judgement,
    Sample,
    command,
    load_experiment,
    register_claim,
    story,
)
from mnemolab.analysis.claims.experiments import load_tier
from mnemolab.analysis.claims.judges import gates
from mnemolab.analysis.claims.story import STEPS, Step, draw_step
from mnemolab.cli import main
from mnemolab.errors import BadRequest

from .test_experiments import SMALL


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A claim of one's own on a small experiment: deltanet and its twin, three seeds, two steps."""
    path = tmp_path / "small.yaml"
    changes = {"cells": {"main": {}}, "only": {}, "tiers": {"quick": {"without": ["additive"]}, "full": {}}}
    path.write_text(yaml.safe_dump(SMALL | changes))
    monkeypatch.setattr(CLAIMS, "_entries", dict(CLAIMS._entries))
    fields = {"statistic": "s", "direction": "up", "margin": 0.1, "unit": "points", "rule": "family", "placebo": "p"}

    @register_claim(
        Claim("mine", "a claim", "me", "trained", experiment=(str(path),), figure="main/versions", **fields)
    )
    def judge(evidence):
        found = evidence.values("small", lambda run: run.records["correct"].mean())
        slopes = evidence.values("small", lambda run: gates._slope(run) - 1)
        return Judgement(
            [Sample("accuracy", found.of("delta")), Sample("slope", slopes.of("delta"), "equivalent")],
            twins=found.twins("accuracy"), numbers=found.rows("accuracy"),
        )  # fmt: skip

    return path


def test_pieces_verdicts_figures_and_page(mine, tmp_path, capsys, request):
    out = tmp_path / "out"
    command = ["claims", "--only", "mine", "--out", str(out), "--workers", "1", "--device", "cpu"]
    assert main([*command, "--dry-run"]) == 0
    said = capsys.readouterr().out.split()
    assert "small" in said and said[said.index("small") + 1 : said.index("small") + 4] == ["6", "6", "12"]
    assert not (out / "runs").exists()

    assert main([*command, "--minutes", "0.001"]) == 0
    assert "run the same command again" in capsys.readouterr().err and not (out / "claims.json").exists()
    request.getfixturevalue("inline")  # the first piece had a worker, which was stopped at its first run
    assert main(command) == 0
    assert "mine" in capsys.readouterr().out
    (row,) = json.loads((out / "claims.json").read_text())
    assert row["verdict"] == "inconclusive" and len(row["evidence"]) == 6 and len(row["twins"]) == 1
    assert (row["contrasts"][0]["n"] == 3 and row["seeds_needed"] is None) or row["seeds_needed"] >= 5
    methods = json.loads((out / "methods.json").read_text())
    assert methods["hashes"] == {"small": "not frozen"} and methods["runs"] == 6 and methods["steps"] == 12
    runs = pd.read_parquet(out / "runs.parquet")
    assert len(runs) == 6 and sorted(runs["run_id"]) == sorted(row["evidence"]) and not runs["twin"].all()
    assert {"experiment", "cell", "arm", "pair", "seed", "optimiser.learning_rate", "result.test.accuracy"} <= set(runs)
    names = [figure["name"] for figure in methods["figures"]]
    assert "claim-mine" in names and any(name.startswith("small-main-versions") for name in names)
    assert main(["report", str(out)]) == 0
    assert (out / "report" / "index.html").read_text().count("<img") == len(names)

    evidence = Evidence.of(load_experiment(str(mine)).planned(load_tier("quick"), {}), out / "runs")
    run = evidence.ran[0]
    before = run.records["correct"].mean()
    evidence.forget()
    assert set(vars(run)) == {"plan", "folder"} and run.records["correct"].mean() == before
    # verdicts of some claims do not take the place of those of all
    (out / "claims.json").write_text((out / "claims.json").read_text().replace('"mine"', '"another"'))
    held = (out / "claims.json").read_text()
    assert main(command) == 0 and "is left as it is: it holds 1 other" in capsys.readouterr().err
    assert (out / "claims.json").read_text() == held
    # nor does a verdict stand when what its runs hold is another
    kept = (out / "judged" / "mine.json").read_text()
    frame = pd.read_parquet(run.folder / "records.parquet")
    frame.assign(correct=~frame["correct"]).to_parquet(run.folder / "records.parquet", index=False)
    assert main(command) == 0 and (out / "judged" / "mine.json").read_text() != kept
    frame.to_parquet(run.folder / "records.parquet", index=False)
    evidence.forget()
    plot = draw_step(Step("s", "t", "small", "main", "versions", {"delta": "deltanet"}), evidence)
    assert set(plot.data["versions"]) == {1, 2} and plot.data["runs"].max() == 3
    with pytest.raises(BadRequest, match="no finished run"):
        draw_step(STEPS[0], evidence)
    assert story.main(["--tier", "quick", "--runs", str(tmp_path / "none"), "--out", str(tmp_path / "s")]) == 1
    assert story.main(["--tier", "quikc"]) == 2 and "did you mean 'quick'" in capsys.readouterr().err


def test_a_run_that_always_diverges_is_left_out_and_named(mine, tmp_path, monkeypatch, capsys, inline):
    """Its arm goes on with the other seeds; without that one seed would keep the whole tier from being judged."""
    values = yaml.safe_load(mine.read_text())
    values["arms"]["wild"] = {"model.name": "deltanet", "optimiser.learning_rate": 9.0}
    mine.write_text(yaml.safe_dump(values))
    out, real, error = tmp_path / "out", command._train, "NotFiniteRun: step 1: loss nan"

    def trained(name, runs, folder, *rest):
        wild = [run.run_id for run in runs if run.optimiser.learning_rate == 9.0]
        piece = real(name, [run for run in runs if run.run_id not in wild], folder, *rest)
        for run_id in wild:
            (folder / run_id).mkdir(exist_ok=True)
            (folder / run_id / "failure.json").write_text(json.dumps({"error": error}))
        return replace(piece, failed=tuple(wild))

    monkeypatch.setattr(command, "_train", trained)
    words = ["claims", "--only", "mine", "--out", str(out), "--workers", "1", "--device", "cpu"]
    assert main(words) == 0
    assert capsys.readouterr().err.count("left out, since its loss or gradient is not finite: small main/wild") == 3
    methods = json.loads((out / "methods.json").read_text())
    assert len(methods["diverged"]) == 3 and all("main/wild" in name for name in methods["diverged"])
    assert main(["report", str(out)]) == 0
    said = (out / "report" / "results.md").read_text()
    assert "Left out, since their loss or gradient was not finite: small main/wild" in said
    error = "OSError: no space"  # which may be otherwise next time
    assert main(words) == 1
