"""What the gates of a trained model do: half-lives, functional half-lives, state, attention, routers."""

from typing import TYPE_CHECKING

from mnemolab.registry import lazy_exports

if TYPE_CHECKING:
    from mnemolab.analysis.decay.depth import residual_weights as residual_weights
    from mnemolab.analysis.decay.depth import router_load as router_load
    from mnemolab.analysis.decay.functional import attention_by_lag as attention_by_lag
    from mnemolab.analysis.decay.functional import functional_half_lives as functional_half_lives
    from mnemolab.analysis.decay.functional import predicted_ratio as predicted_ratio
    from mnemolab.analysis.decay.functional import read_weights as read_weights
    from mnemolab.analysis.decay.functional import retained as retained
    from mnemolab.analysis.decay.half_life import channel_table as channel_table
    from mnemolab.analysis.decay.half_life import discrete_quantiles as discrete_quantiles
    from mnemolab.analysis.decay.half_life import dispersion as dispersion
    from mnemolab.analysis.decay.half_life import gamma_fit as gamma_fit
    from mnemolab.analysis.decay.half_life import gate_half_lives as gate_half_lives
    from mnemolab.analysis.decay.state import effective_rank as effective_rank
    from mnemolab.analysis.decay.state import key_overlap as key_overlap
    from mnemolab.analysis.decay.state import retained_energy as retained_energy
    from mnemolab.analysis.decay.state import state_table as state_table
    from mnemolab.analysis.decay.traces import Trace as Trace
    from mnemolab.analysis.decay.traces import gates_by_token as gates_by_token
    from mnemolab.analysis.decay.traces import token_kinds as token_kinds
    from mnemolab.analysis.decay.traces import trace as trace

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Trace": "traces",
        "attention_by_lag": "functional",
        "channel_table": "half_life",
        "discrete_quantiles": "half_life",
        "dispersion": "half_life",
        "effective_rank": "state",
        "functional_half_lives": "functional",
        "gamma_fit": "half_life",
        "gate_half_lives": "half_life",
        "gates_by_token": "traces",
        "key_overlap": "state",
        "predicted_ratio": "functional",
        "read_weights": "functional",
        "residual_weights": "depth",
        "retained": "functional",
        "retained_energy": "state",
        "router_load": "depth",
        "state_table": "state",
        "token_kinds": "traces",
        "trace": "traces",
    },
)
