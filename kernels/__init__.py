"""The memory recurrence and its neighbours. Names are lazy: nothing here imports torch until it is used."""

from typing import TYPE_CHECKING

from mnemolab.registry import Entry, Registry, lazy_exports

if TYPE_CHECKING:
    from mnemolab.kernels.neighbours.attention_residual import attention_residual as attention_residual
    from mnemolab.kernels.neighbours.cross_entropy import scored_cross_entropy as scored_cross_entropy
    from mnemolab.kernels.neighbours.decay_gate import decay_gate as decay_gate
    from mnemolab.kernels.neighbours.embedding import embedding as embedding
    from mnemolab.kernels.neighbours.linear_pair import linear_pair as linear_pair
    from mnemolab.kernels.neighbours.norms import add_rms_norm as add_rms_norm
    from mnemolab.kernels.neighbours.norms import l2_norm as l2_norm
    from mnemolab.kernels.neighbours.norms import rms_norm_gated as rms_norm_gated
    from mnemolab.kernels.neighbours.rows import Rows as Rows
    from mnemolab.kernels.neighbours.rows import choose_rows as choose_rows
    from mnemolab.kernels.neighbours.rows import take_rows as take_rows
    from mnemolab.kernels.neighbours.scalar_gates import scalar_gates as scalar_gates
    from mnemolab.kernels.neighbours.short_conv import short_conv as short_conv
    from mnemolab.kernels.neighbours.short_conv import short_conv_qkv as short_conv_qkv
    from mnemolab.kernels.neighbours.short_conv import short_conv_step as short_conv_step
    from mnemolab.kernels.neighbours.situ import glu as glu
    from mnemolab.kernels.neighbours.situ import situ_glu as situ_glu
    from mnemolab.kernels.scan import explain_backend as explain_backend
    from mnemolab.kernels.scan import memory_scan as memory_scan
    from mnemolab.kernels.scan import memory_step as memory_step

KERNELS = Registry(
    "kernel",
    {
        "memory_scan": Entry(
            "mnemolab.kernels.scan:memory_scan", "the memory recurrence over a sequence: loop, chunked, triton"
        ),
        "memory_step": Entry("mnemolab.kernels.scan:memory_step", "one token of it, for decoding"),
        "short_conv": Entry(
            "mnemolab.kernels.neighbours.short_conv:short_conv", "short causal convolution and its cache"
        ),
        "short_conv_qkv": Entry(
            "mnemolab.kernels.neighbours.short_conv:short_conv_qkv",
            "with SiLU, unit heads and the split into q, k and v",
        ),
        "embedding": Entry(
            "mnemolab.kernels.neighbours.embedding:embedding", "rows of a table, and its gradient in a fixed order"
        ),
        "decay_gate": Entry(
            "mnemolab.kernels.neighbours.decay_gate:decay_gate", "log-decay of every key channel from a projection"
        ),
        "scalar_gates": Entry(
            "mnemolab.kernels.neighbours.scalar_gates:scalar_gates",
            "a memory's gates of one number a head, all at once",
        ),
        "linear_pair": Entry(
            "mnemolab.kernels.neighbours.linear_pair:linear_pair", "two linear maps of one input, one into few channels"
        ),
        "take_rows": Entry("mnemolab.kernels.neighbours.rows:take_rows", "some of the positions of a batch"),
        "l2_norm": Entry("mnemolab.kernels.neighbours.norms:l2_norm", "unit keys and queries"),
        "rms_norm_gated": Entry("mnemolab.kernels.neighbours.norms:rms_norm_gated", "RMSNorm with an output gate"),
        "add_rms_norm": Entry(
            "mnemolab.kernels.neighbours.norms:add_rms_norm", "a step of the residual stream and its RMSNorm"
        ),
        "glu": Entry(
            "mnemolab.kernels.neighbours.situ:glu", "SwiGLU, or SiTU-GLU, of one projection for both branches"
        ),
        "situ_glu": Entry("mnemolab.kernels.neighbours.situ:situ_glu", "the gated unit of Kimi K3"),
        "attention_residual": Entry(
            "mnemolab.kernels.neighbours.attention_residual:attention_residual", "softmax mix of earlier blocks"
        ),
        "scored_cross_entropy": Entry(
            "mnemolab.kernels.neighbours.cross_entropy:scored_cross_entropy", "loss at scored positions only"
        ),
    },
)

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Rows": "neighbours.rows",
        "add_rms_norm": "neighbours.norms",
        "attention_residual": "neighbours.attention_residual",
        "choose_rows": "neighbours.rows",
        "decay_gate": "neighbours.decay_gate",
        "embedding": "neighbours.embedding",
        "explain_backend": "scan",
        "glu": "neighbours.situ",
        "l2_norm": "neighbours.norms",
        "linear_pair": "neighbours.linear_pair",
        "memory_scan": "scan",
        "memory_step": "scan",
        "rms_norm_gated": "neighbours.norms",
        "scored_cross_entropy": "neighbours.cross_entropy",
        "scalar_gates": "neighbours.scalar_gates",
        "short_conv": "neighbours.short_conv",
        "short_conv_qkv": "neighbours.short_conv",
        "short_conv_step": "neighbours.short_conv",
        "situ_glu": "neighbours.situ",
        "take_rows": "neighbours.rows",
    },
)
