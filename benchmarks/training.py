"""`mnemolab bench training`: optimiser steps a second, generation of the examples included."""

import argparse
from importlib import import_module
from pathlib import Path

from mnemolab.benchmarks.outcome import deliver

SUMMARY = "training: steps/s, tokens/s, peak memory, time to the first step, eager against graph, per stage"
STAGES = ("gpt2", "linear_attention", "deltanet", "gated_deltanet", "kda")

# examples, tokens, width, vocabulary: small enough for two cores, and the nearest harness's shape on a GPU
SHAPES = {
    "cpu": {"batch": 64, "length": 128, "width": 64, "vocabulary": 192},
    "cuda": {"batch": 256, "length": 256, "width": 128, "vocabulary": 8192},
}


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=tuple(SHAPES), default="cpu")
    parser.add_argument("--stages", default=",".join(STAGES), help="comma-separated stages")
    parser.add_argument("--precision", choices=("fp32", "bf16"), help="default: bf16 on cuda, fp32 on cpu")
    for name in ("batch", "length", "width", "vocabulary"):
        parser.add_argument(
            f"--{name}", type=int, help=f"default: {SHAPES['cpu'][name]} on cpu, {SHAPES['cuda'][name]} on cuda"
        )
    parser.add_argument("--depth", type=int, default=2, help="layers (default 2)")
    parser.add_argument("--seconds", type=float, default=3.0, help="timed seconds a stage (default 3)")
    parser.add_argument(
        "--kernels", type=int, default=0, metavar="N", help="show the N costliest GPU kernels of a graph step"
    )
    parser.add_argument(
        "--no-first-step",
        action="store_true",
        help="skip the time to the first step, in fresh processes: one that compiles its kernels, one that finds them",
    )
    parser.add_argument(
        "--against",
        choices=("zoology-numbers",),
        help="compare with measured speeds of another harness, same shape and GPU",
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="append the result to FILE as one JSON line")


def run(args: argparse.Namespace) -> int:
    for name, value in SHAPES[args.device].items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    args.precision = args.precision or ("bf16" if args.device == "cuda" else "fp32")
    module = import_module("mnemolab.benchmarks.training_steps")
    result = module.measure(args)
    deliver(result, args, module.show)
    return 0 if result["checks_passed"] else 1


def main() -> int:
    """The same as a program: `python -m mnemolab.benchmarks.training --device cuda --json`."""
    parser = argparse.ArgumentParser(description=SUMMARY)
    parser.add_argument("--json", action="store_true", help="one JSON value on stdout instead of a table")
    add(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
