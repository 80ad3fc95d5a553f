"""One run on several devices: a process each, Lightning's DDP between them, and the run folder as the way back.

The parent starts the ranks, hears from rank 0, and afterwards reads the final `resume.ckpt`. When one rank fails, all end.
"""

import multiprocessing
import os
import pickle
import socket
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from mnemolab.errors import BadRequest, RunFailed
from mnemolab.registry import load_plugins
from mnemolab.trainers.config import RunConfig
from mnemolab.trainers.state import TrainState
from mnemolab.trainers.stops import NotFiniteRun, Stopped

__all__ = ["fit_ranks"]

POLL_SECONDS = 0.2


def fit_ranks(
    config: RunConfig,
    folder: Path,
    kind: str,
    devices: int,
    loggers: list[Any],
    tell: Callable[[TrainState], None] | None,
    stop: Callable[[], bool] | None,
    plugins: Sequence[str] = (),
) -> str:
    """Train `config` on `devices` devices of `kind` (cpu or cuda); `resume.ckpt` then holds the end. Returns how."""
    context = multiprocessing.get_context("spawn")
    try:
        pickle.dumps(loggers)
    except Exception as error:
        raise BadRequest(f"devices={devices}: a logger cannot be sent to another process ({error})") from error
    asked = context.Event()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    crew: dict[Connection, Any] = {}
    for rank in range(devices):
        ours, theirs = context.Pipe(duplex=False)
        arguments = (theirs, rank, devices, port, kind, config.to_dict(), str(folder), loggers, asked, plugins)
        process = context.Process(target=_rank, args=arguments, name=f"mnemolab-rank-{rank}", daemon=True)
        process.start()
        theirs.close()
        crew[ours] = process
    try:
        return _listen(crew, tell, stop, asked)
    finally:
        for pipe, process in crew.items():
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()


def _listen(crew: dict[Connection, Any], tell: Any, stop: Any, asked: Any) -> str:
    how, open_pipes = "", set(crew)
    while open_pipes:
        if stop is not None and stop():
            asked.set()
        for pipe in wait(list(open_pipes), timeout=POLL_SECONDS):
            process = crew[pipe]  # type: ignore[index]
            try:
                name, value = pipe.recv()  # type: ignore[union-attr]
            except EOFError:
                open_pipes.discard(pipe)  # type: ignore[arg-type]
                process.join(5)
                if process.exitcode:
                    _end(crew)
                    raise RunFailed(f"{process.name} died (exit code {process.exitcode})") from None
                continue
            if name == "state" and tell is not None:
                tell(TrainState.from_dict(value))
            elif name == "how":
                how = value
            elif name == "stopped":
                raise Stopped
            elif name == "not finite":
                _end(crew)
                raise NotFiniteRun(*value)
            elif name == "failed":
                _end(crew)
                raise RunFailed(f"{process.name}: {value}")
    return how


def _end(crew: dict[Connection, Any]) -> None:
    """The others wait for the lost rank in a collective, and would for long."""
    for process in crew.values():
        process.kill()


def _die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies: the run's lock is the parent's and is free from then on."""
    import ctypes
    import signal

    if os.name == "posix" and hasattr(libc := ctypes.CDLL(None), "prctl"):
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it died before that
        os._exit(1)


def _rank(
    pipe: Connection,
    rank: int,
    devices: int,
    port: int,
    kind: str,
    config: dict[str, Any],
    folder: str,
    loggers: list[Any],
    asked: Any,
    plugins: Sequence[str],
) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    # Lightning takes LOCAL_RANK as the sign that somebody else made the processes
    os.environ.update(LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    import torch

    torch.set_num_threads(1)
    load_plugins(plugins)
    from mnemolab.trainers.fitting import fit_run

    def tell(state: TrainState) -> None:
        pipe.send(("state", state.to_dict()))

    try:
        device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
        run = RunConfig.from_dict(config)
        fitted = fit_run(
            run, Path(folder), device, loggers, devices, tell if rank == 0 else None, asked.is_set, rank=rank
        )
        pipe.send(("how", fitted.how))
    except Stopped:
        pipe.send(("stopped", None))
    except NotFiniteRun as error:
        pipe.send(("not finite", (str(error), error.details)))
    except Exception as error:  # noqa: BLE001  (the parent tells it)
        pipe.send(("failed", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        pipe.close()
