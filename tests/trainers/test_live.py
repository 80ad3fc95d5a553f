"""What a person sees, with and without a terminal."""

import io
import os
import re

from mnemolab.trainers.events import Failed, Finished, Progress, Skipped, Started
from mnemolab.trainers.live import RunBar, SweepTable, clock
from mnemolab.trainers.state import TrainState


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


EVENTS = [
    Skipped("a", "kda, seed 0"),
    Started("b", "kda, seed 1", 0),
    Started("c", "kda, seed 2", 1),
    Progress("b", 50, 100, 0.25),
    Failed("c", "kda, seed 2", "ValueError: bad", "traceback"),
    Finished("b", "kda, seed 1", {"test": {"accuracy": 0.5}}),
]


def test_one_line_an_event_without_a_terminal():
    stream = io.StringIO()
    table = SweepTable(4, stream)
    for event in EVENTS:
        table(event)
    table.close()
    assert stream.getvalue().splitlines() == [
        "[1/4] skipped  a  kda, seed 0: finished before",
        "[1/4] started  b  kda, seed 1",
        "[1/4] started  c  kda, seed 2",
        "[2/4] failed   c  kda, seed 2: ValueError: bad",
        "[3/4] done     b  kda, seed 1: accuracy 0.500",
    ]


def test_a_table_on_a_terminal(monkeypatch):
    stream = Terminal()
    now = iter(float(second) for second in range(0, 1000, 10))
    monkeypatch.setattr("mnemolab.trainers.live.time.monotonic", lambda: next(now))
    table = SweepTable(4, stream)
    for event in EVENTS[:4]:
        table(event)
    shown = stream.getvalue()
    assert "done 1  running 2  failed 0  left 1" in shown
    assert "50%  kda, seed 1  accuracy 0.25" in shown
    assert "runs/min" in shown
    assert "to go" in shown
    for event in EVENTS[4:]:
        table(event)
    table.close()
    assert "failed   c  kda, seed 2: ValueError: bad" in stream.getvalue()
    assert "done 2  running 0  failed 1  left 1" in stream.getvalue()


def test_the_bar_of_a_run_redraws_one_line(tiny):
    stream = Terminal()
    show = RunBar(tiny(), stream)
    for step in (0, 3, 6):
        show(TrainState(step=step, validation={"accuracy": 0.5, "loss": 1.0}))
    assert stream.getvalue().count("\r") == 3
    assert stream.getvalue().count("\n") == 1
    assert "step 6/6" in stream.getvalue()


def test_no_row_is_wider_than_the_terminal(tiny, monkeypatch):
    """A row that wraps would be redrawn one line too low, and leave a trail of itself."""
    columns = 60
    monkeypatch.setattr("mnemolab.trainers.live.os.get_terminal_size", lambda fd: os.terminal_size((columns, 24)))
    stream = Terminal()
    monkeypatch.setattr(stream, "fileno", lambda: 2, raising=False)
    table = SweepTable(1, stream)
    table(Started("a", "gated_deltanet on key_overwrite, seed 0, versions 4, learning_rate 0.003, width 128", 0))
    table(Progress("a", 1, 2, 0.5))
    table.close()
    RunBar(tiny(), stream)(TrainState(step=3, validation={"accuracy": 0.5, "loss": 1.0}))
    rows = re.sub(r"\x1b\[\d*[A-Z]|\r", "\n", stream.getvalue()).splitlines()
    assert any(rows) and max(map(len, rows)) < columns
    assert "done 0  running 1  failed 0  left 0" in stream.getvalue()
    assert "validation accuracy" in stream.getvalue()


def test_clock():
    assert (clock(75), clock(3700), clock(0.4)) == ("1:15", "1:01:40", "0:00")
