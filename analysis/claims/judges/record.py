"""Records that change, answered by a memory that was emptied just before the last update: what it then cannot know.

B batch, T time, Q queries, N tokens of the vocabulary.
"""

from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import Tensor

from mnemolab.analysis.interventions import INTERVENTIONS, Setting
from mnemolab.errors import BadRequest
from mnemolab.trainers.scoring import query_logits

if TYPE_CHECKING:
    from mnemolab.analysis.claims.evidence import Ran
    from mnemolab.models.backbone import Backbone
    from mnemolab.tasks.base import Batch, Task

__all__ = ["emptied", "last_updates", "wiped_logits"]


def emptied(run: "Ran") -> pd.DataFrame:
    """Answers to the queries of `run.batch`, each by the trained model with every memory layer's state wiped at that query's
    `last_updates`: one row a query, columns condition, correct.

    The rest of the model is as it was, and so are its short convolutions: at the update they still see the three tokens before
    it, in a second layer with what the first one read there.
    """
    queries = run.batch.queries
    used = queries["position"] >= 0
    predicted = wiped_logits(run.model, run.batch, last_updates(run.batch, run.task)).argmax(-1)
    names = list(run.task.conditions)
    return pd.DataFrame(
        {
            "condition": [names[c] for c in queries["condition"][used].tolist()],
            "correct": (predicted == queries["target"])[used].numpy(),
        }
    )


def last_updates(batch: "Batch", task: "Task") -> Tensor:
    """(B,Q) the first token, the entity's, of the update before which a query's memory is wiped; 0 in unused slots.

    A fact that was updated: its own last binding, so that of updated, previous and compare the current value alone is known.
    One that never was: the last update of its record; a fact bound after that (4 to 7% of them) survives.
    """
    tokens, queries, values = batch.inputs, batch.queries, task.vocabulary.values
    key, asked = (queries[name][..., None] for name in ("key", "attribute"))
    who, what, value = tokens[:, None, :-2], tokens[:, None, 1:-1], tokens[:, None, 2:]
    # a question's attribute is followed by no value
    bound = (who == key) & (value >= values.start) & (value < values.stop)
    place = torch.arange(who.shape[-1], device=tokens.device)
    own = record = torch.full_like(queries["position"], -1)
    for attribute in task.vocabulary["attributes"]:
        mine = bound & (what == attribute)
        last = torch.where(mine & (mine.cumsum(-1) > 1), place, -1).amax(-1)  # a fact's first binding updates nothing
        own = torch.where(asked[..., 0] == attribute, last, own)
        record = torch.maximum(record, last)
    found, used = torch.where(own >= 0, own, record), queries["position"] >= 0
    if bool((found[used] < 0).any()):
        raise BadRequest("record_update: a record is asked that was never updated; there is no update to wipe before")
    return torch.where(used, found, 0)


@torch.no_grad()
def wiped_logits(model: "Backbone", batch: "Batch", at: Tensor) -> Tensor:
    """(B,Q,N) forked: logits of each query where every memory layer's state was wiped before token at[b,q] was written; zeros in
    unused slots. Raises BadRequest where that token is not in the query's context.

    A query is read by itself after a context of its own, since two of one sequence may be wiped at two places; those
    that are wiped at one place are read together.
    """
    wipe = INTERVENTIONS["wipe-state"].change
    assert wipe is not None
    row, query = (batch.queries["position"] >= 0).nonzero(as_tuple=True)
    place, fork = at[row, query], batch.queries["fork"][row, query]
    if bool(((place < 0) | (place >= fork)).any()):
        raise BadRequest("a state can be wiped at a token of the context alone; a position lies outside")
    logits: Tensor | None = None
    for here in place.unique().tolist():
        chosen = place == here
        part = _alone(batch, row[chosen], query[chosen])
        setting = Setting(wipe_at=here, lengths=tuple(fork[chosen].unique().tolist()))
        with model.intervene(lambda layer, told, setting=setting: wipe(layer, told, setting)):
            found = query_logits(model, part, "forked")[:, 0]
        if logits is None:
            logits = found.new_zeros(*at.shape, found.shape[-1])
        logits[row[chosen], query[chosen]] = found
    assert logits is not None, "a batch without a single query"
    return logits


def _alone(batch: "Batch", row: Tensor, query: Tensor) -> "Batch":
    """Each of these queries with a copy of its sequence, as its only one."""
    columns = {name: column[row, query][:, None] for name, column in batch.queries.items()}
    return type(batch)(batch.inputs[row], batch.targets[row], columns)
