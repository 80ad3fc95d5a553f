"""`mnemolab bench NAME`: the measurements that the project's claims of speed rest on."""

import argparse
from importlib import import_module

SUMMARY = "measure kernels, training, generation, decoding"

# Name -> module with SUMMARY, `add(parser)` and `run(args) -> exit code`; it imports torch only inside `run`.
# Every benchmark takes --json and then prints one JSON value on stdout and nothing else.
BENCHMARKS = {
    "kernels": "mnemolab.benchmarks.kernels",
    "generation": "mnemolab.benchmarks.generation",
    "training": "mnemolab.benchmarks.training",
    "decode": "mnemolab.benchmarks.decode",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = parser.add_subparsers(dest="benchmark", metavar="NAME", required=True)
    for name, where in BENCHMARKS.items():
        module = import_module(where)
        sub = names.add_parser(name, help=module.SUMMARY, description=module.SUMMARY)
        sub.add_argument("--json", action="store_true", help="one JSON value on stdout instead of tables")
        module.add(sub)


def run(args: argparse.Namespace) -> int:
    return import_module(BENCHMARKS[args.benchmark]).run(args)
