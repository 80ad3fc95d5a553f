"""The classic experiments on hand-made records, and the direction of the oracle in a model trained here."""

import numpy as np
import pandas as pd
import pytest

from mnemolab.analysis import interference as measures
from mnemolab.analysis.oracle import RULES, simulate, simulate_overwrite
from mnemolab.errors import BadRequest


def block(right: float, n: int = 100, **columns) -> pd.DataFrame:
    base = {"run_id": "a", "arm": "kda", "example": np.arange(n) // 4, "chance": 0.1, "version": 0, "n_stale": 0}
    return pd.DataFrame({**base, "correct": np.arange(n) < round(right * n), **columns})


def overwrite(ask: int, rebound: dict[int, float], control: float) -> pd.DataFrame:
    """key_overwrite records: accuracy of rebound keys by versions, and of their twins."""
    parts = []
    for versions, p in rebound.items():
        own = {"paired_versions": versions, "ask": ask}
        before = versions - 1 if ask == 0 else 0
        parts.append(block(p, condition="rebound", version=before, n_stale=versions - 1, versions=versions, **own))
        parts.append(block(control, condition="control", versions=1, **own))
    return pd.concat(parts)


def test_proactive_and_retroactive_are_told_apart():
    frame = pd.concat([overwrite(0, {2: 0.9, 4: 0.45}, 0.9), overwrite(1, {2: 0.6, 4: 0.0}, 0.8)])
    proactive, retroactive = measures.proactive(frame), measures.retroactive(frame)
    assert proactive["versions"].tolist() == [2, 4] and proactive["index"].tolist() == pytest.approx([0, 0.5])
    assert retroactive["later"].tolist() == [1, 3] and retroactive["index"].tolist() == pytest.approx([0.25, 1])
    with pytest.raises(BadRequest, match=r"task\.ask to first or mixed"):
        measures.retroactive(overwrite(0, {2: 0.9}, 0.9))
    with pytest.raises(BadRequest, match="paired_versions"):
        measures.proactive(block(1, condition="rebound"))


def test_versions_count_the_latest_value_only():
    frame = pd.concat([overwrite(0, {2: 0.5}, 1.0), overwrite(1, {2: 0.0}, 0.0)])
    out = measures.accuracy_by_versions(frame)
    assert out["mean"].tolist() == [1, 0.5]
    assert measures.version_slope(frame)["slope"].item() == pytest.approx(-0.5 / np.log(2))


def test_values_that_stand_side_by_side_are_no_versions():
    frame = pd.concat([block(1, version=v, n_stale=1, ordinal=v) for v in (0, 1)])
    with pytest.raises(BadRequest, match="latest value"):
        measures.accuracy_by_versions(frame)


def test_an_arm_without_two_values_has_no_slope():
    frame = pd.concat([block(1, fan=1), block(0.5, fan=2), block(1, fan=1, arm="gpt2", run_id="b")])
    assert measures.fan(frame)["arm"].tolist() == ["kda"]


def test_load_interference_is_against_the_fewest_later_writes():
    frame = pd.concat([block(p, lag_writes=m) for m, p in ((0, 0.8), (4, 0.6), (8, 0.2))] + [block(0, lag_writes=-1)])
    out = measures.load_interference(frame)
    assert out["lag_writes"].tolist() == [4, 8] and out["index"].tolist() == pytest.approx([0.25, 0.75])
    with pytest.raises(BadRequest, match="does not vary"):
        measures.load_interference(block(1, lag_writes=3))


def test_release_and_return():
    rates = {"single": 0.9, "no_shift": 0.4, "shift": 0.9, "return": 0.65}
    frame = pd.concat(
        [block(p, condition=c, blocks_ago=0) for c, p in rates.items()] + [block(0, condition="shift", blocks_ago=1)]
    )
    out = measures.release_from_interference(frame).set_index("condition")["release"]
    assert out.to_dict() == pytest.approx({"shift": 1.0, "return": 0.5})
    with pytest.raises(BadRequest, match="single, no_shift and shift"):
        measures.release_from_interference(block(1, condition="shift"))


def test_fan_spacing_and_output_interference():
    frame = pd.concat([block(1, fan=f, spacing=f, log_odds_other=3 - np.log(f)) for f in (1, 2, 4)])
    out = measures.fan(frame).set_index("measure")["slope"]
    assert out["margin"] == pytest.approx(-1) and out["accuracy"] == 0
    assert measures.spacing(frame)["slope"].tolist() == pytest.approx([0, -1])
    read = pd.concat([block(1 - 0.2 * i, query_index=i, scoring="sequential") for i in range(3)])
    assert measures.output_interference(read)["slope"].item() == pytest.approx(-0.2)
    with pytest.raises(BadRequest, match="scored forked"):
        measures.output_interference(read.assign(scoring="forked"))
    with pytest.raises(BadRequest, match="do not vary fan"):
        measures.fan(block(1, fan=1))


def test_primacy_and_recency():
    frame = pd.concat([block(p, serial_position=s, load=21) for s, p in ((0, 0.9), (10, 0.5), (20, 0.8), (-1, 0.0))])
    out = measures.serial_position(frame).set_index("part")["difference"]
    assert out.to_dict() == pytest.approx({"primacy": 0.4, "recency": 0.3})


def test_directed_forgetting():
    frame = pd.concat(
        [
            block(p, condition=c, block=b)
            for c, b, p in (("keep", 0, 0.8), ("forget", 0, 0.2), ("keep", 1, 0.5), ("forget", 1, 0.7))
        ]
    )
    out = measures.directed_forgetting(frame).set_index("part")["difference"]
    assert out.to_dict() == pytest.approx({"cost": -0.6, "benefit": 0.2})


@pytest.mark.slow
def test_trained_models_agree_in_direction_with_the_oracle(tmp_path):
    """Versions: additive falls as 1/n, delta stays above. Load: both fall. Two runs a rule, some minutes."""
    from mnemolab.trainers import RunConfig, train

    newest = {r: simulate_overwrite(RULES[r], 4, 4)["chosen"].iloc[0] for r in ("additive", "delta")}
    recall = {
        r: [simulate(RULES[r], n, key_channels=16, value_channels=16)["accuracy"].mean() for n in (8, 32)]
        for r in newest
    }
    assert newest["additive"] < 0.4 < newest["delta"] and all(few > many for few, many in recall.values())
    at_four = {}
    for stage in ("linear_attention", "deltanet"):
        config = RunConfig.from_dict(
            {
                "task": {"name": "key_overwrite", "keys": 4, "lags": 5, "length": 36},
                "model": {"name": stage, "width": 48, "depth": 1, "heads": 2, "head_dim": 24},
                "optimiser": {"learning_rate": 5e-3},
                "budget": {
                    "steps": 700,
                    "batch_size": 64,
                    "evaluate_every": 350,
                    "validation_examples": 64,
                    "test_examples": 256,
                },
            }
        )
        records = train(config, out=tmp_path).records.assign(run_id="a", arm=stage)
        records["n_stale"] = [len(s) for s in records["stale"]]
        table = measures.accuracy_by_versions(records).set_index("versions")["mean"]
        at_four[stage] = table[4]
        assert table[1] > table[4] - 0.02
    assert at_four["linear_attention"] < 0.45 < at_four["deltanet"]
    falls = {}
    for pairs in (4, 24):
        config = RunConfig.from_dict(
            {
                "task": {"name": "associative_recall", "pairs": pairs, "length": 3 * pairs},
                "model": {"name": "linear_attention", "width": 32, "depth": 1, "heads": 1, "head_dim": 8},
                "optimiser": {"learning_rate": 5e-3},
                "budget": {"steps": 700, "batch_size": 64, "evaluate_every": 350, "validation_examples": 64, "test_examples": 256},
            }
        )  # fmt: skip
        falls[pairs] = train(config, out=tmp_path).result["test"]["accuracy"]
    assert falls[4] > falls[24]
