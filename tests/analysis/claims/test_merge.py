"""Claims that were judged later take their places among the others, with their runs, figures and dates."""

import json
from pathlib import Path

import pandas as pd
import pytest

from mnemolab.analysis.claims import CLAIMS, Judgement, Sample
from mnemolab.analysis.claims.merge import main
from mnemolab.analysis.claims.replication import read_replication
from mnemolab.analysis.claims.results import results
from mnemolab.analysis.claims.rules import judged
from mnemolab.analysis.claims.write import read_claims, write_claims

FIGURE = {"experiment": "selection", "title": "t", "caption": "c", "alt": "a"}


def folder_of(home: Path, effects: dict[str, float], experiments: dict[str, str], commit: str, **change) -> Path:
    """Claims with one contrast and one A/A pair each, runs.parquet with two runs an experiment, a figure a claim."""
    home.mkdir()
    seeds = range(600, 606)
    verdicts = [
        judged(
            CLAIMS[name],
            Judgement(
                [Sample("a", {s: effect + 0.001 * s for s in seeds})],
                twins=[Sample("twin", {s: effect for s in seeds})],
            ),
        )
        for name, effect in effects.items()
    ]
    figures = [
        FIGURE | {"claims": [name], "name": name, **{kind: f"{name}.{kind}" for kind in ("png", "pdf", "csv")}}
        for name in effects
    ]
    (home / "figures").mkdir()
    for row in figures:
        (home / "figures" / row["png"]).write_text(commit)
    methods = {
        "tier": "full", "seeds": [600], "twin_seeds": [650], "hashes": experiments, "attempts": {}, "rates": {}, "claims": 2,
        "runs": 0, "steps": 0, "training_seconds": 0.0, "devices": ["A"], "diverged": [], "rules_changed": list(effects),
        "provenance": {"Commit": commit, "Made": "2026-12-01"}, "figures": figures,
    }  # fmt: skip
    write_claims(verdicts, home, methods | change)
    rows = [
        {"experiment": name, "run_id": f"{name} {value} {i}", "result.steps": 10, "result.train_seconds": 0.5}
        for name, value in experiments.items()
        for i in range(2)
    ]
    pd.DataFrame(rows).to_parquet(home / "runs.parquet")
    return home


@pytest.fixture
def first(tmp_path) -> Path:
    effects = {"additive-blend": 0.5, "channel-selects": 0.3, "record-update": 0.1}
    return folder_of(tmp_path / "first", effects, {"overwrite": "1", "selection": "2"}, "aaa")


def held(home: Path) -> dict[str, str]:
    return {str(path.relative_to(home)): path.read_bytes().hex() for path in home.rglob("*") if path.is_file()}


def test_later_claims_take_their_places(first, tmp_path):
    before = read_claims(first)[0]
    later = folder_of(tmp_path / "later", {"channel-selects": -0.9}, {"selection": "3"}, "bbb", devices=["A", "B"])
    assert main([str(first), str(later)]) == 0
    rows, methods = read_claims(first)
    assert [row["id"] for row in rows] == ["additive-blend", "channel-selects", "record-update"]
    assert rows[0] == before[0] and rows[2] == before[2]
    assert rows[1] == read_claims(later)[0][0] and rows[1]["effect"] < 0
    assert methods["hashes"] == {"overwrite": "1", "selection": "3"} and methods["devices"] == ["A", "B"]
    runs = pd.read_parquet(first / "runs.parquet")
    assert sorted(runs["run_id"]) == ["overwrite 1 0", "overwrite 1 1", "selection 3 0", "selection 3 1"]
    assert (methods["runs"], methods["steps"], methods["training_seconds"]) == (4, 40, 2.0)
    # the twins of its old place (0.3 each, supported) went with it; those of the others stay
    assert (methods["twins"], methods["twins_supported"]) == (3, 2)
    assert sorted(methods["rules_changed"]) == ["additive-blend", "channel-selects", "record-update"]
    assert sorted(row["name"] for row in methods["figures"]) == ["additive-blend", "channel-selects", "record-update"]
    assert (first / "figures" / "channel-selects.png").read_text() == "bbb"
    assert (first / "figures" / "additive-blend.png").read_text() == "aaa"
    assert "Judged later, at bbb, 2026-12-01: channel-selects." in results(rows, methods)
    table = pd.read_csv(first / "claims.csv").set_index("id")
    assert float(table["effect"].to_dict()["channel-selects"]) < 0


def test_only_the_last_judgement_of_a_claim_is_dated(first, tmp_path):
    one = folder_of(tmp_path / "one", {"channel-selects": -0.9, "record-update": 0.2}, {"selection": "3"}, "bbb")
    two = folder_of(tmp_path / "two", {"channel-selects": 0.9}, {"selection": "4"}, "ccc")
    assert main([str(first), str(one)]) == 0 and main([str(first), str(two)]) == 0
    said = {entry["provenance"]["Commit"]: entry["claims"] for entry in read_claims(first)[1]["later"]}
    assert said == {"bbb": ["record-update"], "ccc": ["channel-selects"]}


@pytest.mark.parametrize(
    "change, said",
    [
        ({"tier": "replicate"}, "tier='replicate'"),
        ({"seeds": [700]}, r"seeds=[700]"),
        (None, "runs.parquet: cannot read"),
    ],
)
def test_what_does_not_belong_there_changes_nothing(first, tmp_path, change, said, capsys):
    later = folder_of(tmp_path / "later", {"channel-selects": -0.9}, {"selection": "3"}, "bbb", **(change or {}))
    if change is None:
        (later / "runs.parquet").unlink()
    before = held(first)
    assert main([str(first), str(later)]) == 2
    assert said in capsys.readouterr().err and held(first) == before


def test_an_earlier_attempt_at_a_claim_is_no_replication_of_it(first, tmp_path):
    objects, methods = read_claims(first)
    other = folder_of(
        tmp_path / "again",
        {"additive-blend": 0.5, "channel-selects": 0.5},
        {"selection": "5"},
        "ddd",
        tier="replicate",
        seeds=[700],
    )
    assert [row["id"] for row in read_replication([other], objects, methods)[0]] == [
        "additive-blend",
        "channel-selects",
    ]
    rows = json.loads((other / "claims.json").read_text())
    rows[1]["experiment"] = ["retention"]
    (other / "claims.json").write_text(json.dumps(rows))
    assert [row["id"] for row in read_replication([other], objects, methods)[0]] == ["additive-blend"]
