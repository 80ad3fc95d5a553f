"""Sweeps as a pure function: what a YAML file means."""

import json
from types import SimpleNamespace

import pytest
import torch
import yaml

from mnemolab.errors import BadRequest
from mnemolab.trainers import RunConfig, Sweep
from mnemolab.trainers.steps import EagerSteps, make_optimiser


def sweep(values, **parts):
    return Sweep.from_dict({"name": "s", "base": values(), **parts})


def test_a_grid_is_every_combination(values):
    found = sweep(values, grid={"model.name": ["kda", "deltanet"], "task.versions": [3, 4], "seed": [0, 1, 2]})
    seen = [(run.model["name"], run.task["versions"], run.seed) for run in found.runs]
    assert len(seen) == len(set(seen)) == 12
    assert seen[:3] == [("kda", 3, 0), ("kda", 3, 1), ("kda", 3, 2)]
    assert found.expected == 12


def test_lists_cross_grids_and_sections_replace(values):
    recall = {"name": "associative_recall"}
    found = sweep(
        values,
        list=[{"model.width": 16}, {"model.depth": 2}],
        grid=[{"task": [recall]}, {"task.versions": [3], "seed": [1]}],
    )
    seen = [(run.task["name"], run.model["width"], run.model["depth"], run.seed) for run in found.runs]
    assert seen == [
        ("associative_recall", 16, 1, 0), ("key_overwrite", 16, 1, 1),
        ("associative_recall", 8, 2, 0), ("key_overwrite", 8, 2, 1),
    ]  # fmt: skip


def test_the_same_run_is_listed_once(values):
    assert len(sweep(values, list=[{"seed": 0}, {}, {"optimiser.clip": 1.0}]).runs) == 1


def test_random_draws_repeat_and_stay_in_range(values):
    random = {
        "count": 20,
        "seed": 3,
        "fields": {
            "optimiser.learning_rate": {"log_uniform": [1e-4, 1e-1]},
            "optimiser.beta1": {"uniform": [0.8, 0.9]},
            "budget.steps": {"integer": [5, 9]},
            "model.name": {"choice": ["kda", "gpt2"]},
        },
    }
    first, second = sweep(values, random=random), sweep(values, random=random)
    assert [run.run_id for run in first.runs] == [run.run_id for run in second.runs]
    rates = [run.optimiser.learning_rate for run in first.runs]
    assert len(set(rates)) == 20
    assert all(1e-4 <= rate <= 1e-1 for rate in rates)
    assert sum(rate < 3e-3 for rate in rates) in range(4, 17)  # spread over the logarithm
    assert {run.budget.steps for run in first.runs} <= set(range(5, 10))
    assert {run.model["name"] for run in first.runs} == {"kda", "gpt2"}


def test_order_of_fields_in_the_file_does_not_matter(values):
    task = {"name": "key_overwrite", "versions": 2}
    one = sweep(values, list=[{"task.length": 60, "task": task}]).runs[0]
    two = sweep(values, list=[{"task": task, "task.length": 60}]).runs[0]
    assert one == two
    assert (one.task["length"], one.task["versions"]) == (60, 2)


def scores(runs, accuracy, loss=lambda run: 0.0):
    return {run.run_id: {"validation": {"accuracy": accuracy(run), "loss": loss(run)}} for run in runs}


def test_the_rate_is_chosen_per_cell_over_seeds(values):
    found = sweep(
        values, grid={"model.name": ["kda", "gpt2"], "seed": [0, 1]}, choose={"optimiser.learning_rate": [0.1, 0.2]}
    )
    assert (len(found.runs), found.expected) == (8, 12)

    def accuracy(run):
        """gpt2 does better with .1, kda with .2; one seed of the loser is the best run of all."""
        better = (run.model["name"] == "gpt2") == (run.optimiser.learning_rate == 0.1)
        return 0.8 if better else (1.0 if run.seed == 0 else 0.1)

    chosen = found.chosen(scores(found.runs, accuracy))
    assert {(run.model["name"], run.optimiser.learning_rate, run.seed) for run in chosen} == {
        ("gpt2", 0.1, 0), ("gpt2", 0.1, 1), ("kda", 0.2, 0), ("kda", 0.2, 1)
    }  # fmt: skip


def test_equal_accuracies_are_told_apart_by_loss(values):
    found = sweep(values, choose={"optimiser.learning_rate": [0.1, 0.2]})
    chosen = found.chosen(scores(found.runs, lambda run: 1.0, lambda run: 1 - run.optimiser.learning_rate))
    assert [run.optimiser.learning_rate for run in chosen] == [0.2]


