"""Configs: one meaning, one hash, and an error with a remedy for anything else."""

from dataclasses import FrozenInstanceError

import pytest

from mnemolab.errors import BadRequest
from mnemolab.tasks import TASKS
from mnemolab.trainers import RunConfig
from mnemolab.trainers.config import flat_row, read_yaml


def test_plain_values_come_back_as_they_went(tiny):
    config = tiny(**{"optimiser.learning_rate": 1e-3, "model.init_std": 10.0})
    again = RunConfig.from_dict(config.to_dict())
    assert again == config
    assert again.run_id == config.run_id
    assert again.model["init_std"] == 10.0


@pytest.mark.parametrize(
    "model",
    [
        {"name": "linear_attention", "decay": "scalar", "half_life": 21.0},
        {"name": "deltanet", "mlp": "moe", "experts": 4, "top_k": 1},
        {"name": "deltanet", "second": "gpt2", "ratio": "1:1"},
    ],
    ids=lambda model: ",".join(model),
)
def test_an_option_that_others_stand_on_is_kept(values, model):
    spelled = values()
    spelled["model"] = model
    assert RunConfig.from_dict(spelled).model.items() >= model.items()


def test_defaults_written_out_do_not_change_the_hash(tiny, values):
    spelled = values(**{"optimiser.clip": 1.0, "model.recipe": "matched", "seed": 0, "task.ask": "latest"})
    spelled["model"]["write"] = "delta"  # what deltanet does anyway
    config = RunConfig.from_dict(spelled)
    assert config.run_id == tiny().run_id
    assert "write" not in config.model


@pytest.mark.parametrize(
    ("field", "spellings"),
    [
        ("model.init_std", [20, 20.0, "20", "2e1"]),
        ("model.scale", [1, 1.0]),
        ("model.init_std", [1, 1.0, "1"]),
        ("optimiser.learning_rate", [1, 1.0, "1e0"]),
        ("budget.steps", [6, "6"]),
        ("task.versions", [3, "3"]),
    ],
)
def test_one_number_has_one_hash_however_it_is_written(tiny, field, spellings):
    assert len({tiny(**{field: value}).run_id for value in spellings}) == 1


def test_a_size_left_to_be_solved_for_stays_so(tiny):
    config = tiny(**{"model.match": "state", "model.key_dim": 0})
    assert RunConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("field", ["optimiser.learning_rate", "optimiser.clip", "optimiser.warmup", "model.init_std"])
def test_not_a_number_is_refused_though_no_range_excludes_it(tiny, field):
    with pytest.raises(BadRequest, match=rf"{field}=nan: use a finite number"):
        tiny(**{field: float("nan")})


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"task.versions": 3}, {"model.width": 16}, {"model.write": "additive"}, {"optimiser.clip": 2.0},
     {"budget.steps": 7}, {"precision": "bf16"}, {"device": "auto"}, {"scoring": "both"}],
)  # fmt: skip
def test_every_field_has_a_say_in_the_hash(tiny, change):
    assert tiny(**change).run_id != tiny().run_id


def test_the_version_of_the_task_has_a_say_too(tiny, monkeypatch):
    before = tiny().run_id
    monkeypatch.setattr(TASKS["key_overwrite"], "version", 10_000)
    assert tiny().run_id != before


def test_device_auto_stays_unresolved(tiny):
    assert tiny(device="auto").to_dict()["device"] == "auto"


def test_configs_are_frozen(tiny):
    with pytest.raises(FrozenInstanceError):
        tiny().seed = 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task.name": "key_overwrit"}, ["key_overwrit", "did you mean 'key_overwrite'"]),
        ({"model.name": "kdaa"}, ["kdaa", "did you mean 'kda'"]),
        ({"task.verions": 3}, ["verions", "did you mean 'versions'"]),
        ({"model.widht": 3}, ["widht", "did you mean 'width'"]),
        ({"optimiser.learning_rat": 1.0}, ["learning_rat", "did you mean 'learning_rate'"]),
        ({"budget.step": 1}, ["step", "did you mean 'steps'"]),
        ({"optimizer": {}}, ["optimizer", "did you mean 'optimiser'"]),
        ({"budget.steps": 0}, ["steps=0", "least is 1"]),
        ({"budget.steps": 10**12}, ["steps=1000000000000", "most is"]),
        ({"optimiser.weight_decay": float("inf")}, ["optimiser.weight_decay=inf", "finite"]),
        ({"optimiser.schedule": "cosin"}, ["cosin", "did you mean 'cosine'"]),
        ({"optimiser.learning_rate": "fast"}, ["learning_rate", "fast"]),
        ({"task.length": 8}, ["length=8", "raise length"]),
        ({"seed": -1}, ["seed=-1"]),
        ({"seed": True}, ["seed=True"]),
        ({"precision": "fp8"}, ["fp8", "bf16"]),
        ({"device": "tpu"}, ["tpu", "cuda"]),
        ({"scoring": "forkd"}, ["forkd", "did you mean 'forked'"]),
        ({"model": {"width": 8}}, ["model.name is missing"]),
        ({"task": "key_overwrite"}, ["task", "mapping"]),
    ],
)
def test_errors_name_field_value_and_remedy(values, change, words):
    with pytest.raises(BadRequest) as error:
        RunConfig.from_dict(values(**change))
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_warm_up_and_descent_may_not_overlap(values):
    with pytest.raises(BadRequest, match="overlap"):
        RunConfig.from_dict(values(**{"optimiser.schedule": "wsd", "optimiser.warmup": 0.7, "optimiser.decay": 0.5}))


def test_weights_depend_on_the_seed_alone(tiny):
    import torch

    torch.manual_seed(1)
    first = tiny().make_model().head_weight
    drawn = torch.rand(1)
    torch.manual_seed(1)
    torch.rand(0)
    assert torch.equal(tiny().make_model().head_weight, first)
    assert not torch.equal(tiny(seed=1).make_model().head_weight, first)
    torch.manual_seed(1)
    tiny().make_model()
    assert torch.equal(torch.rand(1), drawn)  # the caller's random state is his own


def test_flat_row_joins_names_with_dots():
    assert flat_row({"a": {"b": 1, "c": {"d": [1, 2]}}, "e": None}) == {"a.b": 1, "a.c.d": "[1, 2]", "e": None}


def test_a_key_given_twice_is_an_error(tmp_path):
    """YAML would take the last."""
    path = tmp_path / "twice.yaml"
    for text, key in (("grid: {seed: [0, 1], seed: [3]}", "seed"), ("seed: 1\nbudget: {steps: 3}\nseed: 2", "seed")):
        path.write_text(text)
        with pytest.raises(BadRequest, match=f"{key} is given twice"):
            read_yaml(path)
    path.write_text("a: &a {x: 1}\nb: {<<: *a, y: 2}\n")
    assert read_yaml(path)["b"] == {"x": 1, "y": 2}
    path.write_text("[" * 20_000)
    with pytest.raises(BadRequest, match="not YAML"):
        read_yaml(path)
