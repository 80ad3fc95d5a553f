"""One backbone, many token mixers. `STAGES` maps a stage's name to its row of the lineage table."""

from typing import TYPE_CHECKING

from mnemolab.registry import lazy_exports

if TYPE_CHECKING:
    from mnemolab.models.build import make_model as make_model

__getattr__, __dir__ = lazy_exports(__name__, {"make_model": "build"})
