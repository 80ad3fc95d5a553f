"""Where in a sequence the memory took a binding in, and what a read finds of it: shared by judges that open models.

B batch, T time, N reads, H heads, K key channels.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mnemolab.analysis.decay import Trace, read_weights, trace

if TYPE_CHECKING:
    from mnemolab.analysis.claims.evidence import Ran
    from mnemolab.tasks.base import Batch, Task

__all__ = ["kept_shares", "key_offset", "only", "rebound_pairs", "value_position"]

# reads that are traced, each after the whole context: at most this many, from the first sequences
_READS = 1024
# tokens after the value's at which a short convolution may let the memory take the pair in
_OFFSETS = 3


def value_position(inputs: Tensor, values: Tensor) -> Tensor:
    """First position of each row's value: inputs (N,T), values (N,) -> (N,)."""
    return (inputs == values[:, None]).int().argmax(1)


def only(found: Trace, chosen: Tensor | slice) -> Trace:
    """The trace of the sequences that `chosen`, a mask (B,) or a slice, picks."""
    names = ("q", "k", "v", "log_decay", "erase", "write")
    return replace(found, **{n: None if getattr(found, n) is None else getattr(found, n)[chosen] for n in names})


def rebound_pairs(batch: "Batch", task: "Task") -> tuple[Tensor, Tensor, Tensor]:
    """(row, older, newer): positions of the values of a key's last two bindings, for every key bound twice or more."""
    values, keys = task.vocabulary.values, task.vocabulary.keys
    rows: list[tuple[int, int, int]] = []
    for row, tokens in enumerate(batch.inputs.tolist()):
        held: dict[int, list[int]] = {}
        for t in range(1, len(tokens)):
            if tokens[t] in values and tokens[t - 1] in keys:
                held.setdefault(tokens[t - 1], []).append(t)
        rows += [(row, places[-2], places[-1]) for places in held.values() if len(places) > 1]
    found = torch.tensor(rows or [(0, 0, 0)], dtype=torch.int64)[: len(rows)]
    return found[:, 0], found[:, 1], found[:, 2]


def key_offset(found: Trace, batch: "Batch", task: "Task") -> int:
    """Tokens after a value's at which keys are most alike what a question's key looks for: where the pair was taken in.

    The read of a pair's key, q at the question, is compared with k at the value's token and the next ones.
    """
    used = batch.queries["position"] >= 0
    row, query = used.nonzero(as_tuple=True)
    read = batch.queries["position"][row, query]
    target = batch.queries["target"][row, query]
    at = value_position(batch.inputs[row], target)
    q = found.q[row, read]
    scores = [(q * found.k[row, (at + d).clamp(max=found.k.shape[1] - 1)]).sum(-1).mean() for d in range(_OFFSETS)]
    return int(torch.stack(scores).argmax())


@torch.no_grad()
def kept_shares(run: "Ran", *, erase: bool = True) -> pd.DataFrame:
    """What decays (and erasures) between write and read leave of each asked binding, forked: one row a query.

    Columns example, query, kept (share, mean over heads; of the first memory layer), lag_tokens. Each query is read by
    itself after the context, so that no other query stands between. Needs questions of one token.
    """
    batch = run.batch
    used = batch.queries["position"] >= 0
    row, query = (index[:_READS] for index in used.nonzero(as_tuple=True))
    fork = batch.queries["fork"][row, query]
    context = int(fork.max())
    read = batch.queries["position"][row, query]
    inputs = torch.cat([batch.inputs[row, :context], batch.inputs[row, read][:, None]], 1)  # (N,C+1)
    found = next(t for t in trace(run.model, inputs) if t.kind == "memory")
    offset = key_offset(run.traces[0], batch, run.task)
    written = value_position(inputs, batch.queries["target"][row, query]) + offset
    written = written.clamp(max=context - 1)
    at = torch.full_like(written, context)
    lines = torch.arange(len(inputs))
    own = found.k[lines, written]  # (N,H,K)
    q = found.q.clone()
    q[lines, at] = own
    plain = replace(found, q=q, write=None, scale=1.0, erase=found.erase if erase else None)
    weights = read_weights(plain, at[:, None])[lines, 0, written]  # (N,H)
    share = (weights / own.square().sum(-1).clamp(min=1e-12)).mean(-1)
    return pd.DataFrame(
        {
            "example": row.numpy(),
            "query": query.numpy(),
            "kept": share.cpu().numpy().astype(np.float64),
            "lag_tokens": (context - written).numpy(),
        }
    )
