"""What `mnemolab claims` does, step by step: plan, train, judge, write, draw."""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mnemolab.analysis.claims.asked import changed_rules
from mnemolab.analysis.claims.catalogue import CLAIMS
from mnemolab.analysis.claims.checks import CHECKS
from mnemolab.analysis.claims.claim import Verdict
from mnemolab.analysis.claims.cost import gpu_seconds
from mnemolab.analysis.claims.evidence import Evidence
from mnemolab.analysis.claims.experiments import Planned, load_experiment, load_tier
from mnemolab.analysis.claims.figures import draw
from mnemolab.analysis.claims.frozen import (
    PILOT,
    Frozen,
    NotFrozen,
    confirmed,
    freeze,
    held_rates,
    load_frozen,
    pilot_names,
    pilot_sweep,
    plan,
    write_frozen,
)
from mnemolab.analysis.claims.judge import experiments_of, judge_claim, twin_rate
from mnemolab.analysis.claims.kept import key, load, save
from mnemolab.analysis.claims.train import Piece, train_piece
from mnemolab.analysis.claims.write import held_ids, to_object, write_claims, write_runs
from mnemolab.files import output_folder

__all__ = ["dry_run", "freeze_tier", "judge_tier"]

GPU = "cuda:0"


def dry_run(tier: str, ids: Sequence[str], out: Path, workers: int | None) -> int:
    """Print runs, steps and an estimate of minutes by experiment; train nothing.

    Minutes are those of this machine for the quick tier, and of one H200 for the others. Before the pilot of a tier has
    been run its plan is counted with the learning rates of the files, and the pilot with it.
    """
    from mnemolab.trainers.estimate import estimate
    from mnemolab.trainers.folder import is_finished
    from mnemolab.trainers.live import clock
    from mnemolab.trainers.local import default_workers
    from mnemolab.trainers.sweep import Sweep

    workers = workers or default_workers()[0]
    parts: dict[str, dict[str, Any]] = {}
    names = experiments_of(ids)
    try:
        planned = _plan(tier, ids)[0]
    except NotFrozen as reason:
        print(f"{reason}", file=sys.stderr)
        seeds = load_tier(tier)
        planned = tuple(p for name in names for p in load_experiment(name).planned(seeds, {}))
        pilot = pilot_sweep(seeds).runs
        parts[PILOT] = {run.run_id: run for run in pilot}
    for p in planned:
        parts.setdefault(p.experiment, {})[p.config.run_id] = p.config
    total_steps, left = 0, 0.0
    print(f"{'experiment':<14}{'runs':>6}{'left':>6}{'steps':>12}   estimate")
    for name, runs in parts.items():
        home = out / ("pilot" if name == PILOT else "runs")
        todo = [run for run in runs.values() if not is_finished(home / run.run_id)]
        if tier == "quick":
            found = estimate(Sweep(name, tuple(runs.values())), home, workers)
            seconds = sum(row["seconds"] for row in found["runs"]) / workers
        else:
            seconds = gpu_seconds(todo)
        steps = sum(run.budget.steps for run in runs.values())
        print(f"{name:<14}{len(runs):>6}{len(todo):>6}{steps:>12,}   {clock(seconds)}")
        total_steps, left = total_steps + steps, left + seconds
    unique = {run_id for runs in parts.values() for run_id in runs}
    print(f"{'all':<14}{len(unique):>6}{'':>6}{total_steps:>12,}   {clock(left)}")
    where = f"with {workers} workers" if tier == "quick" else "on one H200"
    print(f"{where}; checks and benchmarks come on top", file=sys.stderr)
    return 0


def freeze_tier(tier: str, out: Path, workers: int | None, minutes: float | None, plugins: Sequence[str]) -> int:
    """Run the pilot and write configs/claims/frozen/TIER.yaml; a piece that is out of time says what is left."""
    from mnemolab.trainers.folder import is_diverged

    seeds = load_tier(tier)
    if tier == "replicate":  # new seeds at the rates that were confirmed
        held = confirmed()
        print(write_frozen(seeds, held.how, held.rates, rules=held.rules))
        return 0
    sweep = pilot_sweep(seeds, held_rates(seeds))
    home = output_folder(out)
    piece = _train(sweep.name, sweep.runs, home / "pilot", workers, minutes, plugins, pilot_names(seeds))
    broken = [run_id for run_id in piece.failed if not is_diverged(home / "pilot" / run_id)]
    if piece.left or broken:
        return _unfinished(piece)
    print(freeze(seeds, home / "pilot"))
    return 0


