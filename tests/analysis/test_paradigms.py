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


def one_relieved(ask: int) -> pd.DataFrame:
    """key_overwrite with control=one, 40 pairs of sequences: keys 0 and 1 have 3 versions, key 2 has 2. The second of a pair
    relieves key 0, always answered then and every second time by its twin; nobody answers what has no control."""
    example, key = np.repeat(np.arange(80), 3), np.tile(np.arange(3), 80)
    control = (example % 2 == 1) & (key == 0)
    frame = {"run_id": "a", "arm": "kda", "example": example, "key": key + example // 2 % 7, "ask": ask, "version": 0,
             "paired_versions": np.where(key == 2, 2, 3), "condition": np.where(control, "control", "rebound"),
             "correct": control | ((key == 0) & (example % 4 == 0))}  # fmt: skip
    return pd.DataFrame(frame)


@pytest.mark.parametrize(
    "ask, measure, axis", [(0, measures.proactive, "versions"), (1, measures.retroactive, "later")]
)
def test_a_rebound_key_counts_only_where_it_has_its_own_control(ask, measure, axis):
    """Unpaired the index would be .83, and a row of 2 versions, which no control has, is none."""
    frame = one_relieved(ask)
    out = measure(frame)
    assert out[axis].tolist() == [3 - ask] and out["index"].tolist() == [0.5] and out["queries"].tolist() == [40]
    # foreign records that name no key: means alone
    assert measure(frame.drop(columns="key"))["index"].tolist() == pytest.approx([5 / 6])
    # pairs are of one run: the key that another run relieves has no control here
    first = frame["key"] - frame["example"] // 2 % 7
    other = frame.assign(run_id="b", key=frame["key"] + np.array([1, -1, 0])[first])
    assert measure(pd.concat([frame, other]))["index"].tolist() == [0.5]
    with pytest.raises(BadRequest, match="no control has its key rebound in its twin"):
        measure(frame[frame["example"] % 2 == 1])


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
    frame = pd.concat([block(1, fan=1), block(0.5, fan=2), block(1, fan=1, arm="gpt2", run_id="b")]).assign(
        lag_tokens=9
    )
    assert measures.fan(frame)["arm"].tolist() == ["kda"]


def test_load_interference_is_against_the_fewest_later_writes():
    frame = pd.concat(
        [block(p, lag_writes=m, lag_tokens=30) for m, p in ((0, 0.8), (4, 0.6), (8, 0.2))]
        + [block(0, lag_writes=-1, lag_tokens=-1)]
    )
    out = measures.load_interference(frame)
    assert out["lag_writes"].tolist() == [4, 8] and out["index"].tolist() == pytest.approx([0.25, 0.75])
    with pytest.raises(BadRequest, match="does not vary"):
        measures.load_interference(block(1, lag_writes=3, lag_tokens=5))


def test_load_interference_takes_the_fewest_writes_of_each_arm():
    shifted = [block(p, lag_writes=m, lag_tokens=30, arm="gpt2", run_id="b") for m, p in ((2, 0.8), (4, 0.4))]
    frame = pd.concat([block(p, lag_writes=m, lag_tokens=30) for m, p in ((0, 0.8), (4, 0.6))] + shifted)
    out = measures.load_interference(frame).set_index("arm")["index"]
    assert out.to_dict() == pytest.approx({"kda": 0.25, "gpt2": 0.5})


# ---- lag held: memories that only decay show no interference, and a factor that is the lag is refused


