"""Walk a sweep: skip what is finished, give the rest to an engine, choose on validation, read the test stream once."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self

from mnemolab.errors import BadRequest, unknown
from mnemolab.files import output_folder
from mnemolab.trainers.config import RunConfig
from mnemolab.trainers.events import Event, Failed, Finished, Skipped, SweepOutcome
from mnemolab.trainers.folder import RESULT
from mnemolab.trainers.local import Job, LocalEngine
from mnemolab.trainers.sweep import Sweep

__all__ = ["ENGINES", "Engine", "run_sweep"]


class Engine(Protocol):
    """Does jobs, several at a time, and tells `emit` what becomes of each. A context: leaving it ends the workers."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...
    def run(self, jobs: Sequence[Job], out: Path, emit: Callable[[Event], None]) -> None: ...


def _ray(workers: int | None, plugins: Sequence[str]) -> Engine:
    from mnemolab.trainers.ray_engine import RayEngine

    return RayEngine(workers, plugins)


ENGINES: dict[str, Callable[[int | None, Sequence[str]], Engine]] = {"local": LocalEngine, "ray": _ray}


def run_sweep(
    sweep: Sweep,
    out: str | Path = "runs",
    engine: str = "local",
    workers: int | None = None,
    on_event: Callable[[Event], None] | None = None,
    plugins: Sequence[str] = (),
) -> SweepOutcome:
    """Bring every run of `sweep` below `out` to its end, by `engine` with `workers` at a time.

    Finished runs are skipped, failed ones are tried again, and unfinished ones go on from their checkpoint, so calling
    this again completes whatever an earlier call left. With `choose`, pilots are trained with the test stream unread; then
    each cell's best candidate is trained on all seeds and its test stream is read. Then the tables are collected.

    Raises BadRequest for an unknown engine or a folder that cannot be written, KeyboardInterrupt after a clean stop.
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    out = output_folder(out)
    with ENGINES[engine](workers, plugins) as team:
        walk = _Walk(out, team, sweep.labels(), on_event or (lambda event: None))
        if not sweep.choose:
            walk.bring(sweep.runs, read_test=True)
            outcome = walk.outcome(None)
        else:
            walk.bring(sweep.pilots, read_test=False)
            chosen = sweep.chosen(walk.results)
            walk.bring(chosen, read_test=True)
            outcome = walk.outcome(tuple(run.run_id for run in chosen if run.run_id in walk.results))
    from mnemolab.trainers.collect import collect

    broken: list[str] = []
    collect(out, sweep.runs, outcome.chosen, broken)
    return replace(outcome, failed=tuple(dict.fromkeys((*outcome.failed, *broken))))


class _Walk:
    """The books of one call: results by run id, and what became of each run."""

    def __init__(self, out: Path, engine: Engine, labels: dict[str, str], on_event: Callable[[Event], None]):
        self.out, self.engine, self.labels, self.on_event = out, engine, labels, on_event
        self.results: dict[str, dict[str, Any]] = {}
        self.failed: dict[str, str] = {}
        self.skipped: set[str] = set()

    def bring(self, runs: Iterable[RunConfig], read_test: bool) -> None:
        """Have `runs` finished, with or without their test stream."""
        jobs = []
        for run in runs:
            try:
                result = _finished(self.out / run.run_id)
            except BadRequest as error:  # one damaged folder keeps no other run from its end
                self._hear(Failed(run.run_id, self.labels[run.run_id], f"{error}; delete the folder and run it again"))
                continue
            if result is not None and (result.get("test") is not None or not read_test):
                if run.run_id not in self.results:
                    self.skipped.add(run.run_id)
                    self.on_event(Skipped(run.run_id, self.labels[run.run_id]))
                self.results[run.run_id] = result
            else:
                jobs.append(Job(run.run_id, self.labels[run.run_id], run.budget.steps, run.to_dict(), read_test))
        self.engine.run(jobs, self.out, self._hear)

    def _hear(self, event: Event) -> None:
        if isinstance(event, Finished):
            self.results[event.run_id] = event.result
            self.failed.pop(event.run_id, None)
        elif isinstance(event, Failed):
            self.failed[event.run_id] = event.error
        self.on_event(event)

    def outcome(self, chosen: tuple[str, ...] | None) -> SweepOutcome:
        done = tuple(run for run in self.results if run not in self.skipped and run not in self.failed)
        return SweepOutcome(done, tuple(self.failed), tuple(sorted(self.skipped)), chosen)


def _finished(folder: Path) -> dict[str, Any] | None:
    """`result.json`, or None when the run has none. Raises BadRequest when it is not ours."""
    try:
        result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BadRequest(f"{folder / RESULT}: not readable ({error}); delete the folder and run it again") from error
    if not isinstance(result, dict) or result.get("run_id") != folder.name:
        raise BadRequest(f"{folder / RESULT}: not the result of run {folder.name}; delete the folder and run it again")
    return result
