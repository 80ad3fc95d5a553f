"""Interference of a rebound key is what its own control, its twin, answers more: not what all controls do."""

import numpy as np
import pandas as pd
import pytest
import torch

from mnemolab.analysis.claims.judges import overwrite
from mnemolab.errors import BadRequest
from mnemolab.tasks import make_task


def one_relieved(pairs=((1, 0), (1, 1), (1, 0), (1, 1))) -> pd.DataFrame:
    """key_overwrite with control=one: in each pair of sequences keys 0 and 1 have 3 versions and key 2 has 2. The second one
    relieves key 0, answered (control, twin); key 1, rebound in both and never answered, has no control."""
    rows = []
    for pair, (control, twin) in enumerate(pairs):
        for odd, right in enumerate((twin, control)):
            for key, (versions, said) in enumerate(((3, right), (3, 0), (2, 0))):
                condition = "control" if odd and key == 0 else "rebound"
                rows.append((2 * pair + odd, 7 * pair % 5 + key, versions, condition, bool(said)))
    return pd.DataFrame(rows, columns=["example", "key", "paired_versions", "condition", "correct"])


def test_a_control_is_compared_with_the_same_key_in_its_twin():
    """All rebound keys of as many versions would say .83: those that nobody relieved are harder here."""
    records = one_relieved()
    most = records[records["paired_versions"] == 3].groupby("condition")["correct"].mean()
    assert most["control"] - most["rebound"] == pytest.approx(5 / 6)
    assert overwrite.interference(records) == 0.5
    # in whatever order, and as runs hold it
    shuffled = records.sample(frac=1, random_state=0)
    assert overwrite.interference(shuffled.assign(condition=shuffled["condition"].astype("category"))) == 0.5


def test_controls_of_fewer_versions_have_no_say():
    records = one_relieved()
    fewer = one_relieved(((0, 1),) * 9).assign(paired_versions=2)
    assert overwrite.interference(pd.concat([records, fewer.assign(example=fewer["example"] + 8)])) == 0.5


@pytest.mark.parametrize(
    "unpaired",
    [
        lambda r: r[r["example"] % 2 == 0],  # no control at all
        lambda r: r[r["condition"] == "control"],  # nor a twin
        lambda r: r.assign(example=2 * r["example"]),  # sequences that are no pairs
        lambda r: r.assign(key=np.arange(len(r))),  # none asks the other's key
        lambda r: r.assign(paired_versions=r["paired_versions"] - 2 * (r["condition"] == "control")),
    ],
)
def test_without_pairs_there_is_no_interference_and_not_a_number(unpaired):
    with pytest.raises(BadRequest, match="at the most versions: no control has its key rebound in its twin"):
        overwrite.interference(unpaired(one_relieved()))


@pytest.mark.parametrize("control", ["one", "equal", True])
def test_the_pairs_of_drawn_examples(control):
    """Records as the task draws them: six keys of 1, 2 and 3 versions, twice each. A control is answered, its twin in three pairs
    of four, and no other key at all."""
    task = make_task("key_overwrite", keys=6, versions=3, lags=10, length=80, control=control)
    queries = task.sample(torch.arange(80), split="test", seed=0).queries
    columns = {n: queries[n].flatten().numpy() for n in ("key", "paired_versions", "condition")}
    records = pd.DataFrame(columns).assign(example=np.arange(80).repeat(6))
    records["condition"] = np.array(task.conditions)[records["condition"]]
    relieved = records[records["condition"] == "control"]
    twins = set(zip(relieved["example"] ^ 1, relieved["key"], strict=True))
    is_twin = np.array([place in twins for place in zip(records["example"], records["key"], strict=True)])
    assert sum(is_twin) == len(relieved) == 40 * (1 if control == "one" else 4)
    right = (records["condition"] == "control") | (is_twin & (records["example"] % 8 > 0))
    assert overwrite.interference(records.assign(correct=right)) == 0.25
