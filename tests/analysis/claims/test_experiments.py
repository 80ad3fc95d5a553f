"""Experiments expand to runs, freezing refuses what changed, and seeds of different purposes never meet."""

from dataclasses import replace

import pytest
import yaml

from mnemolab.analysis.claims import CLAIMS, load_experiment
from mnemolab.analysis.claims.asked import changed_rules, rule_hash
from mnemolab.analysis.claims.experiments import TIERS, experiment_names, load_tier
from mnemolab.analysis.claims.frozen import (
    Frozen,
    freeze,
    held_rates,
    load_frozen,
    pilot_sweep,
    plan,
    write_frozen,
)
from mnemolab.errors import BadRequest

SMALL = {
    "asks": "?",
    "rates": "overwrite",
    "base": {
        "task": {"name": "key_overwrite", "keys": 2, "versions": 2, "lags": 3, "length": 24},
        "model": {"name": "deltanet", "width": 16, "depth": 1, "heads": 1, "head_dim": 8},
        "budget": {"steps": 2, "batch_size": 4, "evaluate_every": 2, "validation_examples": 8, "test_examples": 16},
    },
    "cells": {"main": {}, "long": {"task.length": 32}},
    "arms": {"additive": {"model.name": "linear_attention"}, "delta": {}},
    "only": {"long": ["delta"]},
    "twins": ["main/delta"],
    "tiers": {"quick": {}, "full": {"budget.steps": 4, "delta/model.head_dim": 4}},
}


@pytest.fixture
def small(tmp_path):
    def write(**changes):
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump(SMALL | changes))
        return str(path)

    return write


def test_arms_that_take_another_stages_rate():
    """A contrast of parameter-matched arms is of one rate; an arm that is not there is named."""
    experiment = load_experiment("overwrite")
    rates = {"overwrite": {"kda": 6e-3, "gated_deltanet2": 1.5e-3, "deltanet": 3e-3}}
    found = {p.arm: p.config.optimiser.learning_rate for p in experiment.planned(load_tier("full"), rates)}
    assert {found[arm] for arm in ("one beta", "decoupled", "erase only", "write only")} == {6e-3}
    assert found["delta"] == 3e-3


def test_expansion_pairs_seeds_and_twins(small):
    tier = load_tier("quick")
    planned = load_experiment(small()).planned(tier, {"overwrite": {"deltanet": 0.01}})
    assert len(planned) == 3 * (2 + 1 + 1)  # additive, delta, its twin; delta long
    twins = [p for p in planned if p.twin]
    assert {p.seed for p in twins} == set(tier.seeds) and {p.config.seed for p in twins} == {
        s + tier.shift for s in tier.seeds
    }
    rates = {p.arm: p.config.optimiser.learning_rate for p in planned}
    assert rates == {"additive": 3e-3, "delta": 0.01}
    full = load_experiment(small()).planned(load_tier("full"), {})
    assert {p.arm: p.config.model["head_dim"] for p in full} == {"additive": 8, "delta": 4}
    assert {p.config.budget.steps for p in full} == {4}


def test_a_tier_may_leave_arms_out_and_replicate_is_full_with_other_seeds(small):
    path = small(tiers={"quick": {"without": ["additive", "long"]}, "full": {"budget.steps": 4}})
    quick = load_experiment(path).planned(load_tier("quick"), {})
    assert {(p.cell, p.arm) for p in quick} == {("main", "delta")}
    full, again = (load_experiment(path).planned(load_tier(t), {}) for t in ("full", "replicate"))
    assert [(p.cell, p.arm) for p in full] == [(p.cell, p.arm) for p in again]
    assert not {p.config.run_id for p in full} & {p.config.run_id for p in again}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"arm": {}}, "unknown key 'arm'"),
        ({"twins": ["detla"]}, "did you mean 'delta'"),
        ({"only": {"mian": ["delta"]}}, "did you mean 'main'"),
        ({"only": {"main": ["detla"]}}, "did you mean 'delta'"),
        ({"tiers": {"quick": {}}}, "tiers.full is missing"),
        ({"tiers": {"quick": {"without": ["detla"]}, "full": {}}}, "did you mean 'delta'"),
        ({"arms": {}, "twins": [], "only": {}}, "arms is missing"),
    ],
)
def test_a_wrong_file_is_one_clear_line(small, changes, says):
    with pytest.raises(BadRequest, match=says) as error:
        load_experiment(small(**changes))
    assert "\n" not in str(error.value)


def test_a_config_that_cannot_run_names_the_experiment(small):
    with pytest.raises(BadRequest, match=r"experiment small: .*length=4"):
        load_experiment(small(cells={"main": {"task.length": 4}}, only={})).planned(load_tier("quick"), {})
    with pytest.raises(BadRequest, match="did you mean 'overwrite'"):
        load_experiment("overwite")


