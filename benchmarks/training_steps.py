"""What `mnemolab bench training` measures, after it has checked that what it times is right."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from typing import Any

import torch

from mnemolab.errors import BadRequest
from mnemolab.trainers import RunConfig
from mnemolab.trainers.graph import GraphSteps
from mnemolab.trainers.run import resolve_device
from mnemolab.trainers.steps import EagerSteps, Steps, make_optimiser

__all__ = ["first_step", "measure", "show"]

# Steps a second and seconds to the first step, its kernels not yet compiled, of zoology (commit dbcb60d) on one NVIDIA H200
# with its own trainer at batch 256, length 256, width 128, 2 layers, vocabulary 8192, torch 2.11, fla-core 0.6.0; its data lie
# ready in memory.
ZOOLOGY = {"gpt2": (46.8, 0.7), "deltanet": (42.5, 91.2)}
EPOCH_EXAMPLES = 100_000  # an epoch of zoology's recall configs

PROFILED, KERNELS_KEPT = 20, 40
FIRST = ("first_step_seconds", "warm_first_step_seconds")
CHECK_STEPS = 12
# Both orders of floating-point sums are right; these bounds tell them from a wrong step. bf16 rounds at 2**-8.
CHECK_TOLERANCE = {"fp32": 2e-3, "bf16": 3e-2}


def config(args: argparse.Namespace, stage: str, steps: int = 1_000_000) -> RunConfig:
    """Associative recall in the layout and at the vocabulary of the nearest harness: pairs in a quarter of the tokens."""
    filler = 1
    half = (args.vocabulary - filler - 8) // 2
    pairs = max(1, args.length // 4)
    task = {
        "name": "associative_recall",
        "length": args.length,
        "pairs": pairs,
        "layout": "mqar" if args.length >= 4 * pairs else "context",
        "key_vocabulary": half,
        "value_vocabulary": half,
        "filler_vocabulary": filler,
    }
    return RunConfig.from_dict(
        {
            "task": task,
            "model": {"name": stage, "width": args.width, "depth": args.depth, "heads": 2, "head_dim": args.width // 2},
            "budget": {"steps": steps, "batch_size": args.batch},
            "precision": args.precision,
            "device": args.device,
        }
    )


def make_steps(run: RunConfig, device: torch.device, graph: bool) -> Steps:
    model = run.make_model().to(device).train()
    kind = GraphSteps if graph else EagerSteps
    return kind(model, make_optimiser(model, run, device), run.make_task(), run, device)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """One dict: the shape, one row a stage, ratios, and what the checks found."""
    device = resolve_device(args.device)
    stages = [name for name in args.stages.split(",") if name]
    if not stages:
        raise BadRequest("--stages is empty; name at least one")
    if device.type == "cpu":
        torch.set_num_threads(1)
    rows = []
    for stage in stages:
        rows.append(_stage(args, stage, device))
        # as it is done, so that a run that is cut short still has its rows
        print(json.dumps({"shape": _shape(args), **rows[-1]}), file=sys.stderr, flush=True)
    result: dict[str, Any] = {
        "benchmark": "training",
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"cpu, {torch.get_num_threads()} thread",
        "torch": torch.__version__,
        "precision": args.precision,
        "kernels": args.kernels,
        **_shape(args),
        "stages": rows,
        "checks_passed": all(row["check"] in ("", "passed") for row in rows),
    }
    softmax = next((row for row in rows if row["stage"] == "gpt2"), None)
    loop = lightning_seconds()
    for row in rows:
        row["lightning_overhead"] = loop * row["steps_per_second"]
        if softmax is not None:
            row["against_gpt2"] = row["steps_per_second"] / softmax["steps_per_second"]
        if args.against and row["stage"] in ZOOLOGY:
            row["zoology"] = _against(row, args)
    return result


def _shape(args: argparse.Namespace) -> dict[str, int]:
    return {name: getattr(args, name) for name in ("batch", "length", "width", "depth", "vocabulary")}


def _stage(args: argparse.Namespace, stage: str, device: torch.device) -> dict[str, Any]:
    row: dict[str, Any] = {"stage": stage, "check": ""}
    run = config(args, stage)
    if device.type == "cuda":
        row["check"] = check(run, device)
    if not args.no_first_step:
        row |= _first_step_apart(args, stage)
    for graph in (False, True) if device.type == "cuda" else (False,):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        steps = make_steps(run, device, graph)
        rate = speed(steps, args.seconds)
        name = "graph" if graph else "eager"
        row[f"{name}_steps_per_second"] = rate
        row["how"] = steps.how
        if device.type == "cuda":
            row[f"{name}_busy"], row[f"{name}_kernels"] = device_profile(steps, device, max(KERNELS_KEPT, args.kernels))
            row[f"{name}_peak_bytes"] = torch.cuda.max_memory_allocated(device)
        row["steps_per_second"] = rate
        del steps
        if device.type == "cuda":
            torch.cuda.empty_cache()
    row["tokens_per_second"] = row["steps_per_second"] * args.batch * args.length
    return row


def check(run: RunConfig, device: torch.device) -> str:
    """`passed`, or how graph steps differ from eager ones of the same run, over CHECK_STEPS steps."""
    logs = []
    for graph in (False, True):
        steps = make_steps(run, device, graph)
        steps.advance(CHECK_STEPS)
        logs.append(steps.drain())
    worst = max(abs(a[1] - b[1]) for a, b in zip(*logs, strict=True))
    if [row[0] for row in logs[0]] != [row[0] for row in logs[1]]:
        return "steps are counted differently"
    return "passed" if worst <= CHECK_TOLERANCE[run.precision] else f"losses differ by {worst:.2e}"


def speed(steps: Steps, seconds: float) -> float:
    """Steps a second over about `seconds`, the median of five parts; drained after each, as a run does.

    On the CPU, where one thread works, seconds are this process's own: others on the machine do not count.
    """
    clock = time.process_time if steps.device.type == "cpu" else time.perf_counter

    def timed(count: int) -> float:
        began = clock()
        steps.advance(count)
        steps.drain()
        return (clock() - began) / count

    if isinstance(steps, GraphSteps):  # compile, capture, and begin at the start of a block
        steps.advance(8)
        steps.advance(2 * steps.block - steps.step % steps.block + 1)
    steps.drain()
    timed(1)
    count = max(1, min(800, int(seconds / 5 / timed(2))))
    return 1 / sorted(timed(count) for _ in range(5))[2]


def device_profile(
    steps: Steps, device: torch.device, kept: int = KERNELS_KEPT
) -> tuple[float, list[tuple[str, float, float]]]:
    """From a profile of PROFILED steps: seconds of GPU kernels over wall seconds, and the `kept` costliest kernels as name,
    ms and calls a step. A graph's kernels are seen one by one too, so this says what a step is made of."""
    from torch.profiler import ProfilerActivity, profile

    steps.drain()
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        began = time.perf_counter()
        steps.advance(PROFILED)
        torch.cuda.synchronize(device)
        wall = time.perf_counter() - began
    steps.drain()
    events = sorted(seen.key_averages(), key=lambda event: -event.self_device_time_total)
    kernels = [(e.key[:120], e.self_device_time_total * 1e-3 / PROFILED, e.count / PROFILED) for e in events]
    return min(1.0, sum(ms for _, ms, _ in kernels) * 1e-3 * PROFILED / wall), kernels[:kept]


