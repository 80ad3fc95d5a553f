"""`mnemolab train`: one run, from the command line or a YAML file."""

import argparse
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from mnemolab.commands._fields import read_value, split_fields

SUMMARY = "train one model on one task"
TAKES_FIELDS = True
SECTIONS = ("task", "model", "optimiser", "budget")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--task", metavar="NAME", help="see `mnemolab list tasks`")
    parser.add_argument("--model", metavar="NAME", help="stage of the lineage; see `mnemolab list models`")
    parser.add_argument("--config", metavar="FILE", help="YAML of a run; flags override it")
    parser.add_argument("--steps", metavar="N", help="optimiser steps, short for --budget.steps")
    parser.add_argument("--seed", metavar="N", help="seeds the weights and the data streams")
    parser.add_argument("--precision", metavar="P", help="fp32 or bf16")
    parser.add_argument("--scoring", metavar="S", help="how test queries are read: forked, sequential or both")
    parser.add_argument("--device", metavar="D", help="auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--devices", metavar="N", type=int, default=1, help="GPUs (or CPU processes) that share this run"
    )
    parser.add_argument("--out", metavar="DIR", default="runs", help="run folders go below it (default: runs)")
    parser.add_argument("--json", action="store_true", help="print result.json on stdout")
    parser.epilog = _epilog(getattr(parser, "words", ()))


def _epilog(words: Sequence[str]) -> str:
    """Names of further fields; those of a task or model only when the command line names one."""
    lines = [
        "Any other field is --section.field VALUE, with section task, model, optimiser or budget, as in",
        "  mnemolab train --task key_overwrite --model kda --task.versions 4 --model.width 64 --optimiser.learning_rate 1e-3",
        "Name a task or a model beside --help and its fields are listed here.",
    ]
    if "--help" not in words and "-h" not in words:
        return "\n".join(lines)
    named, _ = _names().parse_known_args(list(words))
    if named.task is None and named.model is None:
        return "\n".join(lines)
    from mnemolab.registry import load_plugins
    from mnemolab.trainers.config import Budget, Optimiser

    load_plugins(named.plugin)
    parts: list[tuple[str, Any]] = []
    if named.task is not None:
        from mnemolab.tasks import TASKS

        parts.append(("task", TASKS[named.task]()))
    if named.model is not None:
        from mnemolab.models import model_config

        config = model_config(named.model, vocab_size=64)
        parts += [("model", part) for part in (config, config.experts, *config.mixers) if part is not None]
    seen: set[str] = set()
    for section, values in [*parts, ("optimiser", Optimiser()), ("budget", Budget())]:
        for line, name in _field_lines(section, values):
            if name not in seen:
                lines.append(line)
                seen.add(name)
    return "\n".join(lines)


def _field_lines(section: str, values: Any) -> Iterator[tuple[str, str]]:
    """(line, dotted name) of every field of a dataclass object, with its value as the default."""
    from mnemolab.fields import describe

    hidden = ("name", "family", "recipe", "vocab_size", "mixers", "experts", "factory")
    for row in describe(type(values)):
        if row["name"] in hidden or "meaning" not in row:
            continue
        name = f"{section}.{row['name']}"
        choices = f" ({', '.join(map(str, row['choices']))})" if row["choices"] else ""
        text = f"{row['meaning']}{choices}; default {getattr(values, row['name'])}"
        yield textwrap.fill(text, 116, initial_indent=f"  --{name:<26} ", subsequent_indent=" " * 31), name


def _names() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--task")
    parser.add_argument("--model")
    parser.add_argument("--plugin", action="append", default=[])
    return parser


def read_config(args: argparse.Namespace) -> dict[str, Any]:
    """Nested plain values from --config, then the flags. Raises BadRequest; imports no torch."""
    from mnemolab.errors import BadRequest
    from mnemolab.models.lineage import STAGES
    from mnemolab.tasks import TASKS
    from mnemolab.tasks.presets import refuse_preset

    values: dict[str, Any] = {}
    if args.config:
        from mnemolab.trainers.config import read_yaml

        values = read_yaml(args.config)
        if not isinstance(values, dict):
            raise BadRequest(f"--config {args.config}: must be a mapping with task and model")
    for section, given in (("task", args.task), ("model", args.model)):
        held = values[section] = values.get(section) or {}
        if not isinstance(held, dict):
            raise BadRequest(f"--config {args.config}: {section} must be a mapping with a name")
        if given is not None and held.get("name") != given:
            values[section] = {"name": given}  # another class: the file's fields are not its
        if "name" not in values[section]:
            raise BadRequest(f"--{section} is missing; see `mnemolab list {section}s`")
    refuse_preset(values["task"]["name"])
    TASKS.entry(values["task"]["name"])  # unknown names fail before anything heavy is imported
    STAGES.entry(values["model"]["name"])
    for section in SECTIONS:
        if not isinstance(values.get(section, {}), dict):
            raise BadRequest(f"--config {args.config}: {section} must be a mapping of fields")
    for section, fields in split_fields(args.rest, SECTIONS).items():
        values.setdefault(section, {}).update(fields)
    if args.steps is not None:
        if any(word.startswith("--budget.steps") for word in args.rest):
            raise BadRequest("--steps and --budget.steps are the same field; give one of them")
        values.setdefault("budget", {})["steps"] = read_value(args.steps)
    for name in ("seed", "precision", "scoring", "device"):
        if getattr(args, name) is not None:
            values[name] = read_value(getattr(args, name))
    return values


def run(args: argparse.Namespace) -> int:
    from mnemolab.errors import BadRequest

    values = read_config(args)
    if args.devices < 1:
        raise BadRequest(f"--devices {args.devices}: use at least 1")
    from mnemolab.files import output_folder
    from mnemolab.trainers.config import RunConfig

    config = RunConfig.from_dict(values)
    output_folder(args.out)
    from mnemolab.trainers.run import train

    done = train(config, args.out, progress=True, devices=args.devices, plugins=args.plugin)
    if args.json:
        import json

        print(json.dumps(done.result, indent=2, sort_keys=True))
    else:
        test = done.result["test"]
        print(
            f"{config.label}: test accuracy {test['accuracy']:.3f}, stale answers {test['stale']:.3f}", file=sys.stderr
        )
        print(done.folder)
    return 0