def test_seeds_of_tiers_twins_and_pilots_are_disjoint():
    seen: set[int] = set()
    for name in TIERS:
        tier = load_tier(name)
        mine = {*tier.seeds, *(s + tier.shift for s in tier.seeds)}
        assert len(mine) == 2 * len(tier.seeds) and not mine & seen and not mine & set(tier.pilot)
        seen |= mine
    assert not seen & {s for name in TIERS for s in load_tier(name).pilot}
    assert len(load_tier("full").seeds) == len(load_tier("replicate").seeds) == 12
    with pytest.raises(BadRequest, match="did you mean 'full'"):
        load_tier("ful")


def test_what_is_frozen_for_quick_is_what_the_files_say():
    tier, frozen = load_tier("quick"), load_frozen("quick")
    names = {name for claim in CLAIMS.values() for name in (*claim.experiment, *claim.beside)}
    assert names == set(experiment_names()) - {"pilot"} == set(frozen.hashes)
    assert plan(sorted(names), tier, frozen)


def test_freezing_refuses_a_changed_config(monkeypatch):
    from mnemolab.analysis.claims import frozen as module

    tier, held = load_tier("quick"), load_frozen("quick")
    assert plan(["overwrite"], tier, held)
    changed = replace(load_experiment("overwrite"), base={**load_experiment("overwrite").base, "precision": "bf16"})
    monkeypatch.setattr(module, "load_experiment", lambda name: changed)
    with pytest.raises(BadRequest, match="experiment overwrite, tier quick: it changed since it was frozen"):
        plan(["overwrite"], tier, held)
    with pytest.raises(BadRequest, match="was never frozen"):
        plan(["overwrite"], tier, Frozen("quick", "", {}, {}))
    # another rate is another config
    monkeypatch.undo()
    other = replace(held, rates={"overwrite": {"deltanet": 0.1}})
    with pytest.raises(BadRequest, match="changed since"):
        plan(["overwrite"], tier, other)


def test_an_experiment_of_ones_own_is_planned_as_it_is(small):
    assert plan([small()], load_tier("quick"), Frozen("quick", "", {}, {}))


def test_pilot_chooses_the_best_rate_and_freezes_it(tmp_path, monkeypatch):
    import json

    from mnemolab.analysis.claims import frozen as module

    monkeypatch.setattr(module, "experiment_names", lambda: ["overwrite", "pilot"])
    tier = load_tier("quick")
    runs = pilot_sweep(tier).runs
    assert {run.seed for run in runs} == set(tier.pilot)
    with pytest.raises(BadRequest, match="not finished"):
        freeze(tier, tmp_path, tmp_path / "frozen.yaml")
    for run in runs:
        folder = tmp_path / run.run_id
        folder.mkdir()
        (folder / "config.yaml").write_text(yaml.safe_dump(run.to_dict()))
        best = 6e-3 if run.model["name"] == "kda" else 1.5e-3
        accuracy, loss = (0.9 if run.optimiser.learning_rate == best else 0.5), 1.0
        if run.model["name"] == "deltanet":  # alike up to one answer, and apart in loss
            accuracy, loss = (1.0, 0.2) if run.optimiser.learning_rate == 1.5e-3 else (0.9999, 0.1)
        if run.model["name"] == "gla" and run.optimiser.learning_rate == 1.5e-3:  # it would have been the best
            (folder / "failure.json").write_text(json.dumps({"error": "NotFiniteRun: step 1: loss nan"}))
            continue
        result = {"run_id": run.run_id, "validation": {"accuracy": accuracy, "loss": loss}, "test": None}
        (folder / "result.json").write_text(json.dumps(result))
    path = freeze(tier, tmp_path, tmp_path / "frozen.yaml")
    held = load_frozen("quick", path)
    assert held.rates["overwrite"]["kda"] == 6e-3 and held.rates["recall"]["gpt2"] == 1.5e-3
    assert held.rates["recall"]["deltanet"] != 1.5e-3 and held.rates["recall"]["gla"] != 1.5e-3
    assert plan(["overwrite"], tier, held) and {
        p.config.optimiser.learning_rate for p in plan(["overwrite"], tier, held)
    } == {3e-3, 1.5e-3}  # KDA has no arm here


@pytest.fixture
def no_files(tmp_path, monkeypatch):
    """configs/claims with one experiment, its pilot and nothing frozen."""
    from mnemolab.analysis.claims import experiments, frozen

    here = experiments.folder()
    for name in ("tiers", "overwrite", "pilot"):
        (tmp_path / f"{name}.yaml").write_text((here / f"{name}.yaml").read_text())
    for module in (experiments, frozen):
        monkeypatch.setattr(module, "folder", lambda: tmp_path)
    return tmp_path


