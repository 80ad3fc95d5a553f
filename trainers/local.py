"""The local engine: warm worker processes, one torch thread each, several to a GPU; one bad run never harms another.

Importing this costs no torch: a worker sets its environment first and imports torch after it. The parent waits on one pipe
a worker; a pipe that closes is a worker that died, and only its own run is lost.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self

from mnemolab.errors import BadRequest, RunFailed
from mnemolab.trainers.events import Event, Failed, Finished, Progress, Started

__all__ = ["Job", "LocalEngine", "attempt", "default_workers"]

WORKERS_PER_GPU = 8  # on an H200 7 to 9 mini-models at a time kept it busy, 16 cores with them
BUSY_SECONDS = 1.0  # before asking again for a run that another sweep holds
STOP_SECONDS = 20.0  # for workers to save their runs after Ctrl-C
FALSE_STARTS = 3  # workers in a row that may die while importing, as when memory is short, before the sweep gives up


@dataclass(frozen=True)
class Job:
    """One run to make. `config` is plain values, so that it crosses processes without importing anything."""

    run_id: str
    label: str
    steps: int
    config: dict[str, Any]
    read_test: bool = True


@dataclass
class _Worker:
    number: int
    process: Any
    pipe: Connection
    ready: bool = False
    spent: bool = False  # it ends, and takes no more jobs
    job: Job | None = None


@dataclass
class _Queue:
    """Jobs to do, and those to ask about again later because another process is at them."""

    jobs: deque[Job]
    later: list[tuple[float, Job]] = field(default_factory=list)

    def take(self) -> Job | None:
        now = time.monotonic()
        for entry in self.later:
            if entry[0] <= now and not self.jobs:
                self.later.remove(entry)
                return entry[1]
        return self.jobs.popleft() if self.jobs else None

    def __len__(self) -> int:
        return len(self.jobs) + len(self.later)


def default_workers() -> tuple[int, list[str]]:
    """How many workers, and the GPUs (as CUDA_VISIBLE_DEVICES names them) that they share in turn."""
    import torch

    count = torch.cuda.device_count()
    if not count:
        return len(os.sched_getaffinity(0)), []
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name for name in seen.split(",") if name] or [str(index) for index in range(count)]
    cores = max(1, len(os.sched_getaffinity(0)))
    return min(WORKERS_PER_GPU * count, max(count, cores)), names[:count]


class LocalEngine:
    """Worker processes that stay warm from one `run` to the next. Use it in a `with` block, which ends them.

    `workers`: how many at most; None is one a core, or several a GPU. Raises BadRequest for less than one.
    """

    def __init__(self, workers: int | None = None, plugins: Sequence[str] = ()):
        if workers is not None and workers < 1:
            raise BadRequest(f"workers={workers}: use at least 1")
        self.workers, self.plugins = workers, tuple(plugins)
        self.gpus: list[str] = []
        self.crew: list[_Worker] = []
        self.false_starts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, jobs: Sequence[Job], out: str | Path, emit: Callable[[Event], None]) -> None:
        """Do all `jobs`; what became of each is told to `emit`, in the caller's process.

        An exception from `emit`, or Ctrl-C, leaves runs going: `close` lets them save themselves.
        Raises RunFailed when workers cannot start.
        """
        queue = _Queue(deque(jobs))
        self._hire(len(jobs))
        while queue or any(worker.job for worker in self.crew):
            _assign(self.crew, queue, out, emit)
            pipes = {worker.pipe: worker for worker in self.crew}
            for pipe in wait(list(pipes), timeout=0.5 if queue.later else None):
                worker = pipes[pipe]  # type: ignore[index]
                try:
                    _handle(worker, worker.pipe.recv(), queue, emit)
                    self.false_starts = 0
                except (EOFError, OSError):  # closed, reset, or cut in the middle of a message
                    self.crew.remove(worker)
                    worker.pipe.close()
                    how = _bury(worker, out, emit)
                    self.false_starts += not worker.ready
                    if self.false_starts >= FALSE_STARTS:
                        raise RunFailed(
                            f"{FALSE_STARTS} workers in a row died while starting (the last: {how})"
                        ) from None
                    self._hire(len(queue) + sum(worker.job is not None for worker in self.crew))

    def close(self) -> None:
        _dismiss(self.crew)
        self.crew = []

    def _hire(self, wanted: int) -> None:
        """Start workers until there are as many as jobs, and no more than allowed."""
        if not wanted:
            return
        count, self.gpus = default_workers()
        taken = {worker.number for worker in self.crew}
        free = [number for number in range(self.workers or count) if number not in taken]
        for number in free[: max(0, wanted - len(self.crew))]:
            self.crew.append(_start(number, self.gpus, self.plugins))


def _start(number: int, gpus: Sequence[str], plugins: Sequence[str]) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
    name = f"mnemolab-worker-{number}"
    process = context.Process(target=_serve, args=(theirs, environment, tuple(plugins)), name=name, daemon=True)
    process.start()
    theirs.close()
    return _Worker(number, process, ours)


def _assign(crew: Sequence[_Worker], queue: _Queue, out: str | Path, emit: Callable[[Event], None]) -> None:
    for worker in crew:
        if not worker.ready or worker.spent or worker.job is not None:
            continue
        job = queue.take()
        if job is None:
            return
        try:
            worker.pipe.send((job, str(out)))
        except OSError:  # it died while idle; `wait` reports its pipe next
            queue.jobs.appendleft(job)
            continue
        worker.job = job
        emit(Started(job.run_id, job.label, worker.number))


def _handle(worker: _Worker, message: tuple[str, Any], queue: _Queue, emit: Callable[[Event], None]) -> None:
    kind, value = message
    job = worker.job
    if kind == "ready":
        worker.ready = True
    elif job is None:
        raise RunFailed(f"worker {worker.number} cannot start: {value}")
    elif kind == "progress":
        emit(Progress(job.run_id, value[0], job.steps, value[1]))
    else:
        worker.job, worker.spent = None, kind == "lost"
        if kind == "busy":
            queue.later.append((time.monotonic() + BUSY_SECONDS, job))
        elif kind == "done":
            emit(Finished(job.run_id, job.label, value))
        else:
            emit(Failed(job.run_id, job.label, *value))


def _bury(worker: _Worker, out: str | Path, emit: Callable[[Event], None]) -> str:
    """A worker's pipe closed: say what became of its run. Returns how it died."""
    worker.process.join(5)
    code = worker.process.exitcode
    how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
    if worker.job is None:
        return how
    from mnemolab.files import write_json
    from mnemolab.trainers.folder import FAILURE, is_finished, load_run

    error = f"its worker died ({how})"
    folder = Path(out) / worker.job.run_id
    if is_finished(folder):  # after result.json nothing of the run is left to do
        emit(Finished(worker.job.run_id, worker.job.label, load_run(folder).result))
        return how
    with contextlib.suppress(OSError):  # the event below tells it in any case
        if folder.is_dir():
            write_json(folder / FAILURE, {"error": error, "traceback": ""})
    emit(Failed(worker.job.run_id, worker.job.label, error))
    return how


