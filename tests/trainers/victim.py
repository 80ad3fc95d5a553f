"""Runs that are killed: imports once, then forks a child for each line `{"config", "out", "fault", ...}` on stdin.

A child installs its fault, trains, and dies of it. The answer on stdout is the child's exit status as `os.waitpid` gives
it, and its stderr. Run as a program: a test process with threads must not fork.
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path


def install(fault: str, nth: int) -> None:
    """Make the n-th of some event the last thing that this process does."""
    import mnemolab.files
    from mnemolab.models.backbone import Backbone
    from mnemolab.trainers import callbacks

    callbacks.RESUME_SECONDS = 0.0  # a checkpoint after every segment
    seen = []

    def due() -> bool:
        seen.append(1)
        return len(seen) == nth

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if fault == "step":
        whole = Backbone.loss

        def loss(self, inputs, targets):
            if due():
                die()
            return whole(self, inputs, targets)

        Backbone.loss = loss
    elif fault == "disk full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (nth, nth))
    else:  # a file's name: killed with its bytes half written, or (after:) written and not renamed
        name, after = fault.removeprefix("after:"), fault.startswith("after:")
        replace = os.replace

        def interrupted(source, target):
            if Path(target).name == name and due():
                if not after:
                    data = Path(source).read_bytes()
                    Path(source).write_bytes(data[: len(data) // 2])
                else:
                    replace(source, target)
                die()
            replace(source, target)

        mnemolab.files.os.replace = interrupted


def child(order: dict) -> int:
    from mnemolab.errors import MnemolabError
    from mnemolab.trainers import RunConfig, train

    install(order["fault"], order["nth"])
    try:
        train(RunConfig.from_dict(order["config"]), order["out"])
    except MnemolabError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def main() -> None:
    from mnemolab.trainers import fitting  # noqa: F401  (what every child needs, imported once)

    print("ready", flush=True)
    for line in sys.stdin:
        reader, writer = os.pipe()  # not a file: a full disk must not swallow the message
        pid = os.fork()
        if pid == 0:
            os.dup2(writer, 2)
            os._exit(child(json.loads(line)))
        os.close(writer)
        with open(reader) as errors:
            text = errors.read()
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"status": status, "stderr": text}), flush=True)


if __name__ == "__main__":
    main()
