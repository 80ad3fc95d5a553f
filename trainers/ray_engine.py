"""The Ray engine: warm actors with fractional GPUs, on an existing cluster or one started here.

`RAY_ADDRESS` names the cluster (`auto`, `host:port`); without it Ray starts on this machine. Every node needs mnemolab
and the output folder, on a shared filesystem. A run whose node is lost is given to another actor and goes on from its
checkpoint. Needs the extra `ray`.
"""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from mnemolab.errors import BadRequest, RunFailed
from mnemolab.trainers.events import Event, Failed, Finished, Progress, Started
from mnemolab.trainers.local import STOP_SECONDS, WORKERS_PER_GPU, Job, attempt

__all__ = ["RayEngine"]

TRIES = 3  # actors that a run may lose before it counts as failed
POLL_SECONDS = 0.5
BUSY_SECONDS = 1.0


class _Runner:
    """Lives in a worker process of some node. Two threads: one trains, one answers `peek` and `stop`."""

    def __init__(self, plugins: Sequence[str]):
        import torch

        from mnemolab.registry import load_plugins

        torch.set_num_threads(1)
        load_plugins(plugins)
        import mnemolab.trainers.fitting  # noqa: F401  (brings in Lightning, before the first run)

        self._stop = threading.Event()
        self._seen: Any = None

    def do(self, job: Job, out: str) -> tuple[str, Any]:
        self._seen = None
        return attempt(job, out, self._note, self._stop)

    def _note(self, value: Any) -> None:
        self._seen = value

    def ready(self) -> bool:
        return True

    def peek(self) -> Any:
        """(step, validation accuracy or None) of the run in hand, or None."""
        return self._seen

    def stop(self) -> None:
        self._stop.set()


@dataclass
class _Hand:
    """An actor, and what it does now: the job, its answer, and the answer to the last `peek`."""

    number: int
    actor: Any
    starting: Any  # the answer that comes when everything is imported; None after that
    job: Job | None = None
    answer: Any = None
    peek: Any = None