def test_a_failed_candidate_is_out_and_a_failed_cell_has_none(values):
    found = sweep(values, grid={"seed": [0, 1]}, choose={"optimiser.learning_rate": [0.1, 0.2]})
    results = scores(found.runs, lambda run: run.optimiser.learning_rate)
    best = next(run for run in found.runs if run.optimiser.learning_rate == 0.2)
    results.pop(best.run_id)
    assert {run.optimiser.learning_rate for run in found.chosen(results)} == {0.1}
    assert found.chosen({}) == ()


def test_pilot_seeds_choose_for_all_seeds(values):
    found = sweep(values, grid={"seed": [0, 1, 2]}, choose={"optimiser.learning_rate": [0.1, 0.2]}, pilot_seeds=[0])
    assert {run.seed for run in found.pilots} == {0}
    assert found.expected == 2 + 3
    chosen = found.chosen(scores(found.pilots, lambda run: run.optimiser.learning_rate))
    assert [(run.seed, run.optimiser.learning_rate) for run in chosen] == [(0, 0.2), (1, 0.2), (2, 0.2)]


def test_an_estimate_counts_the_chosen_candidate_of_a_cell_once(values, tmp_path, monkeypatch):
    from mnemolab.trainers import estimate

    found = sweep(values, grid={"seed": [0, 1, 2]}, choose={"optimiser.learning_rate": [0.1, 0.2]}, pilot_seeds=[0])
    monkeypatch.setattr(estimate, "_seconds_per_step", lambda run: 1.0)
    before = estimate.estimate(found, tmp_path, workers=1)
    assert (before["left"], before["seconds"]) == (2 + 2, 4 * found.runs[0].budget.steps)
    for run in found.pilots:
        (tmp_path / run.run_id).mkdir()
        (tmp_path / run.run_id / "config.yaml").write_text(yaml.safe_dump(run.to_dict()))
        result = {"validation": {"accuracy": run.optimiser.learning_rate, "loss": 0.0}}
        result |= {"steps": 1, "train_seconds": 1.0, "resumed": 0}
        (tmp_path / run.run_id / "result.json").write_text(json.dumps(result))
    after = estimate.estimate(found, tmp_path, workers=1)
    assert [row["label"].endswith("learning_rate 0.2") for row in after["runs"] if not row["finished"]] == [True, True]
    assert after["left"] == 2


