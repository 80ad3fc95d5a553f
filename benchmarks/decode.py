"""`mnemolab bench decode`: time and bytes of one more token, against the context that lies behind it."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mnemolab.benchmarks.outcome import deliver

SUMMARY = "decoding: milliseconds a token, tokens/s and state bytes against context, per stage"
STAGES = ("lstm", "gpt2", "linear_attention", "mamba2", "gla", "deltanet", "gated_deltanet", "kda", "kimi_linear")
# sequences decoded together, contexts, layers of width 64 or 128
SHAPES: dict[str, dict[str, Any]] = {
    "cpu": {"batch": 8, "contexts": "64,256,1024,4096", "width": 64, "depth": 4},
    "cuda": {"batch": 64, "contexts": "1024,4096,16384,65536", "width": 128, "depth": 4},
}
PIECE = 512  # tokens of the context fed at once
VOCABULARY = 64


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=tuple(SHAPES), default="cpu")
    parser.add_argument("--stages", default=",".join(STAGES), help="comma-separated stages")
    for name in ("batch", "width", "depth"):
        parser.add_argument(
            f"--{name}", type=int, help=f"default: {SHAPES['cpu'][name]} on cpu, {SHAPES['cuda'][name]} on cuda"
        )
    parser.add_argument("--contexts", help=f"comma-separated tokens; default {SHAPES['cpu']['contexts']} on cpu")
    parser.add_argument("--tokens", type=int, default=8, help="tokens a round (default 8)")
    parser.add_argument("--repeats", type=int, default=7, help="interleaved rounds, whose median counts (default 7)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="append the result to FILE as one JSON line")


def run(args: argparse.Namespace) -> int:
    for name, value in SHAPES[args.device].items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    result = measure(args)
    deliver(result, args, _show)
    return 0


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """device, torch, batch, width, depth and `rows`: stage, context, milliseconds, tokens_per_second, state_bytes a sequence.

    Contexts of one stage take turns within a round, so that their ratios do not depend on what else the machine does.
    """
    import torch

    from mnemolab.benchmarks.timing import interleaved
    from mnemolab.errors import BadRequest
    from mnemolab.models import make_model

    contexts = _contexts(args)
    if args.device == "cuda" and not torch.cuda.is_available():
        raise BadRequest("--device cuda: this machine has no CUDA device; use --device cpu")
    rows = []
    for stage in args.stages.split(","):
        size = {"width": args.width, "depth": args.depth, "heads": args.width // 32, "head_dim": 32}
        # decoding goes on from the context, round after round
        longest = contexts[-1] + args.tokens * (args.repeats + 2)
        recipe = "published" if stage in ("rnn", "lstm", "gru") else "matched"
        model = make_model(stage, vocab_size=VOCABULARY, recipe=recipe, max_length=longest, **size)
        model = model.to(args.device).eval()
        cases, states = {}, {}
        with torch.no_grad():
            for context in contexts:
                states[context] = _after(model, context, args.batch, args.device)
                cases[str(context)] = _decode(model, states[context], args.batch, args.tokens, args.device)
            bytes_held = {context: _bytes(state) / args.batch for context, state in states.items()}
            times = interleaved(cases, args.repeats)
        for context in contexts:
            seconds = times[str(context)].median / args.tokens
            rows.append({
                "stage": stage, "context": context, "milliseconds": seconds * 1e3,
                "tokens_per_second": args.batch / seconds, "state_bytes": bytes_held[context],
            })  # fmt: skip
    return {
        "benchmark": "decode",
        "device": args.device if args.device == "cpu" else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        **{name: getattr(args, name) for name in ("batch", "width", "depth", "tokens", "repeats")},
        "rows": rows,
    }


def _contexts(args: argparse.Namespace) -> list[int]:
    from mnemolab.errors import BadRequest

    for name in ("batch", "width", "depth", "tokens", "repeats"):
        if getattr(args, name) < 1:
            raise BadRequest(f"--{name} {getattr(args, name)} is too small; the least is 1")
    if args.width % 32:
        raise BadRequest(f"--width {args.width} is no multiple of 32, the channels of a head")
    try:
        contexts = sorted({int(text) for text in args.contexts.split(",")})
    except ValueError:
        contexts = []
    if not contexts or contexts[0] < 1:
        raise BadRequest(f"--contexts {args.contexts}: give whole numbers of at least 1, separated by commas")
    return contexts


def _after(model: Any, context: int, batch: int, device: str) -> Any:
    """The state after `context` random tokens, fed in pieces."""
    import torch

    tokens = torch.randint(VOCABULARY, (batch, context), generator=torch.Generator().manual_seed(0)).to(device)
    state = None
    for piece in tokens.split(PIECE, 1):
        _, state = model.features(piece, state, return_state=True)
    return state


def _decode(model: Any, state: Any, batch: int, count: int, device: str) -> Callable[[], None]:
    import torch

    tokens = torch.zeros(batch, dtype=torch.int64, device=device)
    held = [state]

    def decode() -> None:
        for _ in range(count):
            logits, held[0] = model.step(tokens, held[0])
            tokens.copy_(logits.argmax(-1))
        if device == "cuda":
            torch.cuda.synchronize()

    return decode


def _bytes(state: Any) -> int:
    """Bytes of what a state remembers; counters of position are not memory, and a cache counts what it holds."""
    from mnemolab.models.state import map_state

    sizes: list[int] = []

    def note(tensor: Any) -> Any:
        sizes.append(tensor.numel() * tensor.element_size() if tensor.is_floating_point() else 0)
        return tensor

    map_state(state, note)
    return sum(sizes)


def _show(result: dict[str, Any]) -> None:
    print(
        f"{result['device']}, torch {result['torch']}, {result['batch']} sequences together, width {result['width']}, "
        f"{result['depth']} layers; medians of {result['repeats']} interleaved rounds\n"
    )
    contexts = sorted({row["context"] for row in result["rows"]})
    print(
        f"{'':18s}{'milliseconds a token after':^{9 * len(contexts)}s}   {'state, KiB a sequence':^{10 * len(contexts)}s}"
    )
    print(
        f"{'stage':18s}"
        + "".join(f"{context:9d}" for context in contexts)
        + "   "
        + "".join(f"{c:10d}" for c in contexts)
    )
    for stage in dict.fromkeys(row["stage"] for row in result["rows"]):
        here = [row for row in result["rows"] if row["stage"] == stage]
        print(
            f"{stage:18s}" + "".join(f"{row['milliseconds']:9.2f}" for row in here) + "   "
            + "".join(f"{row['state_bytes'] / 1024:10.1f}" for row in here)
        )  # fmt: skip
