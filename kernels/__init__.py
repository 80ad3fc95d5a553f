"""The memory recurrence and its neighbours. Names are lazy: nothing here imports torch until it is used."""

from typing import TYPE_CHECKING

from mnemolab.registry import lazy_exports

if TYPE_CHECKING:
    from mnemolab.kernels.scan import explain_backend as explain_backend
    from mnemolab.kernels.scan import memory_scan as memory_scan
    from mnemolab.kernels.scan import memory_step as memory_step

__getattr__, __dir__ = lazy_exports(
    __name__, {"memory_scan": "scan", "memory_step": "scan", "explain_backend": "scan"}
)
