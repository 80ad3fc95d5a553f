"""Pilot, freeze, confirm: the learning rates that pilot seeds chose, and the hash of every experiment as it was then.

`configs/claims/frozen/TIER.yaml` holds both; `replicate` takes the rates of `full` and has hashes of its own. A confirmatory
run of an experiment whose hash is another one is refused: what is confirmed must be what was frozen. Freezing again keeps
the rates there are and takes experiments that are new, or whose `attempt` was raised, which gives them other seeds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnemolab.analysis.claims.experiments import (
    TIERS,
    Experiment,
    Planned,
    Tier,
    experiment_names,
    folder,
    load_experiment,
    load_tier,
)
from mnemolab.errors import BadRequest

if TYPE_CHECKING:
    from mnemolab.trainers.sweep import Sweep

__all__ = [
    "PILOT",
    "Frozen",
    "NotFrozen",
    "freeze",
    "held_rates",
    "load_frozen",
    "pilot_names",
    "pilot_sweep",
    "plan",
    "refreeze_quick",
]

PILOT = "pilot"
# candidates of the pilot, for every stage and task alike: within 600 steps of nine arms on two tasks none had begun to learn at
# 1e-3, one at 1e-2 and six at 3e-3 (docs/claims.md)
RATES = (1.5e-3, 3e-3, 6e-3)


class NotFrozen(BadRequest):
    """A tier whose learning rates have not been chosen yet."""


@dataclass(frozen=True)
class Frozen:
    """`rates`: pilot task -> stage -> rate. `hashes`: experiment -> hash. `how` says where the rates come from. `attempts`:
    of the experiments that have more than one."""

    tier: str
    how: str
    rates: Mapping[str, Mapping[str, float]]
    hashes: Mapping[str, str]
    attempts: Mapping[str, int] = field(default_factory=dict)


def load_frozen(tier: str, path: Path | None = None) -> Frozen:
    """What was frozen for `tier`. Raises NotFrozen when nothing was."""
    from mnemolab.trainers.config import read_yaml

    path = path or folder() / "frozen" / f"{tier}.yaml"
    if not path.exists():
        raise NotFrozen(
            f"--tier {tier}: nothing is frozen ({path} is missing); run `mnemolab claims --tier {tier} --freeze` first, "
            "which runs the pilot"
        )
    values = read_yaml(path)
    try:
        return Frozen(tier, values["how"], values["rates"], values["experiments"], values.get("attempts", {}))
    except (KeyError, TypeError) as error:
        raise BadRequest(f"{path}: needs how, rates and experiments ({error})") from error


def plan(experiments: Iterable[str], tier: Tier, frozen: Frozen) -> tuple[Planned, ...]:
    """The runs of `experiments`. Raises BadRequest for an experiment that is not as it was frozen, or was never frozen.

    An experiment from a file of one's own (NAME.yaml) is planned as it is: nothing of it was frozen.
    """
    found: list[Planned] = []
    for name in dict.fromkeys(experiments):
        experiment = load_experiment(name)
        if not name.endswith(".yaml"):
            _refuse_changed(experiment, tier, frozen)
        found += experiment.planned(tier, frozen.rates)
    return tuple(found)


def _refuse_changed(experiment: Experiment, tier: Tier, frozen: Frozen) -> None:
    held, now = frozen.hashes.get(experiment.name), experiment.hash(tier, frozen.rates)
    if held == now:
        return
    what = "was never frozen" if held is None else f"changed since it was frozen ({held}, now {now})"
    raise BadRequest(
        f"experiment {experiment.name}, tier {tier.name}: it {what}; restore configs/claims/{experiment.name}.yaml, or raise its "
        f"`attempt`, which gives it other seeds, and run `mnemolab claims --tier {tier.name} --freeze`"
    )


def pilot_sweep(tier: Tier, known: Iterable[str] = ()) -> "Sweep":
    """Every stage and task of configs/claims/pilot.yaml at each of RATES, on the pilot seeds, which nothing else uses. Tasks in
    `known` are left out: their rates stand."""
    from mnemolab.trainers.sweep import Sweep

    runs = [p.config for p in _pilots(tier, known)]
    return Sweep(f"pilot-{tier.name}", tuple({run.run_id: run for run in runs}.values()))


def pilot_names(tier: Tier) -> dict[str, str]:
    """Run id of every pilot run -> what its events call it."""
    return {p.config.run_id: f"{p.name}, rate {p.config.optimiser.learning_rate:g}" for p in _pilots(tier)}


def held_rates(tier: Tier, path: Path | None = None) -> Mapping[str, Mapping[str, float]]:
    """Rates that were frozen for `tier`; none before its first pilot."""
    try:
        return load_frozen(tier.name, path).rates
    except NotFrozen:
        return {}


def freeze(tier: Tier, out: Path, path: Path | None = None) -> Path:
    """Choose the rates from the finished pilot below `out` and write the frozen file. Raises BadRequest when runs are missing.

    Best mean validation accuracy over the pilot seeds wins, ties go to the lower loss. The test stream is not read. A task
    whose rates were frozen before keeps them.
    """
    from mnemolab.trainers.folder import is_finished, load_run

    scores: dict[tuple[str, str], dict[float, list[tuple[float, float]]]] = {}
    known = held_rates(tier, path)
    for p in _pilots(tier, known):
        if not is_finished(out / p.config.run_id):
            raise BadRequest(f"{out / p.config.run_id}: this pilot run is not finished; run the same command again")
        seen = load_run(out / p.config.run_id).result["validation"]
        rate = p.config.optimiser.learning_rate
        scores.setdefault((p.cell, p.config.model["name"]), {}).setdefault(rate, []).append(
            (seen["accuracy"], -seen["loss"])
        )
    rates: dict[str, dict[str, float]] = {task: dict(stages) for task, stages in known.items()}
    for (task, stage), by_rate in scores.items():
        best = max(by_rate, key=lambda rate: tuple(sum(column) for column in zip(*by_rate[rate], strict=True)))
        rates.setdefault(task, {})[stage] = best
    how = f"pilot: {len(RATES)} rates, seeds {', '.join(map(str, tier.pilot))}, best validation accuracy"
    return write_frozen(tier, how, rates, path)


def write_frozen(tier: Tier, how: str, rates: Mapping[str, Mapping[str, float]], path: Path | None = None) -> Path:
    """Write configs/claims/frozen/TIER.yaml with the hashes of all experiments as they are now.

    Raises BadRequest for an experiment that is not as it was frozen under the same seeds: its runs may have been read.
    """
    import yaml

    from mnemolab.files import output_folder, write_text

    experiments = [load_experiment(name) for name in experiment_names() if name != PILOT]
    hashes = {e.name: e.hash(tier, rates) for e in experiments}
    attempts = {e.name: e.attempt for e in experiments if e.attempt}
    path = path or folder() / "frozen" / f"{tier.name}.yaml"
    if tier.name != TIERS[0] and path.exists():
        before = load_frozen(tier.name, path)
        for name, held in before.hashes.items():
            if name in hashes and hashes[name] != held and attempts.get(name, 0) <= before.attempts.get(name, 0):
                raise BadRequest(
                    f"experiment {name}, tier {tier.name}: it changed since it was frozen, and runs of its seeds may have been read; "
                    f"set attempt: {before.attempts.get(name, 0) + 1} in configs/claims/{name}.yaml for seeds of its own"
                )
    output_folder(path.parent, "configs/claims/frozen")
    values: dict[str, Any] = {"how": how, "rates": {k: dict(v) for k, v in rates.items()}, "experiments": hashes}
    values |= {"attempts": attempts} if attempts else {}
    head = (
        "# Written by `mnemolab claims --freeze` (quick, which decides nothing, also by `python -m mnemolab.analysis.claims.frozen`).\n"
        "# An experiment whose hash differs is refused.\n"
    )
    return write_text(path, head + yaml.safe_dump(values, sort_keys=True))


def _pilots(tier: Tier, known: Iterable[str] = ()) -> list[Planned]:
    experiment = load_experiment(PILOT)
    stages = sorted({str(arm.get("model.name")) for arm in experiment.arms.values()})
    own = Tier(tier.name, tier.pilot, 0, ())
    found: list[Planned] = []
    for rate in RATES:
        rates = {experiment.rates: dict.fromkeys(stages, rate)}
        found += [p for p in experiment.planned(own, rates) if p.cell not in known]
    return found


def refreeze_quick() -> Path:
    """Hashes of the quick tier anew, at the rates it has: it shows the machinery and confirms nothing, so its sizes may change."""
    held = load_frozen("quick")
    return write_frozen(load_tier("quick"), held.how, held.rates)


if __name__ == "__main__":
    print(refreeze_quick())
