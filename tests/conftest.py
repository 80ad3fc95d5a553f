"""Strictness for every test: hypothesis profiles, and one torch thread where the caller asked for none."""

import inspect
import os
import sys
from functools import cache

import pytest
from hypothesis import settings

# Triton reads it when it is first imported, which torch may do: without a GPU its kernels run in the interpreter
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("dev", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_configure(config):
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        return  # it starts the workers, which run the tests; here each filter's class would be imported beside them for nothing
    # Lightning hints about hardware and loader workers; data here are made on the device, with no loader workers.
    # Not in pyproject.toml: pytest would import the class, and with it Triton, before the line above.
    config.addinivalue_line("filterwarnings", "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")
    # Autograd's thread has no CUDA context until something of CUDA's runtime ran there. Where cuBLAS is the first, torch sets the
    # context and says so, once a process: an error in whichever test comes first
    config.addinivalue_line("filterwarnings", "ignore:Attempting to run cuBLAS, but there was no current CUDA context")


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter():
    """Triton's interpreter looks through every name of its language at each call of a function within a kernel, and makes a table
    of all types to look one up: up to half of the time of such tests. Here it looks at those names alone that it may have to
    replace, which are found once, and keeps what it looked up."""
    interpreter = sys.modules.get("triton.runtime.interpreter")
    if not hasattr(interpreter, "_patch_builtin") or not hasattr(interpreter, "_get_np_dtype"):
        yield
        return
    core, numpy_type, known = interpreter.tl.core, interpreter._get_np_dtype, {}

    @cache
    def names(package):
        return [name for name, member in inspect.getmembers(package) if core.is_builtin(member)]

    def patch_builtin(package, *scope):
        for name in names(package):
            if core.is_builtin(member := getattr(package, name)):
                interpreter._patch_attr(package, name, member, *scope)

    def get_np_dtype(kind):
        element = kind.element_ty if isinstance(kind, core.block_type) else kind
        if element.name not in known:
            known[element.name] = numpy_type(element)
        return known[element.name]

    assert names(core) and names(interpreter.tl)  # now, before a kernel has replaced any
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_builtin", patch_builtin)
        patch.setattr(interpreter, "_get_np_dtype", get_np_dtype)
        yield


@pytest.fixture
def inline(monkeypatch):
    """Sweeps train in this process, one run after the other."""
    from mnemolab.trainers.engines import ENGINES
    from tests.inline import Inline

    monkeypatch.setitem(ENGINES, "local", Inline)
