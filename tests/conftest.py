"""Strictness for every test: hypothesis profiles, and one torch thread where the caller asked for none."""

import os

from hypothesis import settings

# Triton reads it when it is first imported, which torch may do: without a GPU its kernels run in the interpreter
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("dev", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_configure(config):
    # Lightning hints about hardware and loader workers; data here are made on the device, with no loader workers.
    # Not in pyproject.toml: pytest would import the class, and with it Triton, before the line above.
    config.addinivalue_line("filterwarnings", "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")
    # Autograd's thread has no CUDA context until something of CUDA's runtime ran there. Where cuBLAS is the first, torch sets the
    # context and says so, once a process: an error in whichever test comes first
    config.addinivalue_line("filterwarnings", "ignore:Attempting to run cuBLAS, but there was no current CUDA context")
