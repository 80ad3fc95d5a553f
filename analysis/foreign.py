"""Answers of a model that was not trained here, to data that `mnemolab data` exported, as records."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from mnemolab.analysis.records import RUN_COLUMNS, Study, require, tidy
from mnemolab.errors import BadRequest
from mnemolab.tasks import make_task
from mnemolab.tasks.outcomes import OUTCOMES, classify

__all__ = ["foreign_records", "foreign_study", "read_table"]

_PIECE = 4096


def read_table(path: Path) -> pd.DataFrame:
    """A Parquet, JSON-lines or CSV file. Raises BadRequest when it is missing, of another kind, or not readable."""
    readers = {".parquet": pd.read_parquet, ".jsonl": lambda p: pd.read_json(p, lines=True), ".csv": pd.read_csv}
    if path.suffix not in readers:
        raise BadRequest(f"{path}: predictions must be .parquet, .jsonl or .csv")
    if not path.is_file():
        raise BadRequest(f"{path}: no such file")
    try:
        return readers[path.suffix](path)
    except (ValueError, OSError) as error:
        raise BadRequest(f"{path}: not readable as {path.suffix} ({str(error).splitlines()[0]})") from error


def foreign_records(predictions: pd.DataFrame, about: Path) -> pd.DataFrame:
    """Records from predictions and the NAME.task.json that was exported beside the data.

    `predictions`: columns example, query, prediction (a token), and if there are several models or seeds also stage, seed
    or run_id; other columns (log_odds_stale ...) are kept. Raises BadRequest for missing columns, queries that the data do
    not have, or the wrong task version.
    """
    require(predictions, ["example", "query", "prediction"], "predictions")
    try:
        said = json.loads(about.read_text())
        task = make_task(**said["task"])
        version, _, _, _ = (said[name] for name in ("version", "examples", "split", "seed"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadRequest(f"{about}: not a NAME.task.json of `mnemolab data` ({error})") from error
    if task.version != version:
        raise BadRequest(f"{about}: made by version {version} of {task.name}, this is {task.version}; export again")
    frame = tidy(_whole_numbers(predictions), task=task.name)
    for name in ("stage", "run_id"):
        frame[name] = frame[name].astype(str)
    if "run_id" not in predictions:
        frame["run_id"] = frame["stage"] + "-" + frame["seed"].astype(str)
    doubled = frame.duplicated(["run_id", "example", "query"])
    if doubled.any():
        row = frame[doubled].iloc[0]
        raise BadRequest(
            f"predictions: example {row['example']}, query {row['query']} is there twice; add a column stage or seed"
        )
    if frame["example"].min() < 0 or frame["example"].max() >= said["examples"]:
        raise BadRequest(
            f"predictions: some examples lie outside 0 to {said['examples'] - 1}, which is what was exported"
        )
    parts = []
    for first in range(0, int(said["examples"]), _PIECE):
        index = torch.arange(first, min(first + _PIECE, int(said["examples"])))
        here = frame[(frame["example"] >= first) & (frame["example"] < first + _PIECE)]
        if len(here):
            parts.append(_joined(here, task, task.sample(index, split=said["split"], seed=said["seed"]), first))
    return pd.concat(parts, ignore_index=True)


def foreign_study(predictions: Path, about: Path | None = None) -> Study:
    """A Study of foreign predictions. `about` defaults to the only *.task.json in the folder of the predictions."""
    if about is None:
        found = sorted(predictions.parent.glob("*.task.json"))
        if len(found) != 1:
            raise BadRequest(f"{predictions.parent}: {len(found)} files NAME.task.json; say which with --data")
        about = found[0]
    elif about.name.endswith(".task.json") is False:
        about = about.with_suffix(".task.json")  # the exported examples were named
    records = foreign_records(read_table(predictions), about)
    study = Study((predictions,))
    runs = records[list(RUN_COLUMNS)].drop_duplicates("run_id").reset_index(drop=True)
    accuracy = records.groupby("run_id", observed=True)["correct"].mean()
    vars(study).update(
        all_records=records,
        runs=runs.assign(**{"test.accuracy": runs["run_id"].map(accuracy)}),
        metrics=pd.DataFrame(columns=[*RUN_COLUMNS, "step", "split", "loss", "accuracy"]),
    )
    return study


def _whole_numbers(predictions: pd.DataFrame) -> pd.DataFrame:
    """`predictions` with example, query and prediction as integers; raises BadRequest for text, NaN and fractions."""
    whole = {}
    for name, words in (("example", "a number"), ("query", "a number"), ("prediction", "a token number")):
        column = predictions[name]
        if column.dtype.kind not in "iuf":
            raise BadRequest(
                f"predictions: column {name} holds {column.dtype}, such as {column.iloc[0]!r}; it must hold {words}"
            )
        values = column.to_numpy(dtype=float, na_value=np.nan)
        lacking = int(np.isnan(values).sum())
        if lacking:
            raise BadRequest(f"predictions: {name} is missing in {lacking} of {len(column)} rows; leave those rows out")
        if (values != np.round(values)).any() or np.abs(values).max(initial=0) > 2**53:
            raise BadRequest(
                f"predictions: column {name} holds {values[values != np.round(values)][:1]}; it must hold {words}"
            )
        whole[name] = values.astype(np.int64)
    return predictions.assign(**whole)


def _joined(frame: pd.DataFrame, task, batch, first: int) -> pd.DataFrame:
    """`frame` with the query columns, outcome, correct, stale_age, n_stale and chance of its queries."""
    row, slot = (frame["example"] - first).to_numpy(), frame["query"].to_numpy()
    position = batch.queries["position"].numpy()
    if (slot < 0).any() or (slot >= position.shape[1]).any() or (position[row, slot] < 0).any():
        raise BadRequest("predictions: a query number does not exist in the data; use those of NAME.queries")
    out = frame.reset_index(drop=True)
    for name, column in batch.queries.items():
        if name not in ("stale", "condition"):
            out[f"query_{name}" if name in RUN_COLUMNS else name] = column.numpy()[row, slot]
    out["condition"] = np.array(task.conditions)[batch.queries["condition"].numpy()[row, slot]]
    stale = batch.queries["stale"].numpy()[row, slot]  # (rows,M)
    prediction = out["prediction"].to_numpy()
    out["outcome"] = np.array(OUTCOMES)[_codes(batch, task, row, slot, prediction)]
    out["correct"] = prediction == out["target"].to_numpy()
    hit = (stale == prediction[:, None]) & (stale >= 0)
    out["stale_age"] = np.where(hit.any(1) & ~out["correct"], hit.argmax(1) + 1, 0)
    out["n_stale"] = (stale >= 0).sum(1)
    out["chance"] = task.chance(batch).numpy()[row, slot]
    out["scoring"] = "foreign"
    return out


def _codes(batch, task, row: np.ndarray, slot: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """Outcome codes (rows,). One pass of `classify` answers one prediction a slot, so runs take turns."""
    codes = np.empty(len(row), dtype=np.int64)
    turn = pd.Series(row * batch.queries["position"].shape[1] + slot).groupby(row * 10**6 + slot).cumcount().to_numpy()
    for number in range(int(turn.max()) + 1):
        mine = turn == number
        table = torch.full_like(batch.queries["position"], -1)
        table[row[mine], slot[mine]] = torch.as_tensor(prediction[mine])
        codes[mine] = classify(batch, table, task.vocabulary).numpy()[row[mine], slot[mine]]
    return codes