def test_a_plan_is_counted_before_its_pilot_has_run(no_files, tmp_path, capsys):
    from mnemolab.analysis.claims.command import dry_run

    assert dry_run("full", ["additive-blend", "scale-22580"], tmp_path / "out", None) == 0
    out, err = capsys.readouterr()
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    pilot = (2 * 9 + 2 * 4) * 3 * 2  # two tasks for all stages and two for four of them; rates, seeds
    assert rows["pilot"][:2] == [str(pilot)] * 2 and int(rows["all"][0]) == pilot + int(rows["overwrite"][0])
    assert int(rows["overwrite"][0]) % 12 == 0 and "nothing is frozen" in err and "one H200" in err
    assert not (tmp_path / "out").exists()


def test_the_replication_takes_the_rates_that_were_confirmed(no_files, tmp_path):
    from mnemolab.analysis.claims.command import freeze_tier

    with pytest.raises(BadRequest, match="nothing is frozen"):
        freeze_tier("replicate", tmp_path / "out", None, None, ())
    full = load_tier("full")
    write_frozen(full, "pilot", {"overwrite": {"kda": 0.01}})
    assert freeze_tier("replicate", tmp_path / "out", None, None, ()) == 0
    held = load_frozen("replicate")
    assert held.rates == {"overwrite": {"kda": 0.01}} and held.hashes != load_frozen("full").hashes
    (first, *_) = plan(["overwrite"], load_tier("replicate"), held)
    assert first.name == f"overwrite main/softmax, seed {first.config.seed}"


def test_freezing_again_keeps_rates_and_takes_a_changed_experiment_only_with_other_seeds(no_files, tmp_path):
    """Runs that were read teach what sizes to take next: the same seeds would confirm what they suggested."""
    full, path = load_tier("full"), no_files / "overwrite.yaml"
    held = load_frozen("full", write_frozen(full, "pilot", {"overwrite": {"kda": 0.01}}))
    before = {p.config.run_id for p in plan(["overwrite"], full, held)}
    write_frozen(full, "pilot", held.rates)  # nothing changed
    path.write_text(path.read_text().replace("task.versions: 8", "task.versions: 6"))
    with pytest.raises(BadRequest, match="set attempt: 1 in configs/claims/overwrite"):
        write_frozen(full, "pilot", held.rates)
    with pytest.raises(BadRequest, match="raise its `attempt`"):
        plan(["overwrite"], full, held)
    path.write_text("attempt: 1\n" + path.read_text())
    again = load_frozen("full", write_frozen(full, "pilot", held.rates))
    assert again.attempts == {"overwrite": 1} and again.rates == held.rates
    later = plan(["overwrite"], full, again)
    assert {p.seed for p in later} == {seed + 1000 for seed in full.seeds} and not before & {
        p.config.run_id for p in later
    }
    assert {p.config.seed for p in later if p.twin} == {seed + 1000 + full.shift for seed in full.seeds}
    quick = load_experiment("overwrite").planned(load_tier("quick"), {})
    assert {p.seed for p in quick} == set(load_tier("quick").seeds)
    path.write_text(path.read_text().replace("task.versions: 6", "task.versions: 5"))
    with pytest.raises(BadRequest, match="set attempt: 2"):
        write_frozen(full, "pilot", held.rates)
    path.write_text(path.read_text().replace("attempt: 1", "attempt: -1"))
    with pytest.raises(BadRequest, match="attempt=-1"):
        load_experiment("overwrite")


def test_what_was_frozen_is_not_forgotten_with_its_file(no_files):
    """Away for one freeze and back for the next, a changed experiment would have had its old seeds again."""
    full, path = load_tier("full"), no_files / "overwrite.yaml"
    write_frozen(full, "pilot", {})
    changed = path.read_text().replace("task.versions: 8", "task.versions: 6")
    path.rename(no_files / "away")
    assert set(load_frozen("full", write_frozen(full, "pilot", {})).hashes) == {"overwrite"}
    path.write_text(changed)
    with pytest.raises(BadRequest, match="set attempt: 1"):
        write_frozen(full, "pilot", {})
    path.write_text("attempt: 1\n" + changed)
    write_frozen(full, "pilot", {})
    path.unlink()
    assert load_frozen("full", write_frozen(full, "pilot", {})).attempts == {"overwrite": 1}


