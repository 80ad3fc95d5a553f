"""From a config to a finished run folder."""

from typing import TYPE_CHECKING

from mnemolab.registry import lazy_exports

if TYPE_CHECKING:
    from mnemolab.trainers.config import RunConfig as RunConfig
    from mnemolab.trainers.folder import load_run as load_run
    from mnemolab.trainers.run import train as train
    from mnemolab.trainers.sweep import Sweep as Sweep

__getattr__, __dir__ = lazy_exports(
    __name__, {"RunConfig": "config", "load_run": "folder", "train": "run", "Sweep": "sweep"}
)
