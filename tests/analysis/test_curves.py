"""Curves, intrusions and ratios on hand-made records with known answers."""

import numpy as np
import pandas as pd
import pytest

from mnemolab.analysis import interference, retention
from mnemolab.analysis.cells import axis_bins, curve, per_run
from mnemolab.errors import BadRequest


def table(**columns) -> pd.DataFrame:
    """Records of one run where only the given columns matter."""
    rows = len(next(iter(columns.values())))
    before = columns.get("version", columns.get("n_stale", 0))
    base = {
        "run_id": "a",
        "arm": "kda",
        "example": np.arange(rows),
        "chance": 0.25,
        "version": before,
        "n_stale": before,
    }
    return pd.DataFrame({**base, **columns})


def test_curve_means_by_hand():
    frame = pd.concat(
        [
            table(lag_writes=[1, 1, 2, 2], correct=[1, 1, 1, 0]),
            table(lag_writes=[1, 1, 2, 2], correct=[1, 0, 0, 0]).assign(run_id="b"),
        ]
    )
    out = retention.curve(frame, "lag_writes")
    assert out["mean"].tolist() == [0.75, 0.25] and out["runs"].tolist() == [2, 2] and out["queries"].tolist() == [4, 4]
    assert out["corrected"].tolist() == pytest.approx([(0.75 - 0.25) / 0.75, 0]) and out["chance"].tolist() == [
        0.25,
        0.25,
    ]
    assert (out["low"] <= out["mean"]).all() and (out["mean"] <= out["high"]).all()


def test_without_a_rival_there_is_nothing_to_correct():
    out = retention.curve(table(lag_writes=[1, 2], correct=[1, 0], chance=1.0), "lag_writes")
    assert out["mean"].tolist() == [1, 0] and "corrected" not in out and out["chance"].tolist() == [1, 1]


def test_runs_weigh_the_same_however_many_queries_they_have():
    frame = pd.concat(
        [table(lag_writes=[1] * 9, correct=[1] * 9), table(lag_writes=[1], correct=[0]).assign(run_id="b")]
    )
    assert curve(frame, "lag_writes")["mean"].item() == 0.5
    assert per_run(frame, "lag_writes")["mean"].tolist() == [1, 0]


def test_arms_do_not_mix_and_equal_seeds_repeat():
    frame = pd.concat([table(x=[0, 1], correct=[1, 1]), table(x=[0, 1], correct=[0, 0]).assign(arm="gpt2", run_id="b")])
    out = curve(frame, "x")
    assert dict(zip(out["arm"], out["mean"], strict=True)) == {"gpt2": 0.0, "kda": 1.0}
    pd.testing.assert_frame_equal(out, curve(frame, "x"))


def test_sums_over_blocks_change_no_mean():
    rng = np.random.default_rng(0)
    frame = table(x=rng.integers(0, 3, 5000), correct=rng.integers(0, 2, 5000))
    out = curve(frame, "x", draws=10)
    assert out["mean"].tolist() == pytest.approx(frame.groupby("x")["correct"].mean().tolist())


def test_queries_of_a_sequence_are_not_independent():
    """200 sequences whose 5 queries agree: the interval is that of 200 answers, not of 1,000."""
    right = np.repeat(np.random.default_rng(0).integers(0, 2, 200), 5)
    out = curve(table(correct=right, example=np.repeat(np.arange(200), 5)), None, draws=2000).iloc[0]
    assert out["high"] - out["low"] == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(200), rel=0.15)


def test_wide_axes_are_binned_into_equal_counts():
    bins = axis_bins(np.arange(1200))
    assert np.unique(bins).size == 12 and np.bincount(bins).tolist() == [100] * 12
    assert axis_bins([5, 5, 9]).tolist() == [0, 0, 1]


def test_named_axis_keeps_its_labels():
    frame = table(condition=["shift", "none", "shift"], correct=[1, 0, 0])
    out = curve(frame, "condition")
    assert dict(zip(out["condition"], out["mean"], strict=True)) == {"none": 0.0, "shift": 0.5}


def test_values_that_are_nan_are_left_out_and_all_nan_is_an_error():
    frame = table(x=[0, 0, 1], correct=[1, 0, 1], log=[np.nan, 2.0, np.nan])
    out = curve(frame, "x", "log")
    assert out["x"].tolist() == [0] and out["mean"].tolist() == [2]
    with pytest.raises(BadRequest, match="no query is left"):
        curve(frame.assign(log=np.nan), "x", "log")


