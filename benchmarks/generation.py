"""`mnemolab bench generation`: examples a second of every task, at about 256 tokens."""

import argparse
from pathlib import Path
from typing import Any

from mnemolab.benchmarks.outcome import deliver

SUMMARY = "examples/s of every task at 64 pairs in 256 tokens or its like, checked against the oracle first"

# label -> task and fields: what 256 tokens hold
SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "associative_recall": (
        "associative_recall",
        {"pairs": 64, "length": 256, "key_vocabulary": 4096, "value_vocabulary": 4096},
    ),
    "associative_recall, mqar": (
        "associative_recall",
        {"pairs": 64, "length": 256, "layout": "mqar", "key_vocabulary": 4096, "value_vocabulary": 4096},
    ),
    "associative_recall, interleaved": (
        "associative_recall",
        {
            "pairs": 64,
            "length": 256,
            "layout": "interleaved",
            "lags": 32,
            "key_vocabulary": 512,
            "value_vocabulary": 512,
        },
    ),
    "key_overwrite": (
        "key_overwrite",
        {"keys": 32, "versions": 4, "lags": 64, "length": 256, "key_vocabulary": 256, "value_vocabulary": 512},
    ),
    "topic_switch": ("topic_switch", {"pairs": 32, "blocks": 3, "length": 256, "topic_values": 128}),
    "random_copy": ("random_copy", {"items": 128, "length": 256, "alphabet": 256}),
    "needle": ("needle", {"keys": 8, "queries": 4, "length": 256, "haystack": "random"}),
    "needle, markov": ("needle", {"keys": 8, "queries": 4, "length": 256, "haystack": "markov"}),
    "selective_retention": (
        "selective_retention",
        {"persistent": 16, "volatile": 16, "rewrites": 4, "span": 48, "length": 256, "value_vocabulary": 256},
    ),
    "record_update": (
        "record_update",
        {"entities": 3, "updates": 4, "lags": 20, "length": 256, "attribute_values": 64},
    ),
    "stack": ("stack", {"stacks": 8, "pushes": 8, "length": 256, "depth": 8, "value_vocabulary": 256}),
    "directed_forgetting": (
        "directed_forgetting",
        {"pairs": 40, "length": 256, "key_vocabulary": 256, "value_vocabulary": 256},
    ),
}
# examples/s: the first label's target, and the others' within a factor of 3 of it
TARGETS = {"cpu": 30_000, "cuda": 1_000_000}
BATCHES = {"cpu": 8192, "cuda": 1 << 17}


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=tuple(TARGETS), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1: the operations are small)")
    parser.add_argument(
        "--batch", type=int, help=f"examples a call (default {BATCHES['cpu']}, on cuda {BATCHES['cuda']})"
    )
    parser.add_argument("--repeats", type=int, default=5, help="calls; the fastest counts (default 5)")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="wall seconds, or processor seconds of this process over its threads, on a machine that others use",
    )
    parser.add_argument("--tasks", help="comma-separated tasks (default all)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="append the result to FILE as one JSON line")


def run(args: argparse.Namespace) -> int:
    result = measure(args)
    deliver(result, args, _show)
    return 0 if all(row["correct"] for row in result["rows"]) else 1


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """device, threads, batch, clock, torch, and `rows`: label, task, examples_per_second, target, met, correct."""
    import torch

    from mnemolab.errors import BadRequest, unknown
    from mnemolab.tasks import make_task

    if args.device == "cuda" and not torch.cuda.is_available():
        raise BadRequest("--device cuda: this machine has no CUDA device; use --device cpu")
    for name, value in (("--threads", args.threads), ("--batch", args.batch), ("--repeats", args.repeats)):
        if value is not None and value < 1:
            raise BadRequest(f"{name} {value} is too small; the least is 1")
    wanted = args.tasks.split(",") if args.tasks else [name for name, _ in SIZES.values()]
    for name in wanted:
        if name not in (known := [task for task, _ in SIZES.values()]):
            raise unknown("task", name, known)
    batch = args.batch or BATCHES[args.device]
    threads = torch.get_num_threads()
    torch.set_num_threads(args.threads)
    rows = []
    try:
        for label, (name, fields) in SIZES.items():
            if name in wanted:
                task = make_task(name, **fields)
                rate = batch / _seconds(task, args.device, batch, args.repeats, args.clock, args.threads)
                target = TARGETS[args.device] / (1 if label == "associative_recall" else 3)
                rows.append(
                    {
                        "label": label,
                        "task": {"name": name, **fields},
                        "examples_per_second": rate,
                        "target": target,
                        "met": rate >= target,
                        "correct": _correct(task, args.device),
                    }
                )
    finally:
        torch.set_num_threads(threads)
    device = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    return {
        "benchmark": "generation",
        "device": device,
        "threads": args.threads,
        "batch": batch,
        "clock": args.clock,
        "torch": torch.__version__,
        "rows": rows,
    }


def _correct(task: Any, device: str) -> bool:
    """The oracle agrees on 256 examples, and the device makes the same bits as the CPU."""
    import torch

    indices = torch.arange(256) + 12345
    mine = task.sample(indices, split="test", seed=1)
    theirs = task.sample(indices, split="test", seed=1, device=device).to("cpu")
    same = torch.equal(mine.inputs, theirs.inputs) and torch.equal(mine.targets, theirs.targets)
    same = same and all(torch.equal(column, theirs.queries[name]) for name, column in mine.queries.items())
    return same and torch.equal(task.solve(mine.inputs), mine.targets)


def _seconds(task: Any, device: str, batch: int, repeats: int, clock: str, threads: int) -> float:
    """Seconds of the fastest call, after one that warms up."""
    from time import perf_counter, process_time

    import torch

    now = process_time if clock == "cpu" else perf_counter
    times = []
    for call in range(repeats + 1):
        indices = torch.arange(call * batch, (call + 1) * batch, device=device)
        start = now()
        task.sample(indices, device=device)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((now() - start) / (threads if clock == "cpu" else 1))
    return min(times[1:])


def _show(result: dict[str, Any]) -> None:
    print(
        f"{result['device']}, {result['threads']} CPU threads, {result['batch']} examples a call, {result['clock']} clock"
    )
    for row in result["rows"]:
        verdict = "met" if row["met"] else "missed"
        right = "" if row["correct"] else "  WRONG: differs from the oracle or between devices"
        print(
            f"  {row['label']:<32} {row['examples_per_second']:>12,.0f} /s   target {row['target']:>9,.0f} {verdict}{right}"
        )


def main() -> int:
    """The same as a program: `python -m mnemolab.benchmarks.generation --device cuda --json`."""
    parser = argparse.ArgumentParser(description=SUMMARY)
    parser.add_argument("--json", action="store_true", help="one JSON value on stdout instead of a table")
    add(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
