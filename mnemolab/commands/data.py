"""`mnemolab data TASK`: export examples and their query table, or print a contact sheet."""

import argparse
import sys
from pathlib import Path

SUMMARY = "write or show the examples of a task and their query table, for use with any other model"
TAKES_FIELDS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "task", metavar="TASK", help="name of a task or of a preset in configs/tasks; see mnemolab list tasks"
    )
    parser.add_argument("--n", type=int, default=1000, help="examples to write (default 1000)")
    parser.add_argument("--format", choices=("parquet", "jsonl"), help="default: from --out, else parquet")
    parser.add_argument("--split", choices=("train", "validation", "test"), default="train", help="default train")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default TASK.SPLIT.FORMAT in this folder")
    parser.add_argument("--show", type=int, metavar="N", help="print N examples to read instead of writing files")
    parser.epilog = "Fields of the task: --task.FIELD VALUE, as in --task.versions 8"


def run(args: argparse.Namespace) -> int:
    from mnemolab.commands._fields import split_fields
    from mnemolab.errors import BadRequest
    from mnemolab.tasks.presets import task_or_preset

    _check_order(args.task, args.rest)
    fields = split_fields(args.rest, sections=("task",)).get("task", {})
    for name, value, low in (("--n", args.n, 1), ("--show", args.show, 1), ("--seed", args.seed, 0)):
        if value is not None and value < low:
            raise BadRequest(f"{name} {value} is too small; the least is {low}")
    if args.seed >= 2**31:
        raise BadRequest(f"--seed {args.seed} is too large; the most is {2**31 - 1}")
    suffix = args.out.suffix.removeprefix(".") if args.out else ""
    kind = args.format or suffix or "parquet"
    if (args.out and (suffix or kind) != kind) or kind not in ("parquet", "jsonl"):
        raise BadRequest(f"--out {args.out}: the ending must be .parquet or .jsonl and agree with --format")
    task = task_or_preset(args.task, fields)
    if args.show is not None:
        return _show(task, args.show, args.split, args.seed)
    from mnemolab.tasks.export import export

    path = args.out or Path(f"{args.task}.{args.split}.{kind}")
    path = path if path.suffix else path.with_suffix(f".{kind}")
    missing = not path.parent.exists()
    for written in export(task, path, n=args.n, split=args.split, seed=args.seed, format=kind):
        print(written)
    if missing:
        print(f"mnemolab data: made the folder {path.parent}", file=sys.stderr)
    return 0


def _check_order(first: str, rest: list[str]) -> None:
    """A field before the task leaves its value where the task should stand; say so. Raises BadRequest."""
    from mnemolab.errors import BadRequest
    from mnemolab.tasks import TASKS
    from mnemolab.tasks.presets import preset_names

    known = [*TASKS, *preset_names()]
    if first in known:
        return
    named = next((word for word in rest if word in known), None)
    fields = [word for word in rest if word != named]
    bare = any(
        word.startswith("--task.") and "=" not in word and following.startswith("--")
        for word, following in zip(fields, [*fields[1:], "--"], strict=False)
    )
    if named or bare:
        raise BadRequest(f"name the task first: mnemolab data {' '.join([named or 'TASK', *fields, first])}")


def _show(task, count: int, split: str, seed: int) -> int:
    import shutil

    import torch

    from mnemolab.tasks.sheet import sheet

    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((100, 24)).columns if terminal else 100
    batch = task.sample(torch.arange(count), split=split, seed=seed)
    print(sheet(task, batch, colour=terminal, width=width))
    return 0
