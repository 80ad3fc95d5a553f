"""Interference indices on hand-made records with known answers."""

import numpy as np
import pandas as pd
import pytest

from mnemolab.analysis.indices import contrast, index, release, slope
from mnemolab.errors import BadRequest


def block(right: float, n: int = 100, **columns) -> pd.DataFrame:
    """n queries, of which a share `right` is right."""
    base = {"run_id": "a", "arm": "kda", "example": np.arange(n) // 4}
    return pd.DataFrame({**base, "correct": np.arange(n) < round(right * n), **columns})


def test_proactive_index_along_versions():
    frame = pd.concat(
        [block(0.9, condition="control", versions=v) for v in (1, 2, 4)]
        + [block(p, condition="overwrite", versions=v) for v, p in ((1, 0.9), (2, 0.45), (4, 0.0))]
    )
    out = index(frame, "overwrite", "control", "versions")
    assert out["versions"].tolist() == [1, 2, 4]
    assert out["index"].tolist() == pytest.approx([0, 0.5, 1]) and out["difference"].tolist() == pytest.approx(
        [0, 0.45, 0.9]
    )
    assert (out["low"] <= out["index"]).all() and (out["index"] <= out["high"]).all()


def test_index_is_the_mean_of_run_indices():
    frame = pd.concat(
        [
            block(0.8, condition="control"), block(0.4, condition="rest"),
            block(0.4, condition="control", run_id="b"), block(0.4, condition="rest", run_id="b"),
        ]
    )  # fmt: skip
    out = index(frame, "rest", "control")
    assert out["index"].item() == pytest.approx((0.5 + 0.0) / 2) and out["runs"].item() == 2


def test_pooled_control_and_a_control_that_is_never_right():
    frame = pd.concat([block(0.8, condition="control", m=0), block(0.4, condition="rest", m=5)])
    assert index(frame, "rest", "control", "m", pooled_control=True)["index"].item() == pytest.approx(0.5)
    with pytest.raises(BadRequest, match="share no cell"):
        index(frame, "rest", "control", "m")
    never = index(pd.concat([block(0, condition="control"), block(0.4, condition="rest")]), "rest", "control")
    assert np.isnan(never["index"].item()) and "never right" in never["note"].item()


def test_slope_and_half_point():
    frame = pd.concat([block(p, n=1000, versions=v) for v, p in ((1, 1.0), (2, 0.7), (4, 0.4), (8, 0.1))])
    out = slope(frame, "versions")
    assert out["slope"].item() == pytest.approx(-0.3 / np.log(2), rel=1e-6)
    assert out["half_point"].item() == pytest.approx(np.exp(np.log(2) + np.log(2) * (0.2 / 0.3)), rel=1e-6)
    assert out["low"].item() < out["slope"].item() < out["high"].item()
    flat = slope(pd.concat([block(0.9, versions=v) for v in (1, 2)]), "versions")
    assert (
        flat["slope"].item() == pytest.approx(0)
        and np.isinf(flat["half_point"].item())
        and np.isinf(flat["half_high"].item())
    )


def test_fan_effect_is_the_slope_of_the_margin():
    frame = pd.concat([block(1, fan=f, margin=2 - 0.5 * np.log(f)) for f in (1, 2, 3)])
    assert slope(frame, "fan", "margin")["slope"].item() == pytest.approx(-0.5)


def test_slope_needs_two_values_above_zero():
    with pytest.raises(BadRequest, match="one value"):
        slope(block(1, versions=2), "versions")
    with pytest.raises(BadRequest, match="log=False"):
        slope(pd.concat([block(1, m=0), block(1, m=1)]), "m")
    assert slope(pd.concat([block(1, m=0), block(0.5, m=1)]), "m", log=False)["slope"].item() == pytest.approx(-0.5)


def test_release():
    frame = pd.concat([block(0.9, condition="first"), block(0.4, condition="none"), block(0.65, condition="shift")])
    out = release(frame, "shift", "none", "first")
    assert out["release"].item() == pytest.approx(0.5) and out["difference"].item() == pytest.approx(0.25)
    same = release(frame.assign(correct=True), "shift", "none", "first")
    assert np.isnan(same["release"].item()) and "nothing was surely lost" in same["note"].item()
    with pytest.raises(BadRequest, match="no query has this condition"):
        release(frame, "return", "none", "first")


def test_release_is_over_runs_that_have_all_three_conditions():
    """Run b lacks the shift: what it lost must not enter the denominator of run a's release."""
    whole = [block(p, condition=c) for c, p in (("shift", 0.75), ("none", 0.5), ("first", 1.0))]
    other = [block(p, condition=c, run_id="b") for c, p in (("none", 0.0), ("first", 1.0))]
    out = release(pd.concat(whole + other), "shift", "none", "first").iloc[0]
    assert out["release"] == pytest.approx(0.5) and out["lost"] == pytest.approx(0.5) and out["runs"] == 1
    apart = release(pd.concat([whole[0], *other]), "shift", "none", "first").iloc[0]
    assert np.isnan(apart["release"]) and "no run has" in apart["note"]


def test_release_needs_a_loss_that_is_no_noise():
    """Four of six runs happen to lose a little: their ratios alone would be noise, and dropping the others a bias."""
    frame = pd.concat(
        [
            block(p, condition=c, run_id=str(r))
            for r, lost in enumerate((0.01, 0.02, -0.02, 0.01, -0.01, 0.01))
            for c, p in (("first", 0.8 + lost), ("none", 0.8), ("shift", 0.85))
        ]
    )
    out = release(frame, "shift", "none", "first").iloc[0]
    assert np.isnan(out["release"]) and "nothing was surely lost" in out["note"] and out["runs"] == 6
    assert out["lost_low"] < 0 < out["lost_high"] and out["difference"] == pytest.approx(0.05)


def test_an_index_counts_the_runs_that_have_one_and_says_when_it_is_noise():
    parts = [block(p, condition=c, run_id=str(r)) for r in range(2) for c, p in (("control", 0.8), ("rest", 0.4))]
    parts += [block(0, condition=c, run_id=str(r)) for r in (2, 3, 4) for c in ("control", "rest")]
    out = index(pd.concat(parts), "rest", "control").iloc[0]
    assert out["runs"] == 2 and out["index"] == pytest.approx(0.5) and "undefined in 3 of 5 runs" in out["note"]
    rare = pd.concat([block(0.04, condition="control"), block(0.1, condition="rest")])
    assert "fewer than 10 times in 1 of 1 runs" in index(rare, "rest", "control")["note"].item()


def test_half_point_passes_over_empty_cells_and_runs_that_never_fall():
    fall = [block(p, n=1000, versions=v) for v, p in ((1, 1.0), (2, 0.7), (4, 0.4), (8, 0.1))]
    gap = [f.assign(run_id="b") for f in (fall[0], fall[1], fall[3])]  # nothing at 4 versions
    out = slope(pd.concat(gap + [f.assign(run_id="c", correct=np.nan) for f in fall[2:3]]), "versions").iloc[0]
    between = np.log(2) + (np.log(8) - np.log(2)) * (0.7 - 0.5) / (0.7 - 0.1)
    assert out["half_point"] == pytest.approx(np.exp(between))
    never = [block(0.9, n=1000, versions=v, run_id=r) for v in (1, 8) for r in ("d", "e")]
    more = [f.assign(run_id=r) for f in fall for r in "afg"]
    out = slope(pd.concat(more + never), "versions").iloc[0]
    alone = slope(pd.concat(fall), "versions")["half_point"].item()
    assert out["half_point"] == pytest.approx(alone) and out["never"] == 2 and np.isinf(out["half_high"])
    late = [f.assign(run_id="h") for f in fall[1:]]  # without the cell that others start from
    out = slope(pd.concat(fall + late), "versions").iloc[0]
    assert out["half_point"] == pytest.approx(alone) and "no half-point in 1 of 2 runs" in out["note"]


def test_contrast():
    frame = pd.concat([block(0.9, part="a"), block(0.4, part="b")])
    out = contrast(frame, (frame["part"] == "a").to_numpy(), (frame["part"] == "b").to_numpy())
    assert out["difference"].item() == pytest.approx(0.5) and out["a"].item() == pytest.approx(0.9)
    with pytest.raises(BadRequest, match="chooses 0"):
        contrast(frame, (frame["part"] == "c").to_numpy(), (frame["part"] == "b").to_numpy())


def test_index_interval_covers():
    """Two conditions at .8 and .4 in 8 runs: the 95% interval holds the index .5 in 88 to 100% of 60 trials."""
    rng, held = np.random.default_rng(0), 0
    for trial in range(60):
        frames = []
        for run in range(8):
            for name, p in (("control", 0.8), ("rest", 0.4)):
                frames.append(block(0, n=80, condition=name, run_id=str(run)).assign(correct=rng.random(80) < p))
        out = index(pd.concat(frames), "rest", "control", draws=200, seed=trial)
        held += bool(out["low"].item() <= 0.5 <= out["high"].item())
    assert held >= 53
