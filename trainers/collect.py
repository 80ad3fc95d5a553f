"""One table a sweep and one table of records a task, for pandas, DuckDB or anything that reads Parquet."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from mnemolab.errors import BadRequest
from mnemolab.files import held, write_atomic
from mnemolab.trainers.config import RunConfig, flat_row
from mnemolab.trainers.folder import is_finished, load_run
from mnemolab.trainers.sweep import Sweep

__all__ = ["collect", "kept_choice", "run_row", "write_table"]


def collect(
    out: str | Path,
    runs: Sequence[RunConfig],
    chosen: Sequence[str] | None = None,
    broken: list[str] | None = None,
) -> dict[str, Path]:
    """Write `sweep.parquet` (one row a finished run) and `collected/<task>.parquet` (one row a test query) below `out`.

    Returns what was written, by name. Columns of `sweep.parquet` are config and result with dots between levels, plus
    `run_id` and, in a sweep that chooses on validation, `chosen`. Records get the columns run_id, stage, recipe, seed,
    depth and width; a query column of such a name (the needle's depth) becomes `query_depth`. Rows that an earlier sweep
    left in the same folder stay, as long as their runs do. Nothing is written when no run is finished. A run that cannot be
    read is left out: its id is added to `broken` and the reason printed; without `broken` BadRequest is raised at the end.
    """
    out = Path(out)
    rows, records, reasons = [], {}, {}
    for wanted in runs:
        folder = out / wanted.run_id
        if not is_finished(folder):
            continue
        try:
            run = load_run(folder)
            if run.config != wanted or run.result.get("run_id") != wanted.run_id:
                raise BadRequest(f"{folder}: holds another run than its name says")
            answers = run.records if run.result.get("test") is not None else None
        except (BadRequest, KeyError) as error:
            reasons[wanted.run_id] = f"{error}; delete {folder} and run it again"
            continue
        row = run_row(run.config, run.result)
        if chosen is not None:
            row["chosen"] = run.config.run_id in chosen
        rows.append(row)
        if answers is not None:
            model = run.config.model
            head = {"run_id": run.config.run_id, "stage": model["name"], "seed": run.config.seed}
            head |= {name: model[name] for name in ("recipe", "depth", "width")}
            table = answers.rename(columns={name: f"query_{name}" for name in head})
            records.setdefault(run.config.task["name"], []).append(table.assign(**head))
    for reason in reasons.values():
        print(f"mnemolab: left out of the tables: {reason}", file=sys.stderr)
    if not rows:
        return _told(reasons, broken, {})
    with held(out / ".collect.lock", wait=True):  # two sweeps that end together add to one table
        written = {"sweep": _add(out, "sweep.parquet", pd.DataFrame(rows))}
        for task, frames in records.items():
            (out / "collected").mkdir(exist_ok=True)
            written[task] = _add(out, f"collected/{task}.parquet", pd.concat(frames, ignore_index=True))
    return _told(reasons, broken, written)


def _told(reasons: Mapping[str, str], broken: list[str] | None, written: dict[str, Path]) -> dict[str, Path]:
    if broken is not None:
        broken += reasons
    elif reasons:
        raise BadRequest(f"{len(reasons)} finished runs cannot be read: {'; '.join(reasons.values())}")
    return written


def run_row(config: RunConfig, result: Mapping[str, Any]) -> dict[str, Any]:
    """One row of a table of runs: run_id, config and result, with dots between levels."""
    found = {f"result.{k}": v for k, v in flat_row(dict(result)).items() if k != "run_id"}
    return {"run_id": config.run_id, **flat_row(config.to_dict()), **found}


def kept_choice(sweep: Sweep, out: str | Path) -> tuple[str, ...] | None:
    """The chosen runs of a sweep whose runs are below `out`, from their results; None when nothing is chosen."""
    if not sweep.choose:
        return None
    folders = {run.run_id: Path(out) / run.run_id for run in sweep.runs}
    results = {name: load_run(folder).result for name, folder in folders.items() if is_finished(folder)}
    chosen = (run.run_id for run in sweep.chosen(results))
    return tuple(name for name in chosen if results.get(name, {}).get("test") is not None)


def _add(out: Path, name: str, table: pd.DataFrame) -> Path:
    """Write `table` to `name` below `out` with the rows that another sweep's runs have there."""
    path = out / name
    if path.exists():
        try:
            before = pd.read_parquet(path)
            others = before[~before["run_id"].isin(set(table["run_id"]))]
            # a sweep that chooses nothing says nothing of another's choice
            if "chosen" in before and "chosen" not in table:
                table = table.assign(chosen=table["run_id"].map(before.set_index("run_id")["chosen"].to_dict()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadRequest(f"{path}: not a table of runs; remove it and run again with --collect") from error
        others = others[[is_finished(out / run) for run in others["run_id"]]]
        if len(others):
            table = pd.concat([others, table], ignore_index=True)
    return write_table(path, table)


def write_table(path: Path, table: pd.DataFrame) -> Path:
    """Write `table` to `path` as Parquet, atomically. Raises BadRequest where it cannot be written."""
    # a task with a field that is a number in one run and text in another cannot be one Parquet column
    for name in table.columns[table.dtypes == object]:
        kinds = {type(value) for value in table[name].dropna()}
        if len(kinds) > 1 and not kinds <= {int, float}:
            table[name] = table[name].map(lambda value: value if value is None else str(value))
    try:
        return write_atomic(path, lambda temporary: table.to_parquet(temporary, index=False))
    except OSError as error:
        raise BadRequest(
            f"{path}: cannot write it ({error.strerror}); free some space and run again with --collect"
        ) from error
