"""One run, from its config to a finished folder; killed at any moment, it goes on from its last checkpoint."""

import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from mnemolab.errors import BadRequest, MnemolabError, RunFailed
from mnemolab.files import held, output_folder, write_json
from mnemolab.trainers import folder as places
from mnemolab.trainers.config import RunConfig
from mnemolab.trainers.folder import Run, is_finished, load_run, write_config
from mnemolab.trainers.state import TrainState
from mnemolab.trainers.stops import Busy, Stopped

__all__ = ["resolve_device", "train"]

Tell = Callable[[TrainState], None]


def train(
    config: RunConfig,
    out: str | Path = "runs",
    progress: bool = False,
    loggers: Iterable[Any] = (),
    *,
    devices: int = 1,
    read_test: bool = True,
    tell: Tell | None = None,
    stop: Callable[[], bool] | None = None,
    plugins: Sequence[str] = (),
) -> Run:
    """Train `config` in `<out>/<run_id>` and return the finished run. A finished run is returned as it is.

    `progress` draws a bar on stderr. `loggers` are Lightning loggers that get every row of metrics as well. `read_test`
    False leaves the test stream unread (result.json then has `test: null`); a later call reads it. `tell(state)` is called
    a few times a second; when `stop()` becomes true the run saves itself and raises `Stopped`. `devices` above 1
    shares every batch among that many GPUs (or CPU processes), which import the modules named by `plugins` first.

    Raises BadRequest before any step (sizes, device, folder), Busy when another process holds the run, NotFiniteRun when
    loss or gradient is not finite, RunFailed for what else goes wrong; `failure.json` then says what.
    """
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise BadRequest(f"devices={devices!r}: use a whole number, at least 1")
    device = resolve_device(config.device)
    if device.type == "cuda" and devices > torch.cuda.device_count():
        raise BadRequest(f"devices={devices}: this machine has {torch.cuda.device_count()} GPUs")
    if devices > 1 and config.device.startswith("cuda:"):
        raise BadRequest(f"device={config.device!r} names one GPU and devices={devices} asks for more; use device=cuda")
    if config.budget.batch_size % devices:
        raise BadRequest(f"batch_size={config.budget.batch_size} does not split over {devices} devices evenly")
    folder = output_folder(Path(output_folder(out)) / config.run_id)
    shown = _with_bar(config, tell, progress)
    with held(folder / places.LOCK) as mine:
        if not mine:
            raise Busy(f"{folder}: another process is at this run; wait for it, or stop it")
        if is_finished(folder):
            run = load_run(folder)
            if run.config != config or run.result.get("run_id") != config.run_id:
                raise BadRequest(f"{folder}: holds another run than its name says; delete the folder and run it again")
            if run.result.get("test") is not None or not read_test:
                for left in (places.FAILURE, places.RESUME):  # of a kill right after result.json
                    (folder / left).unlink(missing_ok=True)
                return run
        try:
            _clear_leftovers(folder)
            write_config(folder, config)
            with _ctrl_c(stop) as asked:
                _run(config, folder, device, list(loggers), devices, read_test, shown, asked, plugins)
        except (KeyboardInterrupt, SystemExit):
            raise
        except Exception as error:
            raise _recorded(folder, error) from error
        (folder / places.FAILURE).unlink(missing_ok=True)
        return load_run(folder)


def resolve_device(name: str) -> torch.device:
    """`auto` is the first GPU, or the CPU. Raises BadRequest for a GPU that is not there."""
    count = torch.cuda.device_count()
    if name == "auto":
        return torch.device("cuda", 0) if count else torch.device("cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= count:
        there = (
            f"this machine has cuda:0 to cuda:{count - 1}"
            if count
            else "this machine has no usable GPU; use cpu or auto"
        )
        raise BadRequest(f"device={name!r}: {there}")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def _run(
    config: RunConfig,
    folder: Path,
    device: torch.device,
    loggers: list[Any],
    devices: int,
    read_test: bool,
    tell: Tell | None,
    stop: Callable[[], bool] | None,
    plugins: Sequence[str],
) -> None:
    from mnemolab.trainers.fitting import fit_run
    from mnemolab.trainers.result import finish, read_test_stream

    if is_finished(folder):  # trained before, test stream not read yet
        read_test_stream(folder, config, device)
        return
    began = time.monotonic()
    fitted = fit_run(config, folder, device, loggers, devices, tell, stop, plugins=plugins)
    finish(folder, config, device, fitted, read_test, time.monotonic() - began)


@contextmanager
def _ctrl_c(stop: Callable[[], bool] | None) -> Iterator[Callable[[], bool]]:
    """While a run trains, Ctrl-C or SIGTERM asks it to save itself; KeyboardInterrupt or exit code 143 follows.

    A second one does not wait. Lightning would answer both by ending the process, SIGTERM with exit code 0. Only Python's
    own handlers are replaced, and they are put back.
    """
    pressed: list[int] = []
    asked = lambda: bool(pressed) or (stop is not None and stop())
    # a shell's background jobs ignore SIGINT and still hear SIGTERM
    own = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    here = threading.current_thread() is threading.main_thread()
    replaced = {number: handler for number, handler in own.items() if here and signal.getsignal(number) is handler}

    def press(number: int, frame: Any) -> None:
        if pressed:
            raise SystemExit(128 + number) if number == signal.SIGTERM else KeyboardInterrupt
        pressed.append(number)

    for number in replaced:
        signal.signal(number, press)
    try:
        yield asked
    except (Stopped, SystemExit):  # Lightning hears SIGTERM too, and leaves with SystemExit(None)
        if pressed[:1] == [signal.SIGTERM]:
            print("terminated; started again, the run goes on from its last checkpoint", file=sys.stderr)
            raise SystemExit(128 + signal.SIGTERM) from None
        if pressed:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)


def _clear_leftovers(folder: Path) -> None:
    """Temporary files of a process that was killed while writing."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def _recorded(folder: Path, error: Exception) -> Exception:
    """Write `failure.json` (best effort: the disk may be full) and give back the error to raise."""
    if isinstance(error, Stopped):
        return error
    kind = type(error).__name__
    row = {
        "error": f"{kind}: {error}",
        "traceback": "".join(traceback.format_exception(error)),
        **getattr(error, "details", {}),
    }
    try:
        write_json(folder / places.FAILURE, row)
    except OSError as second:
        print(f"mnemolab: {folder / places.FAILURE}: cannot write it ({second.strerror})", file=sys.stderr)
    if isinstance(error, MnemolabError):
        return error
    if isinstance(error, OSError):
        return RunFailed(f"{folder}: cannot write there ({error.strerror}); free some space and start the run again")
    return RunFailed(f"{folder}: {kind}: {' '.join(str(error).split())}")


def _with_bar(config: RunConfig, tell: Tell | None, progress: bool) -> Tell | None:
    if not progress:
        return tell
    from mnemolab.trainers.live import RunBar

    bar = RunBar(config)

    def both(state: TrainState) -> None:
        bar(state)
        if tell is not None:
            tell(state)

    return both