class RayEngine:
    """Actors that stay warm from one `run` to the next. Use it in a `with` block.

    `workers`: how many actors; None is one a CPU of the cluster, or several a GPU. Raises BadRequest when Ray is not
    installed or no cluster answers.
    """

    def __init__(self, workers: int | None = None, plugins: Sequence[str] = ()):
        if workers is not None and workers < 1:
            raise BadRequest(f"workers={workers}: use at least 1")
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise BadRequest("engine=ray needs Ray; install it with: pip install 'mnemolab[ray]'") from error
        self.ray, self.plugins, self.wanted = ray, tuple(plugins), workers
        self.hands: list[_Hand] = []
        self.lost: dict[str, int] = {}
        self.stillborn = 0  # actors in a row that died before they were ready
        self._mine = False

    def __enter__(self) -> Self:
        if not self.ray.is_initialized():
            address = os.environ.get("RAY_ADDRESS")
            try:
                self.ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
                raise BadRequest(f"RAY_ADDRESS={address}: no Ray cluster answers there ({error})") from error
            self._mine = True
        return self

    def __exit__(self, *error: object) -> None:
        self._dismiss()
        if self._mine:
            self.ray.shutdown()

    def run(self, jobs: Sequence[Job], out: str | Path, emit: Callable[[Event], None]) -> None:
        """Do all `jobs`; what became of each is told to `emit`."""
        queue = deque(jobs)
        later: list[tuple[float, Job]] = []
        out = str(Path(out).resolve())  # actors have another working directory
        while queue or later or any(hand.job for hand in self.hands):
            ripe = [entry for entry in later if entry[0] <= time.monotonic()]
            later = [entry for entry in later if entry not in ripe]
            queue.extend(job for _, job in ripe)
            self._hire(len(queue))
            self._greet()
            for hand in self.hands:
                if hand.starting is None and hand.job is None and queue:
                    hand.job = queue.popleft()
                    hand.answer, hand.peek = hand.actor.do.remote(hand.job, out), None
                    emit(Started(hand.job.run_id, hand.job.label, hand.number))
            busy = {hand.answer: hand for hand in self.hands if hand.job is not None}
            ready, _ = self.ray.wait(list(busy), num_returns=1, timeout=POLL_SECONDS) if busy else ([], [])
            for reference in ready:
                self._finish(busy[reference], queue, later, emit)
            if not busy:
                time.sleep(POLL_SECONDS)
            self._peek(emit)

    def _greet(self) -> None:
        """See which actors are ready. Raises RunFailed when several in a row cannot start."""
        starting = [hand for hand in self.hands if hand.starting is not None]
        for hand in starting:
            if not self.ray.wait([hand.starting], timeout=0)[0]:
                continue
            try:
                self.ray.get(hand.starting)
                hand.starting, self.stillborn = None, 0
            except self.ray.exceptions.RayError as error:
                self.hands.remove(hand)
                self.stillborn += 1
                if self.stillborn >= TRIES:
                    raise RunFailed(f"Ray workers cannot start: {_last_line(error)}") from error

    def _finish(self, hand: _Hand, queue: deque[Job], later: list, emit: Callable[[Event], None]) -> None:
        job, hand.job = hand.job, None
        assert job is not None
        try:
            kind, value = self.ray.get(hand.answer)
        except self.ray.exceptions.RayError as error:  # the actor, its process or its node is gone
            self.hands.remove(hand)
            self.lost[job.run_id] = self.lost.get(job.run_id, 0) + 1
            if self.lost[job.run_id] < TRIES:
                queue.append(job)
            else:
                emit(Failed(job.run_id, job.label, f"lost {TRIES} workers; the last: {_last_line(error)}"))
            return
        if kind == "busy":
            later.append((time.monotonic() + BUSY_SECONDS, job))
        elif kind == "done":
            emit(Finished(job.run_id, job.label, value))
        else:
            if kind == "lost":  # nothing more can run there
                self.hands.remove(hand)
                self.ray.kill(hand.actor)
            emit(Failed(job.run_id, job.label, *value))

    def _peek(self, emit: Callable[[Event], None]) -> None:
        for hand in self.hands:
            if hand.job is None:
                continue
            if hand.peek is None:
                hand.peek = hand.actor.peek.remote()
            elif self.ray.wait([hand.peek], timeout=0)[0]:
                with contextlib.suppress(self.ray.exceptions.RayError):  # `_finish` will meet it as well
                    seen = self.ray.get(hand.peek)
                    if seen is not None:
                        emit(Progress(hand.job.run_id, seen[0], hand.job.steps, seen[1]))
                hand.peek = None

    def _hire(self, waiting: int) -> None:
        """Actors until there are as many as jobs, and no more than the cluster's share."""
        resources = self.ray.cluster_resources()
        gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 1))
        count = self.wanted or (WORKERS_PER_GPU * gpus if gpus else cpus)
        idle = sum(hand.job is None for hand in self.hands)
        taken = {hand.number for hand in self.hands}
        share = {"num_gpus": min(1.0, gpus / count), "num_cpus": 0} if gpus else {"num_cpus": min(1.0, cpus / count)}
        variables = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        if "PYTHONPATH" in os.environ:  # where plugins are
            variables["PYTHONPATH"] = os.environ["PYTHONPATH"]
        for number in [n for n in range(count) if n not in taken][: max(0, waiting - idle)]:
            actor = self.ray.remote(_Runner).options(
                max_concurrency=2, max_restarts=0, runtime_env={"env_vars": variables}, **share
            )  # fmt: skip
            made = actor.remote(self.plugins)
            self.hands.append(_Hand(number, made, made.ready.remote()))

    def _dismiss(self) -> None:
        """Let running jobs save themselves, then end the actors."""
        busy = [hand for hand in self.hands if hand.job is not None]
        with contextlib.suppress(Exception):  # the cluster may be gone altogether
            for hand in busy:
                hand.actor.stop.remote()
            if busy:
                self.ray.wait([hand.answer for hand in busy], num_returns=len(busy), timeout=STOP_SECONDS)
        for hand in self.hands:
            with contextlib.suppress(Exception):
                self.ray.kill(hand.actor)
        self.hands = []


def _last_line(error: Exception) -> str:
    """Of a Ray error with a traceback: the line that says what went wrong."""
    return str(error).strip().splitlines()[-1].strip()