def judge_tier(
    tier: str,
    ids: Sequence[str],
    out: Path,
    workers: int | None,
    minutes: float | None,
    plugins: Sequence[str],
    device: str,
) -> int:
    """Train what is missing, judge `ids`, write claims.json, .csv, .tex and figures, and print the verdicts.

    `minutes` bounds training and judging together; a piece that is out of time keeps what it has and says what is left. A run
    whose loss or gradient is not finite would end so every time: its seed is left out, and the page says so.
    """
    from mnemolab.trainers.folder import is_diverged
    from mnemolab.trainers.run import resolve_device

    where = str(resolve_device(device))
    planned, frozen = _plan(tier, ids)
    home = output_folder(out)
    began = time.monotonic()
    diverged: list[str] = []
    names: dict[str, str] = {}
    if planned:
        runs = [p.config for p in planned]
        names = {p.config.run_id: p.name for p in planned}
        piece = _train(f"claims-{tier}", runs, home / "runs", workers, minutes, plugins, names)
        diverged = [run_id for run_id in piece.failed if is_diverged(home / "runs" / run_id)]
        if piece.left or len(diverged) < len(piece.failed):
            return _unfinished(piece)
        for run_id in diverged:
            print(f"left out, since its loss or gradient is not finite: {names[run_id]} ({run_id})", file=sys.stderr)
    trained = time.monotonic() - began
    evidence = Evidence.of(planned, home / "runs")
    deadline = None if minutes is None else began + 60 * minutes
    verdicts, devices = _judge(ids, evidence, tier, where, home / "judged", deadline)
    if len(verdicts) < len(ids):
        print(f"{len(verdicts)} of {len(ids)} claims judged: run the same command again to go on", file=sys.stderr)
        return 0
    methods = _methods(tier, frozen, planned, evidence, ", ".join(devices) or where, trained)
    methods["rules_changed"] = changed_rules((CLAIMS[name] for name in ids), frozen.rules) if frozen.rules else None
    methods["diverged"] = [f"{names[run_id]} ({run_id})" for run_id in diverged]
    others = held_ids(home) - set(ids)
    if others:
        print(
            f"{home / 'claims.json'} is left as it is: it holds {len(others)} other claims; these verdicts are kept, and the command without --only "
            "writes them",
            file=sys.stderr,
        )
    else:
        print("drawing", file=sys.stderr)
        figures = draw(verdicts, evidence, home / "figures")
        write_claims(verdicts, home, {**methods, "figures": figures})
        write_runs(evidence, home)
    for verdict in verdicts:
        effect = "" if verdict.effect is None or math.isnan(verdict.effect) else f"{verdict.effect:.3f}"
        print(f"{verdict.claim.id:<26}{verdict.verdict:<18}{effect:>8}  {verdict.why}")
    supported, twins = twin_rate(map(to_object, verdicts))
    if twins:
        print(f"A/A contrasts called supported: {supported} of {twins}", file=sys.stderr)
    print(home / "claims.json")
    return 0


def _judge(
    ids: Sequence[str], evidence: Evidence, tier: str, device: str, folder: Path, deadline: float | None
) -> tuple[list[Verdict], list[str]]:
    """Verdicts in order, as far as the time goes, and the devices on which their checks ran. Verdicts of an earlier piece are
    taken over. At least one is new.

    Checks that ran on a GPU stand where there is none: what is trained may be judged on another machine than costs are.
    """
    import torch

    others = () if torch.cuda.is_available() else (GPU,)
    verdicts: list[Verdict] = []
    devices: dict[str, None] = {}
    fresh = 0
    for name in ids:
        claim, checked = CLAIMS[name], name in CHECKS
        experiments = {load_experiment(own).name for own in experiments_of([name])}
        runs = [run.digest for run in evidence.ran if run.plan.experiment in experiments]
        keys = {place: key(claim, runs, tier, place) for place in ((device, *others) if checked else ("",))}
        found = ((load(folder, claim, held), place) for place, held in keys.items())
        verdict, place = next((pair for pair in found if pair[0] is not None), (None, next(iter(keys))))
        if verdict is None:
            if fresh and deadline is not None and time.monotonic() > deadline:
                break
            print(f"judging {name}", file=sys.stderr)
            verdict, fresh = judge_claim(claim, evidence, tier, device), fresh + 1
            save(folder, verdict, keys[place])
            evidence.forget()
        verdicts.append(verdict)
        if checked:
            devices[place] = None
    return verdicts, list(devices)


def _plan(tier: str, ids: Sequence[str]) -> tuple[tuple[Planned, ...], Frozen]:
    names = experiments_of(ids)
    frozen = load_frozen(tier) if names else Frozen(tier, "no experiment", {}, {})
    return plan(names, load_tier(tier), frozen), frozen


def _train(
    name: str,
    runs: Sequence[Any],
    out: Path,
    workers: int | None,
    minutes: float | None,
    plugins: Sequence[str],
    names: Mapping[str, str],
) -> Piece:
    from mnemolab.trainers.live import SweepTable

    table = SweepTable(len({run.run_id for run in runs}))
    try:
        return train_piece(
            name, runs, out, workers=workers, minutes=minutes, on_event=table, plugins=plugins, names=names
        )
    finally:
        table.close()


def _unfinished(piece: Piece) -> int:
    print(f"{piece.done} runs finished, {piece.left} left: run the same command again to go on", file=sys.stderr)
    for run_id in piece.failed:
        print(f"failed: {run_id}/failure.json", file=sys.stderr)
    return 1 if piece.failed else 0


def _methods(
    tier: str, frozen: Frozen, planned: Sequence[Planned], evidence: Evidence, device: str, seconds: float
) -> dict[str, Any]:
    """What the report says of how it was done: versions, hardware, seeds, rates, hashes."""
    from mnemolab.analysis.report import provenance

    seeds = load_tier(tier)
    results = [run.result for run in evidence.ran]
    return {
        "tier": tier,
        "claims": len(CLAIMS),
        "seeds": list(seeds.seeds),
        "twin_seeds": [seed + seeds.shift for seed in seeds.seeds],
        "attempts": dict(frozen.attempts),
        "pilot_seeds": list(seeds.pilot),
        "how": frozen.how,
        "rates": {task: dict(rates) for task, rates in frozen.rates.items()},
        "hashes": {
            name: frozen.hashes.get(name, "not frozen") for name in dict.fromkeys(p.experiment for p in planned)
        },
        "runs": len({p.config.run_id for p in planned}),
        "steps": sum(result["steps"] for result in results),
        "training_seconds": sum(result["train_seconds"] for result in results),
        "wall_seconds": seconds,
        "devices": sorted({str(result["device"]) for result in results}),
        "checks_on": device,
        "provenance": provenance(None),
    }
