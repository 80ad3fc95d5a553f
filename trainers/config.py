"""What one run is: a frozen config, its canonical form, and the hash that names its folder."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnemolab.errors import BadRequest, hint
from mnemolab.fields import build, check, setting

if TYPE_CHECKING:
    from mnemolab.models.backbone import Backbone
    from mnemolab.tasks.base import Task

__all__ = ["SECTIONS", "Budget", "Optimiser", "RunConfig", "flat_row", "read_yaml"]


@dataclass(frozen=True)
class Optimiser:
    """AdamW, gradient clipping and the shape of the learning rate over the run."""

    learning_rate: float = setting(3e-3, "peak learning rate", low=0.0, high=10.0)
    weight_decay: float = setting(0.1, "AdamW's decoupled weight decay, on matrices only", low=0.0)
    beta1: float = setting(0.9, "decay of AdamW's first moment", low=0.0, high=0.9999)
    beta2: float = setting(0.95, "decay of AdamW's second moment", low=0.0, high=0.99999)
    clip: float = setting(1.0, "largest gradient norm; 0 leaves gradients alone", low=0.0)
    schedule: str = setting(
        "cosine", "after warm-up: cosine to `floor`, wsd (stable, then linear to `floor`), constant",
        choices=("cosine", "wsd", "constant"),
    )  # fmt: skip
    warmup: float = setting(0.05, "share of the steps with a linearly rising rate", low=0.0, high=1.0)
    decay: float = setting(0.2, "share of the steps in wsd's final descent", low=0.0, high=1.0)
    floor: float = setting(0.0, "rate at the end, as a share of the peak", low=0.0, high=1.0)

    def __post_init__(self) -> None:
        check(self)
        if self.schedule == "wsd" and self.warmup + self.decay > 1:
            raise BadRequest(f"warmup={self.warmup} and decay={self.decay} overlap; their sum must be at most 1")


@dataclass(frozen=True)
class Budget:
    """How long a run trains, how often it is looked at, and when it may stop early."""

    steps: int = setting(2000, "optimiser steps", low=1, high=10_000_000)
    batch_size: int = setting(64, "examples a step, over all devices", low=1)
    evaluate_every: int = setting(100, "steps between looks at the validation stream", low=1)
    validation_examples: int = setting(256, "examples of the validation stream at each look", low=1)
    test_examples: int = setting(1024, "examples of the test stream, read once at the end", low=1)
    solved_at: float = setting(0.99, "validation accuracy that counts as solved", low=0.0, high=1.0)
    stop_solved: bool = setting(False, "stop at the first look that finds the task solved")
    stop_hopeless: int = setting(0, "stop when no look up to this step beat chance by `hope`; 0 never stops", low=0)
    hope: float = setting(0.05, "accuracy above chance that keeps a run going past `stop_hopeless`", low=0.0, high=1.0)

    def __post_init__(self) -> None:
        check(self)


SECTIONS = ("task", "model", "optimiser", "budget")
CHOICES = {
    "precision": ("fp32", "bf16"),
    "scoring": ("forked", "sequential", "both"),
}


@dataclass(frozen=True)
class RunConfig:
    """One run. `task` and `model` are plain dicts with a `name`; every field of theirs is filled in on construction.

    Raises BadRequest for an unknown name or field (with the nearest name), a value out of range, or sizes that cannot fit.
    `device: auto` stays unresolved, so that one config has one `run_id` on every machine.
    """

    task: Mapping[str, Any]
    model: Mapping[str, Any]
    optimiser: Optimiser = Optimiser()
    budget: Budget = Budget()
    seed: int = 0
    precision: str = "fp32"
    device: str = "auto"
    scoring: str = "forked"

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**31:
            raise BadRequest(f"seed={self.seed!r}: use an integer from 0 to 2147483647")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise BadRequest(f"{name}={getattr(self, name)!r}; {hint(str(getattr(self, name)), choices)}")
        if not isinstance(self.device, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise BadRequest(f"device={self.device!r}; known: auto, cpu, cuda, cuda:N")
        for name in ("optimiser", "budget"):
            _plain(asdict(getattr(self, name)), name)
        task = self.make_task()
        object.__setattr__(self, "task", {"name": self.task["name"], **_plain(asdict(task), "task")})
        object.__setattr__(self, "model", dict(_fill_model(_text(self.model, "model"), task)))
        if not _has_fork(task) and self.scoring == "forked":
            # reading and asking interleave, so there is no shared context to fork from
            object.__setattr__(self, "scoring", "sequential")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunConfig":
        """The config that nested plain values (YAML) describe. Raises BadRequest that names field, value and remedy."""
        if not isinstance(values, Mapping):
            raise BadRequest(f"a run config is a mapping with task and model, got {type(values).__name__}")
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                raise BadRequest(f"config: unknown field {name!r}; {hint(str(name), known)}")
        made: dict[str, Any] = dict(values)
        for name in SECTIONS:
            section = made.get(name, {})
            if not isinstance(section, Mapping):
                raise BadRequest(f"config: {name}={section!r} must be a mapping, such as {name}: {{name: ...}}")
            if name in ("task", "model") and "name" not in section:
                raise BadRequest(f"config: {name}.name is missing; see `mnemolab list {name}s`")
        made["optimiser"] = _build(Optimiser, _text(made.get("optimiser", {}), "optimiser"), "optimiser")
        made["budget"] = _build(Budget, _text(made.get("budget", {}), "budget"), "budget")
        return cls(**made)

    @classmethod
    def from_yaml(cls, path: str | Path) -> "RunConfig":
        return cls.from_dict(read_yaml(path))

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, every field present; `from_dict` gives back an equal config."""
        return _plain(asdict(self))

    @cached_property
    def run_id(self) -> str:
        """16 hex digits over the canonical config and the task's version."""
        from mnemolab.tasks import TASKS

        canonical = {**self.to_dict(), "task_version": TASKS[self.task["name"]].version}
        return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()[:16]

    def __hash__(self) -> int:
        return int(self.run_id, 16)

    @property
    def label(self) -> str:
        """Short text for progress lines: stage, task and seed."""
        return f"{self.model['name']} on {self.task['name']}, seed {self.seed}"

    def make_task(self) -> "Task":
        from mnemolab.tasks import TASKS

        fields = {name: value for name, value in self.task.items() if name != "name"}
        return _build(TASKS[self.task["name"]], _text(fields, "task"), "task")

    def make_model(self) -> "Backbone":
        """A model with fresh weights that depend on `seed` alone; the caller's random state is left as it was."""
        import torch

        from mnemolab.models import make_model

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return make_model(**_model_arguments(self.model, self.make_task()))


