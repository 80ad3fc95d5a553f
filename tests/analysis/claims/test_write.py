"""Damaged claims.json and methods.json: one clear line each, for the first folder and for those of other seeds alike."""

import json
import shutil
from dataclasses import fields
from pathlib import Path

import pytest

from mnemolab.analysis.claims import CLAIMS, Judgement, Sample
from mnemolab.analysis.claims.claim import Contrast
from mnemolab.analysis.claims.rules import judged
from mnemolab.analysis.claims.valid import CLAIM_FIELDS, CONTRAST_FIELDS
from mnemolab.analysis.claims.write import FIELDS, read_claims, write_claims
from mnemolab.cli import main

RESULTS = Path(__file__).parents[3] / "docs" / "results"
NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Two claims judged under the first seeds and under others."""
    home = tmp_path_factory.mktemp("claims")
    found = {}
    for tier, seed in (("quick", 100), ("replicate", 700)):
        samples = [Sample("a", {seed + n: 0.3 + 0.01 * n for n in range(6)}), Sample("b", {seed: 0.2})]
        twins = [Sample("twin", {seed + n: 0.01 * n for n in range(3)}), Sample("not run", {})]
        judgement = Judgement(samples, samples[:1], twins, [{"mean": 0.5, "low": None}])
        found[tier] = home / tier
        found[tier].mkdir()
        write_claims(
            [judged(CLAIMS[name], judgement) for name in ("additive-blend", "gdn2-decouples")], found[tier],
            {"tier": tier, "seeds": [seed], "runs": 6, "attempts": {"a": 1}, "hashes": {"a": "0"}, "diverged": [], "figures": []},
        )  # fmt: skip
    return found


def contrast(**change):
    return lambda rows, methods: rows[1]["contrasts"][0].update(change)


def claim(**change):
    return lambda rows, methods: rows[1].update(change)


def method(**change):
    return lambda rows, methods: methods.update(change)


A, B = "claim gdn2-decouples, contrasts 'a', ", "claim gdn2-decouples, "
DAMAGES = {
    "a seed that is missing": (contrast(values={"100": 0.3}), f"{A}values={{'100': 0.3}}, to be those of n=6 seeds"),
    "a value that is text": (contrast(values={"100": "0.3"}), f"{A}values={{'100': '0.3'}}, to be an object of finite numbers"),
    "n as text": (contrast(n="12"), f"{A}n='12', to be a whole number"),
    "fractional n": (contrast(n=11.5), f"{A}n=11.5, to be a whole number"),
    "n below 0": (contrast(n=-1), f"{A}n=-1"),
    "n a flag": (contrast(n=True), f"{A}n=True"),
    "no effect": (contrast(effect=None), f"{A}effect=None, to be a number, as n is 6"),
    "NaN effect": (contrast(effect=NAN), f"{A}effect=nan, to be a finite number or null"),
    "NaN in low": (contrast(low=NAN), f"{A}low=nan"),
    "infinite high": (contrast(high=INF), f"{A}high=inf"),
    "text in high": (contrast(high="0.5"), f"{A}high='0.5'"),
    "a number beyond floats": (contrast(high=10**400), f"{A}high=1000"),
    "high below low": (contrast(high=0.0, effect=0.3), f"{A}high=0.0, to be not below low="),
    "effect above high": (contrast(effect=5.0), "to be not below effect=5.0"),
    "unknown outcome": (contrast(outcome="won"), f"{A}outcome='won', to be one of supported"),
    "unknown test": (contrast(test="less"), f"{A}test='less'"),
    "null margin": (contrast(margin=None), f"{A}margin=None"),
    "one name twice": (contrast(name="b"), f"{B}contrasts, name='b', to be the name of one contrast only"),
    "a name that is a list": (contrast(name=["b"]), "name=['b'], to be text"),
    "a lost field": (lambda rows, methods: rows[1]["contrasts"][0].pop("p"), "contrasts 'a' lacks 'p'"),
    "contrasts of ints": (claim(contrasts=[1]), f"{B}contrasts=[1], to be a list of objects"),
    "placebos no list": (claim(placebo_contrasts=None), f"{B}placebo_contrasts=None"),
    "twin without n": (lambda rows, methods: rows[1]["twins"][0].update(n=None), "twins 'twin', n=None"),
    "unknown verdict": (claim(verdict="maybe"), f"{B}verdict='maybe', to be one of supported"),
    "verdict a list": (claim(verdict=["supported"]), f"{B}verdict=['supported']"),
    "text in high of a claim": (claim(high="x"), f"{B}high='x'"),
    "high below low of a claim": (claim(low=1.0, effect=0.5, high=0.0), f"{B}high=0.0, to be not below low=1.0"),
    "seeds of a claim as text": (claim(seeds="12"), f"{B}seeds='12'"),
    "a number of an arm": (claim(numbers=[{"mean": NAN}]), f"{B}numbers 1 mean=nan"),
    "a check without a name": (claim(checks=[{}]), "check None lacks 'name'"),
    "an id twice": (claim(id="additive-blend"), "claim additive-blend, id='additive-blend', to be the id of one"),
    "an id that is a number": (claim(id=3), "entry 2, id=3, to be text"),
    "ints for objects": (lambda rows, methods: rows.__setitem__(slice(None), [1, 2]), "entry 1=1, to be an object"),
    "seeds as text": (method(seeds="700 to 711"), "methods, seeds='700 to 711', to be a list of whole numbers"),
    "seeds of text": (method(seeds=["700"]), "methods, seeds=['700']"),
    "runs null": (method(runs=None), "methods, runs=None, to be a whole number"),
    "attempts a list": (method(attempts=[1]), "methods, attempts=[1]"),
    "hashes null": (method(hashes=None), "methods, hashes=None"),
    "diverged as text": (method(diverged="none"), "methods, diverged='none'"),
    "figures an object": (method(figures={}), "methods, figures={}"),
    "a figure without a name": (method(figures=[{"claims": [], "experiment": "e"}]), "figure 1 lacks 'name'"),
    "NaN seconds": (method(training_seconds=NAN), "methods, training_seconds=nan"),
    "a tier that is a number": (method(tier=1), "methods, tier=1"),
}  # fmt: skip


@pytest.mark.parametrize("damaged", ["quick", "replicate"])
@pytest.mark.parametrize("case", DAMAGES)
def test_damage_is_one_clear_line(folders, tmp_path, case, damaged, capsys):
    change, said = DAMAGES[case]
    given = folders | {damaged: Path(shutil.copytree(folders[damaged], tmp_path / "damaged"))}
    rows, methods = read_claims(given[damaged])
    change(rows, methods)
    (given[damaged] / "claims.json").write_text(json.dumps(rows))
    (given[damaged] / "methods.json").write_text(json.dumps(methods))
    words = ["report", str(given["quick"]), "--out", str(tmp_path / "out"), "--replication", str(given["replicate"])]
    assert main(words) == 2
    told = capsys.readouterr().err.strip()
    name = "methods.json" if said.startswith(("methods", "figure")) else "claims.json"
    assert f"{given[damaged] / name}: " in told and said in told
    assert told.endswith("run `mnemolab claims` again") and len(told.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_what_is_whole_is_read(folders, tmp_path):
    """Also a contrast that was not measured, one of one seed, and an effect beyond its interval by rounding."""
    for tier, whole in folders.items():
        folder = Path(shutil.copytree(whole, tmp_path / tier))
        rows, _ = read_claims(folder)
        assert [c["n"] for c in (*rows[0]["contrasts"], *rows[0]["twins"])] == [6, 1, 3, 0]
        end = rows[0]["contrasts"][0]
        end |= {"low": end["effect"] * (1 + 1e-12)}
        (folder / "claims.json").write_text(json.dumps(rows))
        assert read_claims(folder)[0] == rows


@pytest.mark.parametrize("name", ["full", "replicate", "replicate_2"])
def test_the_results_that_are_kept_are_whole(name):
    assert read_claims(RESULTS / name)[0]


def test_every_field_that_is_written_is_checked():
    assert {"id", *CLAIM_FIELDS} == {*FIELDS}
    assert {*CONTRAST_FIELDS} == {field.name for field in fields(Contrast)}