def test_a_replication_repeats_what_was_confirmed_and_nothing_else(no_files, tmp_path):
    from mnemolab.analysis.claims.command import freeze_tier

    path = no_files / "overwrite.yaml"
    write_frozen(load_tier("full"), "pilot", {})
    path.write_text("attempt: 1\n" + path.read_text().replace("task.versions: 8", "task.versions: 6"))
    with pytest.raises(BadRequest, match="experiment overwrite, tier full: it changed"):
        freeze_tier("replicate", tmp_path / "out", None, None, ())
    assert not (no_files / "frozen" / "replicate.yaml").exists()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("rates: overwrite", "rates: overwrote", "did you mean 'overwrite'"),
        ("decoupled: kda", "decoupled: kdaa", "rate_as.decoupled='kdaa'; did you mean 'kda'"),
    ],
)
def test_rates_that_there_are_not_are_refused(no_files, before, after, said):
    """Such arms would have trained at the base's rate without a word."""
    path = no_files / "overwrite.yaml"
    path.write_text(path.read_text().replace(before, after, 1))
    with pytest.raises(BadRequest, match=said):
        write_frozen(load_tier("full"), "pilot", {"overwrite": {"kda": 3e-3, "gpt2": 3e-3}})


@pytest.mark.parametrize("line", ["experiments: [a]", "experiments:", "rates: 3"])
def test_a_damaged_frozen_file_is_one_clear_line(no_files, line):
    path = write_frozen(load_tier("full"), "pilot", {})
    values = {**yaml.safe_load(path.read_text()), **yaml.safe_load(line)}
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(BadRequest, match="is not a mapping; restore the file"):
        load_frozen("full")


def test_a_rule_that_changes_after_freezing_is_named_and_not_frozen_anew(no_files):
    full, path = load_tier("full"), no_files / "overwrite.yaml"
    held = load_frozen("full", write_frozen(full, "pilot", {}))
    blend = CLAIMS["additive-blend"]
    assert held.rules["additive-blend"] == rule_hash(blend) and changed_rules([blend], held.rules) == []
    later = replace(blend, margin=0.01)
    assert changed_rules([later, CLAIMS["scale-22580"]], held.rules) == ["additive-blend"]
    # registered with a function: nothing of it is frozen
    assert changed_rules([replace(blend, judge=len)], held.rules) == []
    frozen = no_files / "frozen" / "full.yaml"
    values = yaml.safe_load(frozen.read_text())
    values["rules"]["additive-blend"] = "another"  # as if the margin had been changed since
    frozen.write_text(yaml.safe_dump(values))
    assert load_frozen("full", write_frozen(full, "pilot", {})).rules["additive-blend"] == "another"
    del values["rules"]  # written before rules were frozen, or by hand: what was not frozen then is not frozen now
    frozen.write_text(yaml.safe_dump(values))
    assert "additive-blend" not in load_frozen("full", write_frozen(full, "pilot", {})).rules
    # with other seeds nothing of it has been read
    changed = yaml.safe_load(path.read_text())
    changed["tiers"]["full"]["budget.steps"] = 77
    path.write_text(yaml.safe_dump(changed | {"attempt": 1}))
    assert load_frozen("full", write_frozen(full, "pilot", {})).rules["additive-blend"] == rule_hash(blend)


def test_a_tier_may_go_without_twins(small):
    tier = load_tier("quick")
    both = load_experiment(small()).planned(tier, {})
    alone = load_experiment(small(tiers={"quick": {"without": ["twins"]}, "full": {}})).planned(tier, {})
    assert any(p.twin for p in both) and [p for p in both if not p.twin] == list(alone)


def test_a_second_pilot_runs_only_tasks_without_rates(no_files):
    full = load_tier("full")
    write_frozen(full, "pilot", {"overwrite": {"kda": 0.01}})
    known = held_rates(full)
    left = {run.task["name"] for run in pilot_sweep(full, known).runs}
    assert left == {"associative_recall", "selective_retention", "topic_switch"}
    assert held_rates(load_tier("replicate")) == {}


def test_the_full_tier_fits_its_budget():
    """Under two hours of one H200, the pilot included; the steps are counted so that a size which doubles them is seen."""
    from mnemolab.analysis.claims.cost import gpu_seconds

    tier = load_tier("full")
    runs = [p.config for name in experiment_names() if name != "pilot" for p in load_experiment(name).planned(tier, {})]
    runs += pilot_sweep(tier).runs
    assert sum(run.budget.steps for run in runs) <= 8_000_000 and gpu_seconds(runs) < 7200


def test_a_tier_that_was_never_frozen_says_how(tmp_path):
    with pytest.raises(BadRequest, match="mnemolab claims --tier full --freeze"):
        load_frozen("full", tmp_path / "full.yaml")
    path = write_frozen(load_tier("quick"), "by hand", {}, tmp_path / "quick.yaml")
    assert load_frozen("quick", path).how == "by hand"
