"""From a config to a finished run folder, one run or a sweep of them."""

from typing import TYPE_CHECKING

from mnemolab.registry import lazy_exports

if TYPE_CHECKING:
    from mnemolab.trainers.collect import collect as collect
    from mnemolab.trainers.config import Budget as Budget
    from mnemolab.trainers.config import Optimiser as Optimiser
    from mnemolab.trainers.config import RunConfig as RunConfig
    from mnemolab.trainers.engines import run_sweep as run_sweep
    from mnemolab.trainers.folder import Run as Run
    from mnemolab.trainers.folder import find_runs as find_runs
    from mnemolab.trainers.folder import load_run as load_run
    from mnemolab.trainers.run import train as train
    from mnemolab.trainers.scoring import score as score
    from mnemolab.trainers.sweep import Sweep as Sweep

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Budget": "config",
        "Optimiser": "config",
        "Run": "folder",
        "RunConfig": "config",
        "Sweep": "sweep",
        "collect": "collect",
        "find_runs": "folder",
        "load_run": "folder",
        "run_sweep": "engines",
        "score": "scoring",
        "train": "run",
    },
)