def test_missing_columns_are_named():
    with pytest.raises(BadRequest, match="lag_tokens"):
        retention.curve(table(correct=[1]), "lag_tokens")


def test_accuracy_by_versions():
    out = interference.accuracy_by_versions(table(version=[0, 0, 1, 1], correct=[1, 1, 0, 1]))
    assert out["versions"].tolist() == [1, 2] and out["mean"].tolist() == [1, 0.5]


def test_intrusion_shares_and_excess_over_chance():
    frame = table(
        version=[2, 2, 2, 2],
        n_stale=[2, 2, 2, 2],
        outcome=["stale", "stale", "correct", "other_key"],
        chance=[0.1] * 4,
        correct=[0, 0, 1, 0],
    )
    out = interference.intrusions(frame).set_index("outcome")
    assert out["mean"].to_dict() == {"correct": 0.25, "stale": 0.5, "other_key": 0.25, "absent": 0, "invalid": 0}
    chance = {"correct": 0.1, "stale": 0.2, "other_key": 0.7, "absent": 0, "invalid": 0}
    assert out["chance"].to_dict() == pytest.approx(chance)
    assert out["excess"].to_dict() == pytest.approx({k: out["mean"][k] - chance[k] for k in chance})


def test_stale_ages_count_only_keys_that_have_that_age():
    frame = table(n_stale=[1, 1, 2, 2], stale_age=[1, 0, 2, 1], chance=[0.1] * 4)
    out = interference.stale_ages(frame)
    assert out["age"].tolist() == [1, 2] and out["mean"].tolist() == [0.5, 0.5] and out["queries"].tolist() == [4, 2]
    assert out["excess"].tolist() == pytest.approx([0.4, 0.4])


def test_stale_ages_without_stale_values_is_an_empty_table():
    out = interference.stale_ages(table(n_stale=[0, 0], stale_age=[0, 0]))
    assert out.empty and "excess" in out


def test_stale_new_ratio_is_the_odds():
    frame = table(version=[1, 1, 2, 0], log_odds_stale=[np.log(4), np.log(4), 0.0, np.nan])
    out = interference.stale_new_ratio(frame)
    assert out["versions"].tolist() == [2, 3] and out["ratio"].tolist() == pytest.approx([0.25, 1])
    with pytest.raises(BadRequest, match="overwritten"):
        interference.stale_new_ratio(frame.assign(log_odds_stale=np.nan))


def test_a_missing_category_falls_into_no_cell():
    """NaN of a categorical has the code -1, which must not be read as the last category."""
    frame = table(condition=pd.Categorical(["x", None, "z", None]), correct=[1, 0.5, 0, 0.5])
    out = curve(frame, "condition")
    assert dict(zip(out["condition"], out["mean"], strict=True)) == {"x": 1.0, "z": 0.0}
    assert out["queries"].sum() == 2
    with pytest.raises(BadRequest, match="condition is missing in 2 rows"):
        curve(frame, None, by=["arm", "condition"])
    mixed = frame.assign(condition=np.array(["x", np.nan, "z", np.nan], dtype=object))
    assert curve(mixed, "condition")["queries"].sum() == 2


def test_the_interval_does_not_depend_on_how_examples_are_numbered():
    """Numbers in strides of 256 must not make one block of all sequences."""
    right = np.random.default_rng(0).integers(0, 2, 2000)
    plain = curve(table(correct=right, example=np.arange(2000)), None)
    strided = curve(table(correct=right, example=np.arange(2000) * 256), None)
    pd.testing.assert_frame_equal(plain, strided)
    assert strided["high"].item() - strided["low"].item() > 0.03


def test_numbers_that_are_missing_are_named():
    frame = table(version=[0, 1], outcome=["correct", "stale"], stale_age=[0, 1], correct=[1, 0])
    for column in ("chance", "n_stale"):
        gap = frame.assign(**{column: [np.nan, 1]})
        for measure in (interference.intrusions, interference.stale_ages):
            with pytest.raises(BadRequest, match=f"{column} is missing in 1 of 2"):
                measure(gap)