def decaying(n: int, lag: np.ndarray, **columns) -> pd.DataFrame:
    """Answers that depend on nothing but the lag: right with probability exp(-lag / 30)."""
    right = np.random.default_rng(0).random(n) < np.exp(-lag / 30)
    return pd.DataFrame(
        {"run_id": "a", "arm": "kda", "example": np.arange(n) // 8, "lag_tokens": lag, "correct": right, **columns}
    )


def test_forgetting_with_time_is_no_interference_by_load():
    rng = np.random.default_rng(1)
    writes = rng.integers(0, 10, 40_000)
    lag = 2 * writes + rng.integers(1, 30, 40_000)  # more writes take longer, and filler varies the rest
    out = measures.load_interference(decaying(40_000, lag, lag_writes=writes, n_stale=0))
    assert (out["low"] <= 0).all() and (out["high"] >= 0).all() and out["index"].abs().max() < 0.1
    raw = 1 - np.exp(-lag[writes == 9] / 30).mean() / np.exp(-lag[writes == 0] / 30).mean()
    assert raw > 0.3  # what a comparison of all queries would say
    with pytest.raises(BadRequest, match="lag_writes and lag_tokens go together"):
        measures.load_interference(decaying(40_000, 2 * writes + 1, lag_writes=writes, n_stale=0))


def test_forgetting_with_time_is_no_output_interference():
    rng = np.random.default_rng(2)
    index = rng.integers(0, 6, 40_000)
    lag = 20 + 3 * index + rng.integers(0, 40, 40_000)
    out = measures.output_interference(decaying(40_000, lag, query_index=index, scoring="sequential")).iloc[0]
    assert (
        out["low"] < 0 < out["high"] and abs(out["slope"]) < 0.005 and out["against"] == "lag" and out["within"] > 0.5
    )
    with pytest.raises(BadRequest, match="query_index and lag_tokens go together"):
        measures.output_interference(decaying(40_000, 20 + 3 * index, query_index=index, scoring="sequential"))
    many = 10 * np.arange(40_000) % 6007  # more lags than are strata of their own
    with pytest.raises(BadRequest, match="go together"):
        measures.output_interference(decaying(40_000, many, query_index=many, scoring="sequential"))


def test_output_interference_is_sequential_minus_forked():
    """Each query read before costs .05, on top of a lag that goes with the query's place."""
    rng = np.random.default_rng(3)
    place, example = np.tile(np.arange(6), 4000), np.repeat(np.arange(4000), 6)
    base = pd.DataFrame(
        {
            "run_id": "a",
            "arm": "kda",
            "example": example,
            "query": place,
            "query_index": place,
            "lag_tokens": 20 + place,
        }
    )
    forked = rng.random(24_000) < 0.9 * np.exp(-place / 20)
    kept = rng.random(24_000) < 1 - 0.05 * place / np.exp(-place / 20) / 0.9
    frame = pd.concat(
        [base.assign(scoring="forked", correct=forked), base.assign(scoring="sequential", correct=forked & kept)]
    )
    out = measures.output_interference(frame).iloc[0]
    assert out["slope"] == pytest.approx(-0.05, abs=0.006) and out["change"] == pytest.approx(-0.15, abs=0.01)
    assert out["low"] <= out["slope"] <= out["high"] and out["against"] == "forked"


def test_forgetting_with_time_is_no_spacing_effect():
    rng = np.random.default_rng(4)
    spacing = rng.integers(1, 10, 40_000)
    lag = 40 - 3 * spacing + rng.integers(0, 40, 40_000)  # wide spacing leaves less time after the second writing
    out = measures.spacing(decaying(40_000, lag, spacing=spacing)).iloc[0]
    assert out["low"] < 0 < out["high"]
    with pytest.raises(BadRequest, match="spacing and lag_tokens go together"):
        measures.spacing(decaying(40_000, 40 - 3 * spacing, spacing=spacing))


def test_recency_at_matched_lag():
    """Lists of 16 to 31: position and lag are complements within a list, and apart over lists."""
    rng = np.random.default_rng(5)
    load = rng.integers(16, 32, 40_000)
    place = (rng.random(40_000) * load).astype(int)
    out = measures.serial_position(decaying(40_000, load - 1 - place, serial_position=place, load=load))
    assert (out["low"] <= 0).all() and (out["high"] >= 0).all() and len(out)
    same = rng.integers(0, 32, 4000)
    with pytest.raises(BadRequest, match="position and lag go together"):
        measures.serial_position(decaying(4000, 31 - same, serial_position=same, load=32))


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
    frame = pd.concat([block(1, fan=f, spacing=f, lag_tokens=9, log_odds_other=3 - np.log(f)) for f in (1, 2, 4)])
    out = measures.fan(frame).set_index("measure")["slope"]
    assert out["margin"] == pytest.approx(-1) and out["accuracy"] == 0
    assert measures.spacing(frame)["slope"].tolist() == pytest.approx([0, -1])
    read = pd.concat([block(1 - 0.2 * i, query_index=i, lag_tokens=9, scoring="sequential") for i in range(3)])
    assert measures.output_interference(read)["slope"].item() == pytest.approx(-0.2)
    with pytest.raises(BadRequest, match="scored forked"):
        measures.output_interference(read.assign(scoring="forked"))
    with pytest.raises(BadRequest, match="do not vary fan"):
        measures.fan(block(1, fan=1, lag_tokens=9))


def test_primacy_and_recency():
    frame = pd.concat(
        [block(p, serial_position=s, load=21, lag_tokens=9) for s, p in ((0, 0.9), (10, 0.5), (20, 0.8), (-1, 0.0))]
    )
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