def _dismiss(crew: Sequence[_Worker]) -> None:
    """End all workers: idle ones at once, busy ones after they have saved their run."""
    for worker in crew:
        if worker.job is not None and worker.process.is_alive():
            worker.process.terminate()
        with contextlib.suppress(OSError):
            worker.pipe.send(None)
    limit = time.monotonic() + STOP_SECONDS
    for worker in crew:
        if not worker.ready:  # still importing: there is nothing to save
            worker.process.kill()
        with contextlib.suppress(EOFError, OSError):
            while worker.process.is_alive() and time.monotonic() < limit:
                if worker.pipe.poll(0.05):
                    worker.pipe.recv()
        worker.process.join(max(0.0, limit - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()


def _serve(pipe: Connection, environment: dict[str, str], plugins: Sequence[str]) -> None:
    """A worker's life: import once, then take jobs until told to end, or until the parent is gone."""
    os.environ.update(environment)
    stop = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        import torch

        from mnemolab.registry import load_plugins

        torch.set_num_threads(1)
        load_plugins(plugins)
        import_module("mnemolab.trainers.fitting")  # brings in Lightning, before the first run
    except Exception as error:  # noqa: BLE001  (whatever it was, the parent must hear it)
        pipe.send(("broken", f"{type(error).__name__}: {error}"))
        return
    with _parent_may_vanish():
        pipe.send(("ready", None))
        while (message := pipe.recv()) is not None:
            job, out = message
            answer = attempt(job, out, lambda value: pipe.send(("progress", value)), stop)
            pipe.send(answer)
            if answer[0] == "lost" or stop.is_set():
                return


@contextlib.contextmanager
def _parent_may_vanish() -> Iterator[None]:
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        yield


def attempt(
    job: Job, out: str | Path, progress: Callable[[Any], None], stop: threading.Event | None = None
) -> tuple[str, Any]:
    """Do one job: ("done", result), ("failed", (error, traceback)), ("busy", None) or ("stopped", (error, "")).

    ("lost", (error, traceback)) is a failure after which this process can do nothing more on its GPU: it must end.
    """
    from mnemolab.trainers.config import RunConfig
    from mnemolab.trainers.run import train
    from mnemolab.trainers.stops import Busy, Stopped

    stop = stop or threading.Event()

    def tell(state: Any) -> None:
        accuracy = None if state.validation is None else state.validation["accuracy"]
        try:
            progress((state.step, accuracy))
        except OSError:  # nobody listens any more: save the run and end
            stop.set()

    try:
        config = RunConfig.from_dict(job.config)
        run = train(config, out, read_test=job.read_test, tell=tell, stop=stop.is_set)
        return "done", run.result
    except Busy:
        return "busy", None
    except Stopped:
        return "stopped", ("stopped from outside before its end; it goes on from resume.ckpt", "")
    except Exception as error:  # noqa: BLE001  (a bad run must not take its worker down)
        cause = error.__cause__ or error
        kind = "failed" if _gpu_answers() else "lost"
        return kind, (f"{type(cause).__name__}: {cause}", "".join(traceback.format_exception(error)))


def _gpu_answers() -> bool:
    """Whether this process can still use its GPU, if it has used one: after a failed assertion or an illegal access in a kernel
    every later call fails too."""
    import torch

    if not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True
