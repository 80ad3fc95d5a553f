"""A sweep: a pure function from YAML to a list of run configs, and the walk over that list.

    name: overwriting
    base: {task: {name: key_overwrite}, budget: {steps: 600}}
    grid: {model.name: [linear_attention, deltanet], task.versions: [1, 2, 4], seed: [0, 1, 2]}
    list: [{model.depth: 1}, {model.depth: 2, model.width: 96}]          # each entry with every point of the grid
    random: {count: 8, seed: 0, fields: {optimiser.weight_decay: {log_uniform: [0.01, 1.0]}}}
    choose: {optimiser.learning_rate: [0.001, 0.003, 0.01]}              # per cell, on validation
    pilot_seeds: [0]                                                     # seeds that choose; all of them when left out

`grid` may also be a list of grids. A whole section (`task: {name: ...}`) as a grid value replaces that section.
"""

import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnemolab.errors import BadRequest, hint
from mnemolab.trainers.config import RunConfig, flat_row, read_yaml

__all__ = ["Sweep"]

KEYS = ("name", "base", "grid", "list", "random", "choose", "pilot_seeds")


@dataclass(frozen=True)
class Sweep:
    """`runs` holds every candidate once. `choose` names the fields chosen on validation; empty when nothing is chosen."""

    name: str
    runs: tuple[RunConfig, ...]
    choose: tuple[str, ...] = ()
    pilot_seeds: tuple[int, ...] | None = None

    @classmethod
    def from_yaml(cls, path: str | Path) -> "Sweep":
        values = read_yaml(path)
        if isinstance(values, Mapping) and "name" not in values:
            values = {"name": Path(path).stem, **values}
        try:
            return cls.from_dict(values)
        except BadRequest as error:
            raise BadRequest(f"{path}: {error}") from error

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Sweep":
        """Raises BadRequest for an unknown key or field, an empty grid, or any config that cannot run."""
        if not isinstance(values, Mapping):
            raise BadRequest(f"a sweep is a mapping with {', '.join(KEYS)}; got {type(values).__name__}")
        for key in values:
            if key not in KEYS:
                raise BadRequest(f"sweep: unknown key {key!r}; {hint(str(key), KEYS)}")
        choose = _mapping(values.get("choose", {}), "choose")
        found: dict[str, RunConfig] = {}
        for point in _points(values):
            config = RunConfig.from_dict(_applied(_mapping(values.get("base", {}), "base"), point))
            found.setdefault(config.run_id, config)
        pilots = values.get("pilot_seeds")
        if pilots is not None and not (isinstance(pilots, list) and pilots and all(isinstance(x, int) for x in pilots)):
            raise BadRequest(f"sweep: pilot_seeds={pilots!r} must be a list of at least one seed")
        if any(field.split(".")[0] == "seed" for field in choose):
            raise BadRequest("sweep: choose.seed: the best seed is luck; give seeds under grid")
        if pilots is not None and not choose:
            raise BadRequest("sweep: pilot_seeds without choose; say what they choose, or leave them out")
        seeds = {run.seed for run in found.values()}
        if pilots is not None and not set(pilots) <= seeds:
            raise BadRequest(f"sweep: pilot_seeds={list(pilots)} must be among the sweep's seeds {sorted(seeds)}")
        return cls(
            str(values.get("name", "sweep")),
            tuple(found.values()),
            tuple(choose),
            None if pilots is None else tuple(pilots),
        )

    def labels(self) -> dict[str, str]:
        """Run id -> stage, task, seed and the fields that differ between runs."""
        rows = {run.run_id: flat_row(run.to_dict()) for run in self.runs}
        names = dict.fromkeys(name for row in rows.values() for name in row)
        told = ("seed", "task.name", "model.name")
        varied = [name for name in names if name not in told and len({str(row.get(name)) for row in rows.values()}) > 1]
        made = {}
        for run in self.runs:
            fields = [f"{name.split('.')[-1]} {rows[run.run_id][name]}" for name in varied if name in rows[run.run_id]]
            made[run.run_id] = ", ".join([run.label, *fields])
        return made

    def cells(self) -> dict[str, dict[str, list[RunConfig]]]:
        """Cell -> candidate -> its runs over seeds. Cells differ in anything but the seed and the chosen fields."""
        found: dict[str, dict[str, list[RunConfig]]] = {}
        for run in self.runs:
            values = run.to_dict()
            values.pop("seed")
            candidate = {field: _pop(values, field) for field in self.choose}
            cell = found.setdefault(json.dumps(values, sort_keys=True), {})
            cell.setdefault(json.dumps(candidate, sort_keys=True), []).append(run)
        return found

    @property
    def pilots(self) -> tuple[RunConfig, ...]:
        """Runs that take part in the choice; all runs when nothing is chosen."""
        if self.pilot_seeds is None:
            return self.runs
        return tuple(run for run in self.runs if run.seed in self.pilot_seeds)

    @property
    def expected(self) -> int:
        """How many times a run is brought to its end: once each, or once as a pilot and once more when chosen."""
        if not self.choose:
            return len(self.runs)
        return len(self.pilots) + sum(len(next(iter(candidates.values()))) for candidates in self.cells().values())

    def chosen(self, results: Mapping[str, Mapping[str, Any]]) -> tuple[RunConfig, ...]:
        """Per cell the runs, over all seeds, of the candidate with the best mean validation accuracy over pilot seeds.

        `results` maps run ids to `result.json`. Equal accuracies are told apart by the lower loss. A candidate with a
        failed pilot is out; a cell whose candidates all failed has none.
        """
        picked: list[RunConfig] = []
        for candidates in self.cells().values():
            scores = {}
            for name, runs in candidates.items():
                pilots = [run for run in runs if self.pilot_seeds is None or run.seed in self.pilot_seeds]
                if not pilots or any(run.run_id not in results for run in pilots):
                    continue
                seen = [results[run.run_id]["validation"] for run in pilots]
                scores[name] = (
                    sum(row["accuracy"] for row in seen) / len(seen),
                    -sum(row["loss"] for row in seen) / len(seen),
                )
            if scores:
                picked += candidates[max(scores, key=lambda name: scores[name])]
        return tuple(picked)


