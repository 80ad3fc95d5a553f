"""What a person sees while runs go on: a bar or a table on a terminal, one line an event elsewhere. All on stderr."""

import os
import sys
import time
from typing import Any, TextIO

from mnemolab.trainers.config import RunConfig
from mnemolab.trainers.events import Event, Failed, Finished, Progress, Skipped, Started
from mnemolab.trainers.state import TrainState

__all__ = ["RunBar", "SweepTable", "clock"]

WIDTH = 28
LINE_SECONDS = 10.0  # between progress lines of one run where there is no terminal


def clock(seconds: float) -> str:
    """75 -> '1:15', 3700 -> '1:01:40'."""
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def bar(share: float) -> str:
    full = round(share * WIDTH)
    return "█" * full + "·" * (WIDTH - full)


def fitted(text: str, stream: TextIO) -> str:
    """`text` cut to one row of the terminal: a row that wraps cannot be redrawn in place."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # no size to be had
        columns = 0
    return text[: (columns or 80) - 1]


class RunBar:
    """Draws one run from its `TrainState`."""

    def __init__(self, config: RunConfig, stream: TextIO | None = None):
        self.config, self.stream = config, stream or sys.stderr
        self.began = time.monotonic()
        self.first: int | None = None
        self.last_line = 0.0

    def __call__(self, state: TrainState) -> None:
        steps = self.config.budget.steps
        now = time.monotonic()
        if self.first is None:
            self.first, self.began = state.step, now
        done = state.step >= steps or state.stopped is not None
        rate = (state.step - self.first) / max(now - self.began, 1e-9)
        left = f", {clock((steps - state.step) / rate)} left" if rate > 0 and not done else ""
        seen = "" if state.validation is None else f"  validation accuracy {state.validation['accuracy']:.3f}"
        text = f"step {state.step}/{steps}  {rate:.1f} steps/s{left}{seen}"
        if self.stream.isatty():
            row = fitted(f"{text}  {bar(state.step / steps)}", self.stream)
            print(f"\r\x1b[2K{row}", end="\n" if done else "", file=self.stream, flush=True)
        elif done or now - self.last_line >= LINE_SECONDS:
            self.last_line = now
            print(f"{self.config.label}: {text}", file=self.stream, flush=True)


class SweepTable:
    """Call it with every event. On a terminal: a block that redraws itself; elsewhere one line an event."""

    def __init__(self, total: int, stream: TextIO | None = None):
        self.total, self.stream = total, stream or sys.stderr
        self.began = time.monotonic()
        self.done = self.failed = self.skipped = 0
        self.running: dict[str, tuple[str, float, float | None]] = {}
        self.drawn = 0
        self.last = 0.0

    def __call__(self, event: Event) -> None:
        note = self._count(event)
        if not self.stream.isatty():
            if note:
                print(f"[{self.done + self.skipped + self.failed}/{self.total}] {note}", file=self.stream, flush=True)
            return
        if isinstance(event, Failed):
            self._erase()
            print(note, file=self.stream)
        if note or time.monotonic() - self.last > 0.2:
            self.last = time.monotonic()
            self._draw()

    def _count(self, event: Event) -> str:
        """Book the event; the line that tells it, empty for mere progress."""
        if isinstance(event, Started):
            self.running[event.run_id] = (event.label, 0.0, None)
            return f"started  {event.run_id}  {event.label}"
        if isinstance(event, Progress):
            if event.run_id in self.running:
                label = self.running[event.run_id][0]
                self.running[event.run_id] = (label, event.step / event.steps, event.accuracy)
            return ""
        self.running.pop(event.run_id, None)
        if isinstance(event, Finished):
            self.done += 1
            test = event.result.get("test") or event.result.get("validation") or {}
            return f"done     {event.run_id}  {event.label}: accuracy {test.get('accuracy', float('nan')):.3f}"
        if isinstance(event, Skipped):
            self.skipped += 1
            return f"skipped  {event.run_id}  {event.label}: finished before"
        self.failed += 1
        return f"failed   {event.run_id}  {event.label}: {event.error}"

    def _draw(self) -> None:
        self._erase()
        over = self.done + self.failed + self.skipped
        worked = self.done + sum(share for _, share, _ in self.running.values())
        elapsed = time.monotonic() - self.began
        left = max(0, self.total - over - len(self.running))
        rate = worked / elapsed if elapsed else 0.0
        rest = (
            f"{clock((self.total - over - (worked - self.done)) / rate)} to go"
            if rate > 0 and over < self.total
            else ""
        )
        share = (over + worked - self.done) / max(1, self.total)
        counts = f"done {self.done + self.skipped}  running {len(self.running)}  failed {self.failed}  left {left}"
        lines = [f"{counts}  {60 * rate:.1f} runs/min  {rest}  {bar(share)}"]
        for label, share, accuracy in self.running.values():
            seen = "" if accuracy is None else f"  accuracy {accuracy:.2f}"
            lines.append(f"  {share:4.0%}  {label}{seen}")
        print("\n".join(fitted(line, self.stream) for line in lines), file=self.stream, flush=True)
        self.drawn = len(lines)

    def _erase(self) -> None:
        if self.drawn:
            print(f"\x1b[{self.drawn}A\x1b[J", end="", file=self.stream)
            self.drawn = 0

    def close(self) -> Any:
        """Leave the last state of the table on the screen."""
        if self.stream.isatty():
            self._draw()
            self.drawn = 0
