"""Finished runs as tables: one row a run, one row a test query, one row a training step that was logged.

Big tables stay small: integers are 32 bit, logs 32-bit floats, names categorical, and the list column `stale` becomes
its length, `n_stale` (10 million queries take about 1.5 GB).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from mnemolab.errors import BadRequest

__all__ = [
    "RUN_COLUMNS",
    "Depth",
    "Study",
    "arms",
    "complete",
    "find_runs",
    "load_metrics",
    "load_records",
    "load_runs",
    "one_scoring",
    "require",
    "tidy",
]

# What every row of records and metrics says about its run. `arm` is what is compared: all of the config but the seed.
RUN_COLUMNS = ("run_id", "task", "stage", "arm", "recipe", "seed", "depth", "width")

# Where the fields of a config are, and whether they are named although others already tell the runs apart.
_SETTINGS = (
    ("model.", True),
    ("task.", True),
    ("optimiser.", False),
    ("budget.", False),
    ("precision", False),
    ("scoring", False),
)

_Paths = str | Path | Iterable[str | Path]


def find_runs(paths: _Paths) -> list[Path]:
    """Folders of finished runs at or below `paths`, sorted. Raises BadRequest when a path is missing or holds none."""
    found: set[Path] = set()
    for path in [paths] if isinstance(paths, str | Path) else list(paths):
        folder = Path(path)
        if not folder.is_dir():
            raise BadRequest(f"FOLDER {folder}: no such folder; give a run folder or a folder of runs")
        here = {file.parent for file in folder.rglob("result.json") if (file.parent / "config.yaml").exists()}
        if not here:
            raise BadRequest(
                f"FOLDER {folder}: no finished run in it (no result.json); train first, or name the right folder"
            )
        found |= here
    return sorted(found)


def load_runs(paths: _Paths) -> pd.DataFrame:
    """One row a run: `folder`, the columns of RUN_COLUMNS, the config flattened (`model.width`) and the result (`test.accuracy`)."""
    rows = []
    for folder in find_runs(paths):
        config, result = _config(folder), _json(folder / "result.json")
        model = config.get("model", {})
        row = {
            "folder": str(folder),
            "run_id": str(result.get("run_id", folder.name)),
            "task": config.get("task", {}).get("name"),
            "stage": model.get("name"),
            "recipe": model.get("recipe", "matched"),
            "seed": config.get("seed", 0),
            "depth": model.get("depth"),
            "width": model.get("width"),
            "scoring": config.get("scoring"),
            **_flat(config),
        }
        # the config asks for a device, perhaps "auto"; the result says which it was
        row |= {key: value for key, value in _flat(result).items() if key not in row or key == "device"}
        rows.append(row)
    runs = pd.DataFrame(rows).drop_duplicates("run_id", ignore_index=True)
    runs.insert(4, "arm", arms(runs))
    return runs


def arms(runs: pd.DataFrame, apart: Iterable[str] = ()) -> pd.Series:
    """What is compared: everything in a run's config but the seed, named by the stage and whatever varies beside it, as in
    `kda, depth 2`. Runs of one arm and task differ by their seeds alone and are replicates.

    A field is named where it varies among the runs of a stage and task: the model's and the task's own fields always, the
    rest (learning rate, steps ...) unless those before it already tell the runs apart. `apart`: columns that are left out,
    for curves along that very factor. A learning rate that was tried but not chosen is no reason to name the chosen one.
    """
    apart = tuple(apart)
    every = _named(runs, apart)
    read = runs["test.accuracy"].notna() if "test.accuracy" in runs else pd.Series(True, index=runs.index)
    if read.all() or not read.any():
        return every
    # a candidate whose test stream was never read keeps its full name, unless it is a setting that was read with other seeds
    short = dict(zip(zip(runs["task"][read], every[read], strict=True), _named(runs[read], apart), strict=True))
    names = [short.get(key, key[1]) for key in zip(runs["task"], every, strict=True)]
    return pd.Series(names, index=runs.index, dtype=object)


def _named(runs: pd.DataFrame, apart: Iterable[str]) -> pd.Series:
    left_out = {"model.name", "task.name", *apart}
    label = runs["stage"].astype(str)
    for prefix, needed in _SETTINGS:
        for column in (c for c in runs.columns if c.startswith(prefix) and c not in left_out):
            text = runs[column].map(_text)
            if prefix == "task.":  # a field that one task varies, and another lacks, is no part of the other's arms
                groups = text.groupby([runs["task"], runs["stage"]], dropna=False).nunique()
                tasks = set(groups[groups > 1].index.get_level_values(0))
                label = label.where(~runs["task"].isin(tasks), label + _said(column, text))
            elif _varies([runs["task"], runs["stage"]], text) and (needed or _varies([runs["task"], label], text)):
                label = label + _said(column, text)
    return label


def load_metrics(paths: _Paths) -> pd.DataFrame:
    """Learning curves: the rows of every metrics.jsonl (`step`, `split`, `loss`, `accuracy` ...) with RUN_COLUMNS."""
    runs = load_runs(paths)
    frames = []
    for _, run in runs.iterrows():
        file = Path(run["folder"]) / "metrics.jsonl"
        lines = _lines(file)
        if lines:
            frames.append(pd.DataFrame(lines).assign(**{c: run[c] for c in RUN_COLUMNS}))
    if not frames:
        return pd.DataFrame(columns=[*RUN_COLUMNS, "step", "split", "loss", "accuracy"])
    return pd.concat(frames, ignore_index=True)


def load_records(paths: _Paths, columns: Iterable[str] | None = None) -> pd.DataFrame:
    """One row a test query of every finished run at or below `paths`, with RUN_COLUMNS and the task fields that vary.

    `columns` limits what is read from records.parquet (RUN_COLUMNS are always there). `condition` becomes a name where the
    task is known; a query column that bears the name of a run column (the needle's `depth`) becomes `query_depth`. Raises
    BadRequest when a path is missing or holds no finished run.
    """
    return _records(load_runs(paths), columns)


def _records(runs: pd.DataFrame, columns: Iterable[str] | None = None) -> pd.DataFrame:
    varying = [
        c for c in runs.columns if c.startswith("task.") and runs[c].map(_text).nunique() > 1 and c != "task.name"
    ]
    tables = []
    for _, run in runs.iterrows():
        file = Path(run["folder"]) / "records.parquet"
        if not file.exists() and pd.isna(run.get("test.accuracy")):
            continue  # the test stream of a candidate that validation did not choose is never read
        if not file.exists():
            raise BadRequest(f"{file}: missing, though the run is finished; train it again with the same --out")
        try:
            table = _small(pq.read_table(file, columns=list(columns) if columns is not None else None))
        except pa.ArrowInvalid as error:
            raise BadRequest(
                f"{file}: not a Parquet table ({str(error).splitlines()[0]}); train the run again"
            ) from error
        for name in (*RUN_COLUMNS, *varying):
            if name in table.column_names:  # a query column of that name, as the needle's depth
                table = table.rename_columns({name: f"query_{name}"})
            table = table.append_column(name, _constant(run[name], table.num_rows))
        tables.append(table)
    if not tables:
        raise BadRequest("no run here has records: the test stream of none of them was read")
    table = pa.concat_tables(tables, promote_options="permissive").unify_dictionaries()
    return _name_conditions(table.to_pandas(self_destruct=True, split_blocks=True))


def tidy(frame: pd.DataFrame, **defaults: Any) -> pd.DataFrame:
    """A table from elsewhere (a Parquet of foreign records) with RUN_COLUMNS filled in: one run, or as its columns say."""
    filled = {"run_id": "foreign", "task": "unknown", "stage": "foreign", "recipe": "foreign", "seed": 0} | defaults
    frame = frame.copy(deep=False)
    for name in RUN_COLUMNS:
        if name not in frame:
            frame[name] = frame["stage"] if name == "arm" else filled.get(name, -1)
    if "n_stale" not in frame and "stale" in frame:
        frame["n_stale"] = [int(sum(v >= 0 for v in values)) for values in frame["stale"]]
    return frame.drop(columns="stale", errors="ignore")


def one_scoring(records: pd.DataFrame) -> pd.DataFrame:
    """Rows of `forked` scoring where a table holds both, so that no query counts twice."""
    if "scoring" not in records or records["scoring"].nunique() < 2:
        return records
    forked = (records["scoring"] == "forked").to_numpy()
    both = records.loc[forked, "run_id"].unique()
    return records[forked | ~records["run_id"].isin(both).to_numpy()]


def require(frame: pd.DataFrame, columns: Iterable[str], what: str) -> None:
    """Raise BadRequest unless `frame` has rows and all of `columns`; `what` names the analysis."""
    missing = [c for c in columns if c not in frame.columns]
    if missing:
        raise BadRequest(
            f"{what}: the records lack the column {', '.join(missing)}; have: {', '.join(map(str, frame.columns))}"
        )
    if frame.empty:
        raise BadRequest(f"{what}: no query is left to analyse; check the filter, or the task's number of queries")


def complete(frame: pd.DataFrame, columns: Iterable[str], what: str) -> None:
    """`require`, and raise BadRequest where a number of `columns` is missing (NaN) in some row."""
    require(frame, columns := list(columns), what)
    for name in columns:
        lacking = int(frame[name].isna().sum())
        if lacking:
            raise BadRequest(
                f"{what}: {name} is missing in {lacking} of {len(frame)} queries; fill it in, or leave them out"
            )


@dataclass(frozen=True)
class Depth:
    """How far probes open the models: runs of each arm (0: all), test sequences that are traced, test sequences answered under
    interventions, and the token of the context at which the state is wiped (None: its middle)."""

    runs: int = 3
    sequences: int = 48
    examples: int = 128
    wipe_at: int | None = None

    def __post_init__(self):
        for name, least in (("runs", 0), ("sequences", 1), ("examples", 1)):
            if getattr(self, name) < least:
                raise BadRequest(f"{name}={getattr(self, name)}: must be at least {least}")


@dataclass(frozen=True)
class Study:
    """The tables of one folder of runs, each read when first used; `depth` is for the probes that open models."""

    paths: tuple[Path, ...]
    depth: Depth = Depth()

    @classmethod
    def of(cls, paths: _Paths, depth: Depth | None = None) -> "Study":
        given = [paths] if isinstance(paths, str | Path) else paths
        return cls(tuple(Path(p) for p in given), depth or Depth())

    @cached_property
    def runs(self) -> pd.DataFrame:
        return load_runs(self.paths)

    @cached_property
    def all_records(self) -> pd.DataFrame:
        """Forked and sequential rows alike."""
        return _records(self.runs)

    @cached_property
    def records(self) -> pd.DataFrame:
        """One row a query: the forked one where a run was scored both ways."""
        return one_scoring(self.all_records)

    @cached_property
    def by_task(self) -> dict[str, pd.DataFrame]:
        """`records` of each task, without the columns that only other tasks have."""
        names = self.records["task"].unique()
        if len(names) == 1:
            return {str(names[0]): self.records}
        parts = {str(name): self.records[(self.records["task"] == name).to_numpy()] for name in sorted(map(str, names))}
        return {name: part.dropna(axis=1, how="all") for name, part in parts.items()}

    @cached_property
    def metrics(self) -> pd.DataFrame:
        return load_metrics(self.paths)


def _small(table: pa.Table) -> pa.Table:
    """32-bit numbers, categorical text, and `n_stale` in place of the list column `stale`."""
    for name in table.column_names:
        column = table[name]
        kind = column.type
        at = table.column_names.index(name)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            if name == "stale":
                table = table.append_column("n_stale", _count_used(column))
            table = table.remove_column(table.column_names.index(name))
        elif pa.types.is_int64(kind):
            table = table.set_column(at, name, column.cast(pa.int32()))
        elif pa.types.is_float64(kind):
            table = table.set_column(at, name, column.cast(pa.float32()))
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            table = table.set_column(at, name, column.cast(pa.string()).dictionary_encode())
    return table


def _count_used(column: pa.ChunkedArray) -> pa.Array:
    """How many entries of each list are tokens (>= 0)."""
    whole = column.combine_chunks()
    whole = whole.cast(pa.list_(whole.type.value_type))
    used = whole.flatten().to_numpy(zero_copy_only=False) >= 0
    rows = np.repeat(np.arange(len(whole)), np.diff(whole.offsets.to_numpy()))
    return pa.array(np.bincount(rows, weights=used, minlength=len(whole)).astype(np.int16))


def _constant(value: Any, rows: int) -> pa.Array:
    if isinstance(value, str):
        return pa.DictionaryArray.from_arrays(np.zeros(rows, dtype=np.int32), pa.array([value]))
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return pa.nulls(rows)
    if isinstance(value, float | np.floating) and not float(value).is_integer():
        return pa.array(np.full(rows, value, dtype=np.float32))
    if isinstance(value, int | float | np.integer | np.floating):
        return pa.array(np.full(rows, int(value), dtype=np.int32))
    return _constant(_text(value), rows)


def _name_conditions(frame: pd.DataFrame) -> pd.DataFrame:
    """Condition codes to names, task by task; codes of unknown tasks stay numbers in text."""
    from mnemolab.tasks import TASKS

    if "condition" not in frame or not pd.api.types.is_integer_dtype(frame["condition"]):
        return frame
    texts: list[str] = []
    codes = np.zeros(len(frame), dtype=np.int16)
    for task in frame["task"].unique():
        names: list[str] = list(TASKS[task].conditions) if task in TASKS else []
        mine = (frame["task"] == task).to_numpy()
        for code in np.unique(frame["condition"].to_numpy()[mine]):
            text = names[code] if 0 <= code < len(names) else str(code)
            if text not in texts:
                texts.append(text)
            codes[mine & (frame["condition"].to_numpy() == code)] = texts.index(text)
    frame["condition"] = pd.Categorical.from_codes(codes, dtype=pd.CategoricalDtype(texts))
    return frame


def _config(folder: Path) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((folder / "config.yaml").read_text(), Loader=loader) or {}


def _lines(file: Path) -> list[dict[str, Any]]:
    """Rows of a metrics.jsonl; a last line that a crash cut short is left out."""
    rows: list[dict[str, Any]] = []
    texts = file.read_text().split("\n") if file.exists() else []
    for number, text in enumerate(texts, 1):
        try:
            rows += [json.loads(text)] if text.strip() else []
        except json.JSONDecodeError as error:
            if number < len(texts):
                raise BadRequest(f"{file}, line {number}: not JSON; train the run again") from error
    return rows


def _json(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text())
    except json.JSONDecodeError as error:
        raise BadRequest(
            f"{file}: not JSON ({error.msg} in line {error.lineno}); remove the run and train it again"
        ) from error


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "default"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _varies(within: list[pd.Series], text: pd.Series) -> bool:
    """Whether `text` has several values among rows that agree in all of `within`."""
    return bool((text.groupby(within, dropna=False).nunique() > 1).any())


def _said(column: str, text: pd.Series) -> pd.Series:
    said = ", " + column.rpartition(".")[2].replace("_", " ") + " " + text
    return said.where(text != "default", "")  # what is as the stage has it goes without saying
