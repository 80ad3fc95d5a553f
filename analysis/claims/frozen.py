"""Pilot, freeze, confirm: the learning rates that pilot seeds chose, and the hash of every experiment and of every claim's rule
as it was then.

`configs/claims/frozen/TIER.yaml` holds both; `replicate` takes the rates of `full` and has hashes of its own. A confirmatory
run of an experiment whose hash is another one is refused: what is confirmed must be what was frozen. Freezing again keeps
the rates there are and takes experiments that are new, or whose `attempt` was raised, which gives them other seeds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnemolab.analysis.claims.asked import renewed, rules_of
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
from mnemolab.errors import BadRequest, hint

if TYPE_CHECKING:
    from mnemolab.trainers.sweep import Sweep

__all__ = [
    "PILOT",
    "Frozen",
    "NotFrozen",
    "confirmed",
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
# accuracies closer than this are alike: at the ceiling one wrong answer of thousands would choose (the rates of 2026-11-30 were chosen so)
TIE = 0.005


class NotFrozen(BadRequest):
    """A tier whose learning rates have not been chosen yet."""


@dataclass(frozen=True)
class Frozen:
    """`rates`: pilot task -> stage -> rate. `hashes`: experiment -> hash. `how` says where the rates come from. `attempts`:
    of the experiments that have more than one. `rules`: claim -> hash of what it asks (`asked.rule_hash`)."""

    tier: str
    how: str
    rates: Mapping[str, Mapping[str, float]]
    hashes: Mapping[str, str]
    attempts: Mapping[str, int] = field(default_factory=dict)
    rules: Mapping[str, str] = field(default_factory=dict)


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
        more = (values.get("attempts") or {}, values.get("rules") or {})
        found = Frozen(tier, values["how"], values["rates"], values["experiments"], *more)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadRequest(f"{path}: needs how, rates and experiments ({error})") from error
    for name in ("rates", "hashes", "attempts", "rules"):
        if not isinstance(getattr(found, name), Mapping):
            raise BadRequest(
                f"{path}: {'experiments' if name == 'hashes' else name} is not a mapping; restore the file"
            )
    return found


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

    Best mean validation accuracy over the pilot seeds wins, ties (within TIE) go to the lower loss. The test stream is not
    read. A task whose rates were frozen before keeps them.
    """
    from mnemolab.trainers.folder import is_diverged, is_finished, load_run

    scores: dict[tuple[str, str], dict[float, list[tuple[float, float]]]] = {}
    known = held_rates(tier, path)
    for p in _pilots(tier, known):
        folder = out / p.config.run_id
        if is_diverged(folder):
            score = (0.0, -inf)  # a rate that is too high for this seed
        elif is_finished(folder):
            seen = load_run(folder).result["validation"]
            score = (seen["accuracy"], -seen["loss"])
        else:
            raise BadRequest(f"{folder}: this pilot run is not finished; run the same command again")
        by_rate = scores.setdefault((p.cell, p.config.model["name"]), {})
        by_rate.setdefault(p.config.optimiser.learning_rate, []).append(score)
    rates: dict[str, dict[str, float]] = {task: dict(stages) for task, stages in known.items()}
    for (task, stage), by_rate in scores.items():
        means = {
            rate: tuple(sum(column) / len(column) for column in zip(*found, strict=True))
            for rate, found in by_rate.items()
        }
        highest = max(accuracy for accuracy, _ in means.values())
        best = max((rate for rate in means if means[rate][0] >= highest - TIE), key=lambda rate: means[rate][1])
        rates.setdefault(task, {})[stage] = best
    how = f"pilot: {len(RATES)} rates, seeds {', '.join(map(str, tier.pilot))}, best validation accuracy"
    return write_frozen(tier, how, rates, path)


def write_frozen(
    tier: Tier,
    how: str,
    rates: Mapping[str, Mapping[str, float]],
    path: Path | None = None,
    rules: Mapping[str, str] | None = None,
) -> Path:
    """Write configs/claims/frozen/TIER.yaml with the hashes of all experiments as they are now, and of all rules (`rules` when
    given: a replication has those that were confirmed).

    Raises BadRequest for an experiment that is not as it was frozen under the same seeds: its runs may have been read.
    """
    import yaml

    from mnemolab.files import output_folder, write_text

    experiments = [load_experiment(name) for name in experiment_names() if name != PILOT]
    hashes = {e.name: e.hash(tier, rates) for e in experiments}
    attempts = {e.name: e.attempt for e in experiments if e.attempt}
    path = path or folder() / "frozen" / f"{tier.name}.yaml"
    asked: Mapping[str, str] = {}
    if tier.name != TIERS[0]:
        asked = rules_of() if rules is None else rules
        _refuse_unknown(experiments, rates)
        if path.exists():
            before = load_frozen(tier.name, path)
            _refuse_reused(before, hashes, attempts)
            asked = renewed(asked, before.rules, before.hashes, hashes)
            # an experiment that is away has been confirmed all the same
            hashes, attempts = {**before.hashes, **hashes}, {**before.attempts, **attempts}
    output_folder(path.parent, "configs/claims/frozen")
    values: dict[str, Any] = {"how": how, "rates": {k: dict(v) for k, v in rates.items()}, "experiments": hashes}
    values |= {"attempts": attempts} if attempts else {}
    values |= {"rules": dict(asked)} if asked else {}
    head = (
        "# Written by `mnemolab claims --freeze` (quick, which decides nothing, also by `python -m mnemolab.analysis.claims.frozen`).\n"
        "# An experiment whose hash differs is refused.\n"
    )
    return write_text(path, head + yaml.safe_dump(values, sort_keys=True))


def _refuse_reused(before: Frozen, hashes: Mapping[str, str], attempts: Mapping[str, int]) -> None:
    for name, held in before.hashes.items():
        last = before.attempts.get(name, 0)
        if name in hashes and hashes[name] != held and attempts.get(name, 0) <= last:
            raise BadRequest(
                f"experiment {name}, tier {before.tier}: it changed since it was frozen, and runs of its seeds may have been read; "
                f"set attempt: {last + 1} in configs/claims/{name}.yaml for seeds of its own"
            )


def _refuse_unknown(experiments: Iterable[Experiment], rates: Mapping[str, Mapping[str, float]]) -> None:
    """An experiment whose rates come from a pilot task that there is not would silently train at its base's rate."""
    known = (*load_experiment(PILOT).cells, *rates, "none")
    for e in experiments:
        if e.rates not in known:
            raise BadRequest(f"experiment {e.name}: rates={e.rates!r}; {hint(e.rates, known)}")
        for arm, stage in e.rate_as.items():
            if rates.get(e.rates) and stage not in rates[e.rates]:
                raise BadRequest(f"experiment {e.name}: rate_as.{arm}={stage!r}; {hint(stage, rates[e.rates])}")


def confirmed() -> Frozen:
    """What a replication repeats: `full` as it was frozen. Raises BadRequest for an experiment that is not as it was."""
    held = load_frozen("full")
    for name in experiment_names():
        if name != PILOT:
            _refuse_changed(load_experiment(name), load_tier("full"), held)
    return held


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
