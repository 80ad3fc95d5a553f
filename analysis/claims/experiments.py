"""Experiments of the claims: YAML in configs/claims, expanded to runs, with the learning rates and hashes that were frozen.

    name: overwrite
    asks: what the rule does to an old value
    rates: overwrite                    # whose pilot chose the learning rates
    rate_as: {delta: kda}               # arms that take the rate of another stage than their own, so that a contrast is of one rate
    base: {task: {...}, model: {...}, budget: {...}}
    cells: {main: {}}                   # variants of the task: dotted overrides
    arms: {delta: {model.name: deltanet}, additive: {model.name: linear_attention}}
    only: {main: [delta]}               # arms of a cell; all when left out
    attempt: 1                          # sizes after the first, with seeds of their own (0 when left out)
    twins: [delta]                      # arms (or CELL/ARM) that are trained once more with other seeds: A/A pairs
    tiers: {quick: {without: [additive], budget.steps: 300}, full: {ARM/model.head_dim: 16}}     # steps and sizes

A tier's dotted overrides hold for every run, or for one cell or arm as `CELL/task.pairs`; `without` leaves out arms (or
CELL/ARM) that no claim's contrast needs, or `twins`.

Seeds are those of configs/claims/tiers.yaml: disjoint between tiers, twins and pilots. `replicate` has the sizes of `full`.
Runs that have been read teach what sizes to take next, so a changed experiment gets other seeds: attempt n adds n times ATTEMPT
to those of the confirmatory tiers.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnemolab.errors import BadRequest, hint, unknown

if TYPE_CHECKING:
    from mnemolab.trainers.config import RunConfig

__all__ = [
    "ATTEMPT",
    "TIERS",
    "Experiment",
    "Planned",
    "Tier",
    "experiment_names",
    "folder",
    "load_experiment",
    "load_tier",
]

TIERS = ("quick", "full", "replicate")
# tiers.yaml and what else is no experiment
_OTHERS = ("tiers",)
_KEYS = ("name", "asks", "rates", "rate_as", "attempt", "base", "cells", "arms", "only", "twins", "tiers")
ATTEMPT = 1000
# in a tier's `without`: no arm is trained twice
_TWINS = "twins"
Overrides = Mapping[str, Any]


@dataclass(frozen=True)
class Tier:
    """`seeds` pair the arms; the twin of seed s is seed s + `shift`; `pilot` seeds choose learning rates only."""

    name: str
    seeds: tuple[int, ...]
    shift: int
    pilot: tuple[int, ...]


@dataclass(frozen=True)
class Planned:
    """One run of an experiment. `seed` is the pair's; a twin's config has another."""

    experiment: str
    cell: str
    arm: str
    seed: int
    twin: bool
    config: Any = field(repr=False)

    @property
    def name(self) -> str:
        """Short text for progress lines: experiment, cell, arm and the seed of its weights and data."""
        return f"{self.experiment} {self.cell}/{self.arm}, seed {self.config.seed}"


@dataclass(frozen=True)
class Experiment:
    """A file of configs/claims, checked."""

    name: str
    asks: str
    rates: str
    rate_as: Mapping[str, str]
    attempt: int
    base: Mapping[str, Any]
    cells: Mapping[str, Overrides]
    arms: Mapping[str, Overrides]
    only: Mapping[str, Sequence[str]]
    twins: Sequence[str]
    tiers: Mapping[str, Overrides]

    def planned(self, tier: Tier, rates: Mapping[str, Mapping[str, float]]) -> tuple[Planned, ...]:
        """Every run of the tier, in pairs' order. `rates`: pilot -> stage -> learning rate; a stage without one takes the
        base's. Raises BadRequest for a config that cannot run."""
        found = []
        doubled = set() if _TWINS in self._sizes(tier.name).get("without", ()) else set(self.twins)
        later = ATTEMPT * self.attempt * (tier.name != TIERS[0])
        for cell, arm, overrides in self._points(tier.name):
            stage = str(overrides.get("model.name", self.base.get("model", {}).get("name")))
            rate = rates.get(self.rates, {}).get(self.rate_as.get(arm, stage))
            more = {} if rate is None else {"optimiser.learning_rate": rate}
            shifts = (0, tier.shift) if {arm, f"{cell}/{arm}"} & doubled else (0,)
            for shift in shifts:
                seeds = [seed + later + shift for seed in tier.seeds]
                for config in _expanded(self.name, self.base, {**overrides, **more}, tuple(seeds)):
                    found.append(Planned(self.name, cell, arm, config.seed - shift, shift > 0, config))
        return tuple(found)

    def hash(self, tier: Tier, rates: Mapping[str, Mapping[str, float]]) -> str:
        """16 hex digits over every run of the tier: configs, seeds, rates, versions of the tasks."""
        rows = [[p.cell, p.arm, p.seed, p.twin, p.config.run_id] for p in self.planned(tier, rates)]
        return hashlib.sha256(json.dumps([self.name, *rows]).encode()).hexdigest()[:16]

    def _sizes(self, tier: str) -> Overrides:
        return self.tiers["full" if tier == "replicate" else tier]

    def _points(self, tier: str):
        """(cell, arm, dotted overrides): the cell's replace the tier's, the arm's the cell's, and those the tier gives to the
        cell or the arm all of them. A cell or override that replaces the whole task drops the tier's fields of the task."""
        sizes = dict(self._sizes(tier))
        left_out = set(sizes.pop("without", ()))
        plain = {k: v for k, v in sizes.items() if "/" not in k}
        for cell, in_cell in self.cells.items():
            for arm in self.only.get(cell, tuple(self.arms)):
                if left_out & {arm, cell, f"{cell}/{arm}"}:
                    continue
                own: dict[str, Any] = {}
                for key, value in sizes.items():
                    where, slash, name = key.partition("/")
                    if slash and where in (cell, arm):
                        own[name] = value
                kept = plain
                if "task" in in_cell or "task" in own:
                    kept = {k: v for k, v in plain.items() if not k.startswith("task.")}
                yield cell, arm, {**kept, **in_cell, **self.arms[arm], **own}