def test_an_estimated_step_costs_what_a_step_of_a_run_does(values, monkeypatch):
    """On a clock that knows two costs: a call that makes examples, and a step."""
    from mnemolab.trainers import estimate

    clock, run = [0.0], RunConfig.from_dict(values())
    task, model, cpu = run.make_task(), run.make_model(), torch.device("cpu")

    def costs(owner, name, seconds):
        own = getattr(owner, name)

        def costing(*args, **kwargs):
            clock[0] += seconds
            return own(*args, **kwargs)

        monkeypatch.setattr(owner, name, costing)

    costs(type(task), "sample", 5.0)
    costs(EagerSteps, "_clip", 1.0)
    monkeypatch.setattr(estimate, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    found = estimate._seconds_per_step(run)
    steps = EagerSteps(model, make_optimiser(model, run, cpu), task, run, cpu)
    steps.rates, count, clock[0] = [1e-3] * 2 * steps.feed.block, 2 * steps.feed.block, 0.0
    steps.advance(count)
    assert found == pytest.approx(clock[0] / count)


def test_labels_say_what_differs(values):
    found = sweep(values, grid={"optimiser.learning_rate": [0.1, 0.2]})
    assert set(found.labels().values()) == {
        "deltanet on key_overwrite, seed 0, learning_rate 0.1", "deltanet on key_overwrite, seed 0, learning_rate 0.2"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"gird": {}}, "did you mean 'grid'"),
        ({"grid": {"seed": []}}, "at least one value"),
        ({"grid": {"seed": 3}}, "must be a list"),
        ({"grid": {"seed": "012"}}, "must be a list"),
        ({"grid": {"model.widht": [8]}}, "did you mean 'width'"),
        ({"grid": {"modle.width": [8]}}, "did you mean 'model'"),
        ({"grid": {"seed.x": [8]}}, "seed is not a section"),
        ({"list": {"seed": 1}}, "must be a list of mappings"),
        ({"list": ["seed"]}, "must be a mapping"),
        ({"random": {"cuont": 1}}, "did you mean 'count'"),
        ({"random": {"fields": {"seed": {"intger": [0, 1]}}}}, "did you mean 'integer'"),
        ({"random": {"fields": {"seed": {"integer": 3}}}}, "random.fields.seed"),
        ({"random": {"fields": {"seed": {}}}}, "random.fields.seed"),
        ({"grid": 5}, "grid=5 must be a mapping"),
        ({"grid": {3: [1]}}, "3 is not the name of a field"),
        ({"random": {"count": "many"}}, "random.count='many' must be a whole number"),
        ({"random": {"count": 0}}, "random.count=0 must be a whole number, at least 1"),
        ({"random": {"seed": [1]}}, "random.seed=.* must be a whole number"),
        ({"random": {"fields": {"optimiser.clip": {"log_uniform": [0, 1]}}}}, "both above 0"),
        ({"random": {"fields": {"optimiser.clip": {"log_uniform": [-1, 1]}}}}, "both above 0"),
        ({"random": {"fields": {"optimiser.clip": {"log_uniform": ["1e-3", 1]}}}}, "use two numbers"),
        ({"random": {"fields": {"seed": {"integer": [3, 1]}}}}, "the smaller one first"),
        ({"choose": {"seed": [0, 1]}}, "the best seed is luck"),
        (
            {"choose": {"optimiser.learning_rate": [0.1]}, "grid": {"optimiser.learning_rate": [0.2]}},
            "optimiser.learning_rate stands under grid and again under choose",
        ),
        (
            {"choose": {"optimiser": [{"learning_rate": 0.1}]}, "grid": {"optimiser.weight_decay": [0.1, 0.2]}},
            "optimiser.weight_decay stands under grid and again as optimiser under choose",
        ),
        ({"list": [{"seed": 5}], "grid": {"seed": [0, 1]}}, "seed stands under list and again under grid"),
        (
            {"grid": {"optimiser.clip": [1.0]}, "random": {"fields": {"optimiser.clip": {"uniform": [0, 1]}}}},
            "optimiser.clip stands under grid and again under random",
        ),
        ({"choose": {"optimiser.learning_rate": [0.1]}, "pilot_seeds": 0}, "list of at least one seed"),
        ({"choose": {"optimiser.learning_rate": [0.1]}, "pilot_seeds": []}, "list of at least one seed"),
        ({"choose": {"optimiser.learning_rate": [0.1]}, "pilot_seeds": [[0]]}, "list of at least one seed"),
        ({"pilot_seeds": [0]}, "without choose"),
        ({"choose": {"optimiser.learning_rate": [0.1]}, "pilot_seeds": [7]}, "must be among"),
        ({"base": []}, "must be a mapping"),
        ({"base": {"model": {"name": "kda"}}}, "task.name is missing"),
    ],
)
def test_errors_name_the_place(values, parts, words):
    with pytest.raises(BadRequest, match=words) as error:
        Sweep.from_dict({"name": "s", "base": {**values(), "seed": 0}, **parts})
    assert "\n" not in str(error.value)


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(BadRequest, match="cannot read it"):
        Sweep.from_yaml(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(BadRequest, match=r"list\.yaml: a sweep is a mapping"):
        Sweep.from_yaml(tmp_path / "list.yaml")


def test_a_sweep_is_named_after_its_file(values, tmp_path):
    (tmp_path / "overwriting.yaml").write_text(yaml.safe_dump({"base": values()}))
    assert Sweep.from_yaml(tmp_path / "overwriting.yaml").name == "overwriting"


def shipped():
    from importlib.resources import files

    return sorted(path.name for path in (files("mnemolab.configs") / "sweeps").iterdir() if path.name.endswith(".yaml"))


@pytest.mark.parametrize("name", shipped())
def test_shipped_sweeps_can_run(name):
    from importlib.resources import files

    found = Sweep.from_yaml(str(files("mnemolab.configs") / "sweeps" / name))
    assert len(found.runs) >= 2
    assert found.name == name.removesuffix(".yaml")


def test_the_sweep_of_the_documentation_is_one():
    """The YAML blocks of docs/training.md are a run and a sweep."""
    import re
    from pathlib import Path

    from mnemolab.trainers import RunConfig

    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    run, sweep_values = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
    assert RunConfig.from_dict(run).model["name"] == "kda"
    assert len(Sweep.from_dict(sweep_values).runs) == 2 * 2 * 3 * 2 * 4 * 3
