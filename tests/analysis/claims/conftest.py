"""Hand-made evidence: runs whose records are given, so that what a judging function must say is known."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from mnemolab.analysis.claims import CLAIMS
from mnemolab.analysis.claims.claim import Judgement, Verdict
from mnemolab.analysis.claims.evidence import Evidence, Ran
from mnemolab.analysis.claims.experiments import Planned
from mnemolab.analysis.claims.rules import judged

SEEDS = tuple(range(12))


def ran(experiment: str, cell: str, arm: str, seed: int, twin: bool = False, **given) -> Ran:
    """A run with `records`, `result`, `task` ... as given; nothing is read from disk."""
    config = given.pop("config", SimpleNamespace(budget=SimpleNamespace(steps=100), model={}))
    run = Ran(
        Planned(experiment, cell, arm, seed, twin, config),
        Path(f"{experiment}-{cell}-{arm}-{seed}-{twin}".replace(" ", "_")),
    )
    run.__dict__.update(given)
    return run


def evidence(make: Callable[..., dict], places, seeds=SEEDS, twins=()) -> Evidence:
    """`make(cell, arm, rng, seed) -> what is given to the run`, for every (experiment, cell, arm) of `places`."""
    runs = []
    for experiment, cell, arm in places:
        for twin in (False, True) if arm in twins else (False,):
            for seed in seeds:
                rng = np.random.default_rng([seed, int(twin), len(arm), len(cell)])
                runs.append(ran(experiment, cell, arm, seed, twin, **make(cell, arm, rng, seed)))
    return Evidence(runs)


def verdict(name: str, judgement: Judgement) -> Verdict:
    """What the rule makes of a judgement of the claim `name`."""
    return judged(CLAIMS[name], judgement)


def answers(rng: np.random.Generator, right: float | np.ndarray, rows: int = 400, **columns) -> pd.DataFrame:
    """Records in which a share `right` of queries is answered correctly, the rest with another key's value."""
    correct = rng.random(rows) < right
    frame = {
        "example": np.arange(rows) // 4,
        "query": np.arange(rows) % 4,
        "query_index": np.arange(rows) % 4,
        "correct": correct,
        "outcome": np.where(correct, "correct", "other_key"),
        "condition": "known",
        "chance": 0.1,
        "n_stale": 0,
        "lag_writes": np.tile(np.arange(8), rows // 8),
        "lag_tokens": np.tile(np.arange(8), rows // 8) * 2 + 1,
        "load": 10,
        "log_odds_other": np.where(correct, 2.0, -1.0),
        "loss": 1.0,
    }
    return pd.DataFrame(frame | columns)


@pytest.fixture
def make_evidence():
    return evidence