def _points(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Dotted overrides of every run: list entry x grid point x random draw x candidate."""
    entries = values.get("list") or [{}]
    grids = values.get("grid") or [{}]
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise BadRequest("sweep: list must be a list of mappings from dotted fields to values")
    if not isinstance(grids, (Mapping, list)):
        raise BadRequest(f"sweep: grid={grids!r} must be a mapping from dotted fields to lists, or a list of such")
    grids = [grids] if isinstance(grids, Mapping) else grids
    choose = _axes(_mapping(values.get("choose", {}), "choose"), "choose")
    drawn = _mapping(values.get("random") or {}, "random")
    _refuse_overlap(
        {
            "list": [field for entry in entries for field in _mapping(entry, "list")],
            "grid": [field for grid in grids for field in _mapping(grid, "grid")],
            "random": list(_mapping(drawn.get("fields") or {}, "random.fields")),
            "choose": list(choose),
        }
    )
    for entry, grid in itertools.product(entries, grids):
        axes = _axes(_mapping(grid, "grid"), "grid")
        for point in _product(axes):
            for draw in _draws(values.get("random")):
                fixed = {**_mapping(entry, "list"), **point, **draw}
                for candidate in _product(choose):
                    yield {**fixed, **candidate}


def _refuse_overlap(fields: Mapping[str, Sequence[str]]) -> None:
    """A field, or a section that holds it, under two of list, grid, random and choose: one would silently win."""
    for (one, ours), (other, theirs) in itertools.combinations(fields.items(), 2):
        for a, b in itertools.product(dict.fromkeys(ours), dict.fromkeys(theirs)):
            if a == b or a.startswith(f"{b}.") or b.startswith(f"{a}."):
                again = "" if a == b else f" as {b}"
                raise BadRequest(f"sweep: {a} stands under {one} and again{again} under {other}; keep one")


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadRequest(f"sweep: {where}={value!r} must be a mapping")
    for key in value:
        if not isinstance(key, str):
            raise BadRequest(f"sweep: {where}: {key!r} is not the name of a field")
    return value


def _axes(grid: Mapping[str, Any], where: str) -> dict[str, Sequence[Any]]:
    for field, choices in grid.items():
        if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
            raise BadRequest(f"sweep: {where}.{field}={choices!r} must be a list with at least one value")
    return dict(grid)


def _product(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


DRAWS: dict[str, Callable[[random.Random, Any], Any]] = {
    "uniform": lambda source, ends: source.uniform(*ends),
    "log_uniform": lambda source, ends: ends[0] * (ends[1] / ends[0]) ** source.random(),
    "integer": lambda source, ends: source.randint(*ends),
    "choice": lambda source, items: source.choice(items),
}


def _draws(section: Any) -> Iterator[dict[str, Any]]:
    if section is None:
        yield {}
        return
    section = _mapping(section, "random")
    known = ("count", "seed", "fields")
    for key in section:
        if key not in known:
            raise BadRequest(f"sweep: unknown key random.{key}; {hint(str(key), known)}")
    count, seed = section.get("count", 1), section.get("seed", 0)
    for name, value, least in (("count", count, 1), ("seed", seed, 0)):
        if not isinstance(value, int) or value < least:
            raise BadRequest(f"sweep: random.{name}={value!r} must be a whole number, at least {least}")
    source = random.Random(seed)
    for _ in range(count):
        point = {}
        for field, how in _mapping(section.get("fields", {}), "random.fields").items():
            where = f"random.fields.{field}"
            drawn = dict(_mapping(how, where))
            if len(drawn) != 1:
                raise BadRequest(f"sweep: {where}={drawn!r} must name one draw, such as {{uniform: [0, 1]}}")
            kind, ends = drawn.popitem()
            if kind not in DRAWS:
                raise BadRequest(f"sweep: {where}: unknown draw {kind!r}; {hint(str(kind), DRAWS)}")
            if not isinstance(ends, list) or (kind != "choice" and len(ends) != 2) or not ends:
                raise BadRequest(f"sweep: {where}.{kind}={ends!r} must be a list: two ends, or what to choose from")
            if not _can_draw(kind, ends):
                raise BadRequest(
                    f"sweep: {where}.{kind}={ends!r}: use two numbers, the smaller one first"
                    + {"log_uniform": ", both above 0", "integer": ", both whole"}.get(kind, "")
                )
            point[field] = DRAWS[kind](source, ends)
        yield point


def _can_draw(kind: str, ends: list[Any]) -> bool:
    if kind == "choice":
        return True
    number = int if kind == "integer" else (int, float)
    return (
        all(isinstance(end, number) for end in ends) and (kind != "log_uniform" or ends[0] > 0) and ends[0] <= ends[1]
    )


def _applied(base: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with dotted fields set. Whole sections first, so that `task` and `task.versions` can be given together."""
    made = deepcopy(dict(base))
    for field, value in sorted(point.items(), key=lambda item: item[0].count(".")):
        *path, last = field.split(".")
        place = made
        for name in path:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise BadRequest(f"sweep: {field}: {name} is not a section")
        place[last] = deepcopy(value)
    return made


def _pop(values: dict[str, Any], field: str) -> Any:
    *path, last = field.split(".")
    for name in path:
        values = values[name]
    return values.pop(last, None)  # a model option that says what the stage does anyway is not there
