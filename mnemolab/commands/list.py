"""`mnemolab list`: what there is, by name; with --json also the fields, sizes and sources."""

import argparse
import json
from importlib import import_module
from typing import Any

from mnemolab.registry import Registry

SUMMARY = "names of tasks, models, kernels, probes, claims and figures"

# kind -> the registry that holds its names, and the function that says more of one name (for --json)
KINDS = {
    "tasks": ("mnemolab.tasks:TASKS", "mnemolab.commands.list:describe_task"),
    "models": ("mnemolab.models:STAGES", "mnemolab.models.lineage:describe"),
    "kernels": ("mnemolab.kernels:KERNELS", None),
    "probes": ("mnemolab.analysis:PROBES", None),
    "claims": ("mnemolab.analysis.claims:CLAIMS", "mnemolab.analysis.claims.catalogue:describe"),
    "figures": ("mnemolab.analysis:FIGURES", None),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", choices=tuple(KINDS), help="one kind only")
    parser.add_argument("--json", action="store_true", help="one JSON value: name, summary, fields")


def describe_task(name: str) -> dict[str, Any]:
    """Version, axes and fields of a task."""
    from mnemolab.fields import describe
    from mnemolab.tasks import TASKS

    task = TASKS[name]
    return {
        "version": task.version,
        "axes": list(task.axes),
        "conditions": list(task.conditions),
        "fields": describe(task),
    }


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def run(args: argparse.Namespace) -> int:
    kinds = (args.kind,) if args.kind else tuple(KINDS)
    found: dict[str, list[dict[str, Any]]] = {}
    for kind in kinds:
        registry: Registry = _load(KINDS[kind][0])
        more = KINDS[kind][1]
        found[kind] = [
            {"name": name, "summary": registry.summary(name), **(_load(more)(name) if args.json and more else {})}
            for name in registry
        ]
    if args.json:
        print(json.dumps(found[args.kind] if args.kind else found, indent=2))
        return 0
    width = max((len(row["name"]) for rows in found.values() for row in rows), default=0)
    for kind, rows in found.items():
        if len(found) > 1:
            print(kind)
        for row in rows:
            print(f"  {row['name']:<{width}}  {row['summary']}".rstrip())
    return 0
