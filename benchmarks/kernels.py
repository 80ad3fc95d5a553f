"""`mnemolab bench kernels`: the recurrence on one device, as tables or JSON."""

import argparse
from importlib import import_module
from pathlib import Path

from mnemolab.benchmarks.outcome import deliver

SUMMARY = "the memory recurrence: time, ratios to attention and to the plain loop, chunk sizes, FLOPs"

# device -> module with `measure(args) -> dict` and `show(result)`; it imports torch
DEVICES = {
    "cpu": "mnemolab.benchmarks.kernels_cpu",
    "cuda": "mnemolab.benchmarks.kernels_gpu",
}


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=tuple(DEVICES), default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    parser.add_argument("--repeats", type=int, default=15, help="interleaved rounds of each measurement (default 15)")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall",
        help="wall seconds, or processor seconds of this process: steadier on a machine that others use",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="small shapes, to see that everything runs")
    parser.add_argument("--ours", action="store_true", help="cuda: leave the other side out")
    parser.add_argument("--ops", help="cuda: comma-separated ops (default: all)")
    parser.add_argument("--sizes", help="cuda: mini, large or shapes BxTxHxD, comma-separated (default: mini,large)")
    parser.add_argument("--compiled", action="store_true", help="cuda: also time torch.compile of the plain form")
    parser.add_argument(
        "--compile-workers", type=int, default=0, metavar="N",
        help="cuda: compile what the other side's autotuner tries in N processes first (default 0: as it comes)",
    )  # fmt: skip
    parser.add_argument("--save", type=Path, metavar="FILE", help="append the result to FILE as one JSON line")


def run(args: argparse.Namespace) -> int:
    module = import_module(DEVICES[args.device])
    result = module.measure(args)
    deliver(result, args, module.show)
    return 0
