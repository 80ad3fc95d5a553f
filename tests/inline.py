"""An engine without workers, for tests that are not about workers: a process of its own costs seconds of imports."""

from mnemolab.registry import load_plugins
from mnemolab.trainers.events import Failed, Finished, Started
from mnemolab.trainers.local import attempt

__all__ = ["Inline"]


class Inline:
    """Jobs are done here, one after the other; in place of `ENGINES["local"]`."""

    def __init__(self, workers, plugins):
        load_plugins(plugins)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def run(self, jobs, out, emit):
        for job in jobs:
            emit(Started(job.run_id, job.label, 0))
            kind, result = attempt(job, out, lambda value: None)
            if kind == "done":
                emit(Finished(job.run_id, job.label, result))
            else:
                emit(Failed(job.run_id, job.label, *result))