def lightning_seconds(calls: int = 500) -> float:
    """Processor seconds that Lightning's loop costs each time it asks for a segment of steps, callbacks aside."""
    import lightning.pytorch as lightning
    from lightning.pytorch.callbacks import Callback

    from mnemolab.trainers.module import fit

    class Nothing(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def configure_optimizers(self) -> None:
            pass

        def training_step(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == 0:
                self.began = time.process_time()

    class Stop(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == calls:
                self.seconds = time.process_time() - pl_module.began
                trainer.should_stop = True

    stop = Stop()
    fit(Nothing(), torch.device("cpu"), [stop])
    return stop.seconds / calls


def _first_step_apart(args: argparse.Namespace, stage: str) -> dict[str, float]:
    """Seconds to the first and to the tenth step in a fresh process with an empty kernel cache, and in a second one, `warm_`,
    that finds the first one's kernels; and the seconds before, `import_seconds`, in which the second started and imported."""
    words = {
        name: getattr(args, name) for name in ("batch", "length", "width", "depth", "vocabulary", "precision", "device")
    }
    with tempfile.TemporaryDirectory() as cache:
        cold, warm = (_fresh_process(words, stage, cache) for _ in range(2))
    imports = warm.pop("import_seconds")
    return {**cold, **{f"warm_{name}": seconds for name, seconds in warm.items()}, "import_seconds": imports}


def _fresh_process(words: dict[str, Any], stage: str, cache: str) -> dict[str, Any]:
    """What `first_step` prints in a process of its own, whose compilers keep what they make in the folder `cache`."""
    call = f"first_step({words!r}, {stage!r}, {time.time()!r})"
    done = subprocess.run(
        [sys.executable, "-c", f"from mnemolab.benchmarks.training_steps import first_step; {call}"],
        env={**os.environ, "TRITON_CACHE_DIR": cache, "TORCHINDUCTOR_CACHE_DIR": cache},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BadRequest(f"{stage}: the first step fails: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def first_step(words: dict[str, Any], stage: str, started: float | None = None) -> None:
    """Print, as JSON, the seconds from nothing to one step and to ten (graphs captured), and those before, since the process
    was started at `started` (as `time.time()` tells), in which it imports what a run imports, Lightning too."""
    import_module("mnemolab.trainers.module")
    imports = None if started is None else time.time() - started
    run = config(argparse.Namespace(**words), stage)
    device = resolve_device(run.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    began = time.perf_counter()
    steps = make_steps(run, device, device.type == "cuda")
    steps.advance(1)
    steps.drain()
    first = time.perf_counter() - began
    steps.advance(9)
    steps.drain()
    tenth = time.perf_counter() - began
    print(json.dumps({"first_step_seconds": first, "tenth_step_seconds": tenth, "import_seconds": imports}))


def _against(row: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Steps a second, and seconds for an epoch with kernels to compile (`cold`) and without (`warm`): imports apart on both
    sides. Nobody has measured zoology's first step with its kernels compiled, so there it counts as none."""
    rate, first = ZOOLOGY[row["stage"]]
    steps = EPOCH_EXAMPLES / args.batch
    found: dict[str, Any] = {"steps_per_second": rate, "speedup": row["steps_per_second"] / rate}
    for name, start, own in (("cold", first, "tenth_step_seconds"), ("warm", 0.0, "warm_tenth_step_seconds")):
        if own in row:
            theirs, ours = start + steps / rate, row[own] + steps / row["steps_per_second"]
            found[name] = {"epoch_seconds": theirs, "our_epoch_seconds": ours, "speedup": theirs / ours}
    return found


def show(result: dict[str, Any]) -> None:
    shape = ", ".join(f"{name} {result[name]}" for name in ("batch", "length", "width", "depth", "vocabulary"))
    print(f"{result['device']}, torch {result['torch']}, {result['precision']}; {shape}")
    print(f"{'stage':<18}{'steps/s':>10}{'Mtokens/s':>11}{'of gpt2':>9}{'eager':>10}{'first step':>12}{'warm':>8}  how")
    for row in result["stages"]:
        first, warm = (f"{row[name]:.1f} s" if name in row else "-" for name in FIRST)
        ratio = f"{row['against_gpt2']:.2f}" if "against_gpt2" in row else "-"
        print(
            f"{row['stage']:<18}{row['steps_per_second']:>10.1f}{row['tokens_per_second'] / 1e6:>11.2f}{ratio:>9}"
            f"{row['eager_steps_per_second']:>10.1f}{first:>12}{warm:>8}  {row['how']} {row['check']}"
        )
        if "import_seconds" in row:
            print(f"{'':<18}before that a fresh process starts and imports for {row['import_seconds']:.1f} s")
        print(f"{'':<18}Lightning's loop, were it asked after every step: {row['lightning_overhead']:.1%} of a step")
        if "graph_busy" in row:
            print(f"{'':<18}GPU busy {row['graph_busy']:.0%} (eager {row['eager_busy']:.0%}), peak "
                  f"{row['graph_peak_bytes'] / 2**20:.0f} MiB (eager {row['eager_peak_bytes'] / 2**20:.0f})")  # fmt: skip
        for name, ms, calls in row.get("graph_kernels", [])[: result["kernels"]]:
            print(f"{'':<18}{ms:8.3f} ms {calls:6.1f}x  {name}")
        if "zoology" in row:
            other = row["zoology"]
            print(f"{'':<18}zoology: {other['steps_per_second']:.1f} steps/s, {other['speedup']:.1f}x slower")
            for kind, said in (("cold", "compiling first"), ("warm", "nothing to compile")):
                if kind in other:
                    epoch = other[kind]
                    print(
                        f"{'':<18}its epoch, {said}: {epoch['epoch_seconds']:.1f} s, ours {epoch['our_epoch_seconds']:.1f} s "
                        f"({epoch['speedup']:.1f}x)"
                    )
