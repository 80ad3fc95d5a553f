"""The finished runs of the experiments, as judging functions see them: one number a run, arms side by side, paired by seed."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mnemolab.analysis.claims.claim import Sample
from mnemolab.analysis.claims.experiments import Planned
from mnemolab.analysis.claims.rules import interval
from mnemolab.errors import BadRequest, hint

if TYPE_CHECKING:
    from mnemolab.analysis.decay.traces import Trace
    from mnemolab.models.backbone import Backbone
    from mnemolab.tasks.base import Batch, Task

__all__ = ["Evidence", "NotTrained", "Ran", "Values", "difference"]


class NotTrained(BadRequest):
    """The tier leaves out an arm or a cell that a claim reads, or its runs are not finished."""


# sequences that probes of a model read
SEQUENCES = 128


@dataclass(frozen=True)
class Ran:
    """One finished run: its place in the plan and its folder; the rest is read when first used."""

    plan: Planned
    folder: Path

    @property
    def run_id(self) -> str:
        return self.folder.name

    @property
    def digest(self) -> str:
        """Its id with a hash of what it found: result.json and records.parquet."""
        found = hashlib.sha256()
        for name in ("result.json", "records.parquet"):
            path = self.folder / name
            found.update(path.read_bytes() if path.exists() else b"")
        return f"{self.run_id} {found.hexdigest()[:16]}"

    @cached_property
    def _run(self) -> Any:
        from mnemolab.trainers.folder import load_run

        return load_run(self.folder)

    @cached_property
    def records(self) -> pd.DataFrame:
        """Test queries, forked where there was a choice; `condition` as a name, `n_stale` beside `stale`."""
        from mnemolab.analysis.records import one_scoring

        frame = one_scoring(self._run.records.assign(run_id=self.run_id))
        names = list(self.task.conditions)
        frame["condition"] = [names[c] if 0 <= c < len(names) else str(c) for c in frame["condition"]]
        return frame.assign(n_stale=[len(values) for values in frame["stale"]])

    @cached_property
    def result(self) -> dict[str, Any]:
        return self._run.result

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Learning curve: one row a line of metrics.jsonl; empty where the run came without it."""
        return self._run.metrics

    @cached_property
    def task(self) -> "Task":
        return self._run.task()

    @cached_property
    def model(self) -> "Backbone":
        return self._run.model()

    @cached_property
    def initial(self) -> "Backbone":
        """The model as it was before training."""
        return self._run.config.make_model().eval()

    @property
    def seed(self) -> int:
        """The seed of its weights and data, which a twin does not share with its pair."""
        return self._run.config.seed

    @cached_property
    def batch(self) -> "Batch":
        """The first test sequences."""
        import torch

        return self.task.sample(torch.arange(SEQUENCES), split="test", seed=self.seed)

    @cached_property
    def traces(self) -> "list[Trace]":
        """What the memory layers were told while reading `batch`."""
        from mnemolab.analysis.decay import trace

        return [t for t in trace(self.model, self.batch.inputs) if t.kind == "memory"]

    def forget(self) -> None:
        """Drop what was read: records are some ten megabytes a run."""
        for name in [name for name in vars(self) if name not in ("plan", "folder")]:
            del self.__dict__[name]


@dataclass(frozen=True)
class Values:
    """A number a seed of every arm, and of the arms' twins."""

    arms: Mapping[str, Mapping[int, float]]
    doubles: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    def of(self, arm: str) -> dict[int, float]:
        if arm not in self.arms:
            raise NotTrained(f"no arm {arm!r} was measured; {hint(arm, self.arms)}")
        return dict(self.arms[arm])

    def minus(self, a: str, b: str) -> dict[int, float]:
        """a - b, over the seeds that both have."""
        return difference(self.of(a), self.of(b))

    def twins(self, name: str, margin: float | None = None) -> list[Sample]:
        """A/A contrasts: each doubled arm against itself under other seeds."""
        return [
            Sample(f"{name}: {arm} against itself", difference(self.of(arm), dict(double)), margin=margin)
            for arm, double in self.doubles.items()
            if arm in self.arms
        ]

    def rows(self, what: str, arms: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Mean and 95% interval by arm, for the report; arms that a tier leaves out have no row."""
        found = []
        for arm in arms or self.arms:
            values = list(self.arms.get(arm, {}).values())
            if values:
                low, high = interval(values)
                row = {"measure": what, "arm": arm, "mean": float(np.mean(values)), "low": low, "high": high}
                found.append(row | {"seeds": len(values)})
        return found


def difference(a: Mapping[int, float], b: Mapping[int, float]) -> dict[int, float]:
    """a - b, over the seeds that both have."""
    return {seed: a[seed] - b[seed] for seed in a if seed in b}


@dataclass
class Evidence:
    """Every finished run of the plan. `read` collects the ids of the runs that were looked at."""

    ran: Sequence[Ran]
    read: dict[str, None] = field(default_factory=dict)

    @classmethod
    def of(cls, planned: Sequence[Planned], out: Path) -> "Evidence":
        """The runs of `planned` that are finished below `out`."""
        from mnemolab.trainers.folder import is_finished

        return cls([Ran(p, out / p.config.run_id) for p in planned if is_finished(out / p.config.run_id)])

    def forget(self) -> None:
        """Drop what was read of all runs; it is read again when asked for."""
        for run in self.ran:
            run.forget()

    def runs(self, experiment: str, cell: str | None = None, arm: str | None = None) -> list[Ran]:
        """Finished runs, twins included. Raises NotTrained when there is none."""
        found = [
            r
            for r in self.ran
            if r.plan.experiment == experiment and cell in (None, r.plan.cell) and arm in (None, r.plan.arm)
        ]
        if not found:
            where = ", ".join(f"{n} {v}" for n, v in (("cell", cell), ("arm", arm)) if v is not None)
            raise NotTrained(f"experiment {experiment}: no finished run{' of ' if where else ''}{where}")
        return found

    def values(
        self,
        experiment: str,
        measure: Callable[[Ran], float],
        cell: str = "main",
        arms: Sequence[str] | None = None,
    ) -> Values:
        """`measure` of every run of a cell. A run that it gives NaN for has no say."""
        plain: dict[str, dict[int, float]] = {}
        doubles: dict[str, dict[int, float]] = {}
        for run in self.runs(experiment, cell):
            if arms is not None and run.plan.arm not in arms:
                continue
            value = float(measure(run))
            self.read[run.run_id] = None
            mine = (doubles if run.plan.twin else plain).setdefault(run.plan.arm, {})
            if np.isfinite(value):
                mine[run.plan.seed] = value
        return Values(plain, doubles)