def read_yaml(path: str | Path) -> Any:
    """The YAML in `path`. Raises BadRequest when it is missing or not YAML."""
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML takes the last of two equal keys, and what the first said would be lost without a word."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
            for key in keys:
                if keys.count(key) > 1:
                    raise BadRequest(f"{path}: {key} is given twice in one mapping{node.start_mark}; keep one")
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), Loader)
    except OSError as error:
        raise BadRequest(f"{path}: cannot read it ({error.strerror})") from error
    except RecursionError as error:
        raise BadRequest(f"{path}: not YAML that can be read (it holds itself, or is nested too deeply)") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path}: not YAML ({' '.join(str(error).split())})") from error


def _plain(value: Any, where: str = "config") -> Any:
    """`value` as YAML and JSON can hold it. Raises BadRequest naming `where` for other types, NaN and infinity."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, where) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRequest(f"{where}={value}: use a finite number")  # it would pass every range check
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise BadRequest(f"config value {value!r} is a {type(value).__name__}; use numbers, text, lists and mappings")


def _text(section: Mapping[str, Any], where: str) -> str:
    return json.dumps(_plain(section, where), sort_keys=True)


# A sweep has thousands of configs and few different sections; checking one costs tens of milliseconds. What is built is
# frozen, so it can be shared.
@lru_cache(maxsize=1024)
def _build(cls: Any, text: str, where: str) -> Any:
    return build(cls, json.loads(text), where)


@lru_cache(maxsize=1024)
def _has_fork(task: "Task") -> bool:
    """Whether all queries of an example share a context that comes before the first of them."""
    import torch

    return bool(task.sample(torch.arange(1), split="validation").queries["fork"].max() >= 0)


def _model_arguments(section: Mapping[str, Any], task: "Task") -> dict[str, Any]:
    if "vocab_size" in section:
        raise BadRequest("model.vocab_size: leave it out; the task says how many tokens there are")
    length: int = task.length  # type: ignore[attr-defined]
    return {"max_length": max(2048, length), **section, "vocab_size": task.vocabulary.size}


# always written out, so that a run's config says its sizes; the rest is the stage's own
_MODEL_FIELDS = ("recipe", "width", "depth", "heads", "head_dim", "positions")


@lru_cache(maxsize=1024)
def _fill_model(text: str, task: "Task") -> dict[str, Any]:
    """The section with its sizes filled in, without options that say what the stage does anyway."""
    from mnemolab.models import model_config

    section = json.loads(text)
    full = model_config(**_model_arguments(section, task))
    filled = {"name": section["name"], **{field: getattr(full, field) for field in _MODEL_FIELDS}}
    for option in sorted(set(section) - set(filled)):
        without = {name: value for name, value in section.items() if name != option}
        try:
            idle = model_config(**_model_arguments(without, task)) == full
        except BadRequest:  # another option makes sense with this one only
            idle = False
        if not idle:
            filled[option] = _as_held(full, option, section[option])
    return _plain(filled, "model")


def _as_held(full: Any, option: str, given: Any) -> Any:
    """The option with the type that the model's config gave it: 10, 10.0 and "10" are one half-life, and one run."""
    held = next((getattr(part, option) for part in (full.experts, full, *full.mixers) if hasattr(part, option)), given)
    if given is None or given == 0:  # may ask for a size to be solved: `held` is then the answer, not the request
        return type(held)(0) if isinstance(held, (int, float)) and given == 0 else given
    return held


def flat_row(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}; lists become text, so that a column has one type."""
    row: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            row |= flat_row(value, f"{prefix}{name}.")
        else:
            row[f"{prefix}{name}"] = str(value) if isinstance(value, (list, tuple)) else value
    return row