def folder() -> Path:
    """configs/claims, in the checkout or in the installed package."""
    return Path(str(files("mnemolab.configs") / "claims"))


def experiment_names() -> list[str]:
    """Every experiment there is a file for."""
    return sorted(p.stem for p in folder().glob("*.yaml") if p.stem not in _OTHERS)


def load_experiment(name: str) -> Experiment:
    """The experiment of configs/claims/NAME.yaml, or of the file NAME when it ends in .yaml.

    Raises BadRequest, in one line, for an unknown name, key, arm, cell or tier.
    """
    path = Path(name) if name.endswith(".yaml") else folder() / f"{name}.yaml"
    if not name.endswith(".yaml") and name not in experiment_names():
        raise unknown("experiment", name, experiment_names())
    from mnemolab.trainers.config import read_yaml

    return _checked(path, read_yaml(path))


def load_tier(name: str) -> Tier:
    """Seeds of a tier. Raises BadRequest for an unknown one."""
    if name not in TIERS:
        raise unknown("tier", name, TIERS)
    from mnemolab.trainers.config import read_yaml

    values = read_yaml(folder() / "tiers.yaml")[name]
    first, count = values["first"], values["count"]
    return Tier(name, tuple(range(first, first + count)), values["shift"], tuple(values["pilot"]))


def _checked(path: Path, values: Any) -> Experiment:
    if not isinstance(values, Mapping):
        raise BadRequest(f"{path}: an experiment is a mapping with {', '.join(_KEYS)}")
    for key in values:
        if key not in _KEYS:
            raise BadRequest(f"{path}: unknown key {key!r}; {hint(str(key), _KEYS)}")
    arms, cells = dict(values.get("arms") or {}), dict(values.get("cells") or {"main": {}})
    only = dict(values.get("only") or {})
    twins = list(values.get("twins") or [])
    tiers = dict(values.get("tiers") or {})
    for where, names, known in (
        ("only", only, cells),
        *((f"only.{cell}", chosen, arms) for cell, chosen in only.items()),
        ("twins", [name.rpartition("/")[2] for name in twins], arms),
        ("rate_as", values.get("rate_as") or {}, arms),
        *(
            (
                f"tiers.{tier}.without",
                [n.rpartition("/")[2] for n in (tiers[tier] or {}).get("without", ())],
                {**arms, **cells, _TWINS: {}},
            )
            for tier in tiers
        ),
        ("tiers", tiers, TIERS[:2]),
    ):
        for name in names:
            if name not in known:
                raise BadRequest(f"{path}: {where} names {name!r}; {hint(str(name), map(str, known))}")
    for tier in TIERS[:2]:
        if tier not in tiers:
            raise BadRequest(f"{path}: tiers.{tier} is missing; give its sizes, or {{}} for those of base")
    attempt = values.get("attempt", 0)
    if isinstance(attempt, bool) or not isinstance(attempt, int) or attempt < 0:
        raise BadRequest(f"{path}: attempt={attempt!r}; use 0, or 1 and more for sizes after the first")
    if not arms:
        raise BadRequest(f"{path}: arms is missing; name at least one")
    return Experiment(
        str(values.get("name", path.stem)),
        str(values.get("asks", "")),
        str(values.get("rates", "")),
        dict(values.get("rate_as") or {}),
        attempt,
        values.get("base") or {},
        {name: dict(overrides or {}) for name, overrides in cells.items()},
        {name: dict(overrides or {}) for name, overrides in arms.items()},
        only,
        twins,
        {name: dict(overrides or {}) for name, overrides in tiers.items()},
    )


def _expanded(
    name: str, base: Mapping[str, Any], overrides: Mapping[str, Any], seeds: tuple[int, ...]
) -> "tuple[RunConfig, ...]":
    return _built(name, *(json.dumps(x, sort_keys=True) for x in (base, overrides, seeds)))


# a plan is made several times in one call (hash, runs, evidence); building a config costs milliseconds
@lru_cache(maxsize=4096)
def _built(name: str, base: str, overrides: str, seeds: str) -> "tuple[RunConfig, ...]":
    from mnemolab.trainers.sweep import Sweep

    sweep = {
        "name": name,
        "base": json.loads(base),
        "list": [json.loads(overrides)],
        "grid": {"seed": json.loads(seeds)},
    }
    try:
        return Sweep.from_dict(sweep).runs
    except BadRequest as error:
        raise BadRequest(f"experiment {name}: {error}") from error
