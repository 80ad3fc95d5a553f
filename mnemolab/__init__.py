"""mnemolab: what a sequence model remembers, overwrites, confuses and forgets.

The rooms are `mnemolab.tasks`, `.models`, `.kernels`, `.trainers`, `.analysis` and `.benchmarks`; each exports its names
lazily, so importing the package costs nothing.
"""

from pathlib import Path

__version__ = "0.1.0"

if not (Path(__file__).parent / "tasks" / "__init__.py").exists():
    raise ImportError(
        "mnemolab/tasks is not a folder: this copy lost its symbolic links (zip downloads and Windows checkouts without "
        "core.symlinks do). Install from a wheel, from an sdist, or with `pip install git+...`."
    )
