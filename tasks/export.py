"""Examples and their query table as files, for use with any other model."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from mnemolab.errors import BadRequest
from mnemolab.files import output_folder, write_atomic, write_json
from mnemolab.tasks.base import Batch, Split, Task

__all__ = ["FORMATS", "example_rows", "export", "query_rows"]

FORMATS = ("parquet", "jsonl")
_PIECE = 4096


def example_rows(batch: Batch, first: int = 0) -> list[dict[str, Any]]:
    """One dict an example: its number, `inputs` and `targets` (-100 where nothing is scored)."""
    pairs = zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True)
    return [{"example": first + j, "inputs": inputs, "targets": targets} for j, (inputs, targets) in enumerate(pairs)]


def query_rows(batch: Batch, task: Task, first: int = 0) -> list[dict[str, Any]]:
    """One dict a used query slot: example, slot, every query column, `condition` by name, `stale` without padding."""
    columns = {name: values.tolist() for name, values in batch.queries.items()}
    rows = []
    for j in range(len(batch)):
        for q, position in enumerate(columns["position"][j]):
            if position < 0:
                continue
            row = {name: values[j][q] for name, values in columns.items()}
            row["condition"] = task.conditions[row["condition"]]
            row["stale"] = [token for token in row["stale"] if token >= 0]
            rows.append({"example": first + j, "query": q, **row})
    return rows


def _pieces(task: Task, n: int, split: Split, seed: int) -> Iterator[tuple[list[dict], list[dict]]]:
    for first in range(0, n, _PIECE):
        batch = task.sample(torch.arange(first, min(first + _PIECE, n)), split=split, seed=seed)
        yield example_rows(batch, first), query_rows(batch, task, first)


def _write_parquet(paths: list[Path], task: Task, n: int, split: Split, seed: int) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    with ExitStack() as stack:
        writers: list[Any] = []
        for piece in _pieces(task, n, split, seed):
            tables = [pa.Table.from_pylist(rows) for rows in piece]
            if not writers:
                # an empty `stale` list in the first piece has no type of its own
                schemas = [_typed(table.schema) for table in tables]
                writers = [
                    stack.enter_context(parquet.ParquetWriter(p, s)) for p, s in zip(paths, schemas, strict=True)
                ]
            for writer, table in zip(writers, tables, strict=True):
                writer.write_table(table.cast(writer.schema))


def _typed(schema: Any) -> Any:
    import pyarrow as pa

    empty = schema.get_field_index("stale")
    return schema if empty < 0 else schema.set(empty, pa.field("stale", pa.list_(pa.int64())))


def _write_jsonl(paths: list[Path], task: Task, n: int, split: Split, seed: int) -> None:
    with ExitStack() as stack:
        files = [stack.enter_context(open(path, "w", encoding="utf-8")) for path in paths]
        for piece in _pieces(task, n, split, seed):
            for file, rows in zip(files, piece, strict=True):
                file.writelines(json.dumps(row) + "\n" for row in rows)


def export(task: Task, path: Path, *, n: int, split: Split, seed: int, format: str) -> list[Path]:
    """Write examples 0 .. n - 1 of the stream to `path`, their queries to `NAME.queries.*`, and `NAME.task.json`.

    The last holds fields, version, fingerprint and token ranges. Each file is whole or absent. Returns the three paths.
    Raises BadRequest when the folder cannot be written.
    """
    path = Path(path)
    if path.is_dir():
        raise BadRequest(f"--out {path}: is a folder; name a file in it, as in {path / ('examples.' + format)}")
    output_folder(path.parent)
    queries, about = path.with_suffix(f".queries{path.suffix}"), path.with_suffix(".task.json")
    write = _write_parquet if format == "parquet" else _write_jsonl
    write_atomic(path, lambda one: write_atomic(queries, lambda two: write([one, two], task, n, split, seed)) and None)
    vocabulary = task.vocabulary
    description = {
        "task": {"name": task.name, **asdict(task)},
        "version": task.version,
        "fingerprint": task.fingerprint(),
        "split": split,
        "seed": seed,
        "examples": n,
        "conditions": list(task.conditions),
        "vocabulary": {
            "size": vocabulary.size,
            "ranges": {kind: [tokens.start, tokens.stop] for kind, tokens in vocabulary.ranges.items()},
            "special": {vocabulary.text(token): token for token in vocabulary.special},
        },
    }
    return [path, queries, write_json(about, description)]
