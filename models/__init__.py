"""One backbone, many token mixers. `STAGES` maps a stage's name to its row of the lineage table."""

from typing import TYPE_CHECKING

from mnemolab.registry import lazy_exports

if TYPE_CHECKING:
    from mnemolab.models.accounting import count_parameters as count_parameters
    from mnemolab.models.accounting import state_bytes as state_bytes
    from mnemolab.models.backbone import Backbone as Backbone
    from mnemolab.models.build import make_model as make_model
    from mnemolab.models.build import model_config as model_config
    from mnemolab.models.lineage import STAGES as STAGES
    from mnemolab.models.lineage import register_mixer as register_mixer
    from mnemolab.models.published import published_config as published_config

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Backbone": "backbone",
        "count_parameters": "accounting",
        "published_config": "published",
        "state_bytes": "accounting",
        "make_model": "build",
        "model_config": "build",
        "STAGES": "lineage",
        "register_mixer": "lineage",
    },
)
