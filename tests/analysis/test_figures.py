"""Figures that need a sweep or a special task, drawn from synthetic runs: they appear when they apply and say why not."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from mnemolab.analysis.figures import FIGURES, NotApplicable, claim_summary, make, save
from mnemolab.analysis.figures import gates as inside
from mnemolab.analysis.figures.behaviour import retention_by_lag
from mnemolab.analysis.records import Study
from mnemolab.analysis.style import COLUMN, canvas, legend_above, look, paper
from mnemolab.errors import BadRequest


def test_frontier_and_learning_rate(tmp_path, write_run):
    for width, state in ((16, 256), (32, 512)):
        for stage in ("kda", "deltanet"):
            for seed in range(2):
                write_run(tmp_path, stage, seed, width=width, state=state)
    for run in tmp_path.iterdir():
        text = (run / "result.json").read_text()
        (run / "result.json").write_text(text.replace("2048", run.name.split("-")[-1]))
    saved, _ = make(tmp_path, tmp_path / "f", ["frontier"])
    table = pd.read_csv(saved[0].csv)
    assert set(table["state_elements"]) == {256, 512} and set(table["arm"]) == {"kda", "deltanet"}
    study = Study.of(tmp_path)
    study.runs[["model.width", "model.state"]] = 16
    study.runs["optimiser.learning_rate"] = np.tile([1e-3, 3e-3, 1e-2, 3e-2], 2)
    plot = FIGURES["learning-rate"](study)[0]
    assert plot.data["optimiser.learning_rate"].nunique() == 4 and plot.figure.axes[0].get_xscale() == "log"


def test_frontier_and_learning_rate_draw_one_line_a_setting():
    """Tasks of two lengths are not replicates: each is a line of its own, over the sizes of its state."""
    rows = [
        {"run_id": f"{length}-{width}-{seed}", "task": "t", "stage": "kda", "arm": f"kda, width {width}, length {length}", "seed": seed,
         "model.width": width, "task.length": length, "state_elements": 16 * width, "test.accuracy": 0.5 + length / 1000,
         "optimiser.learning_rate": 1e-3 * width}
        for length in (64, 128) for width in (16, 32, 64) for seed in range(2)
    ]  # fmt: skip
    study = Study(())
    study.__dict__.update(runs=pd.DataFrame(rows))
    table = FIGURES["frontier"](study)[0].data
    assert set(table["arm"]) == {"kda, length 64", "kda, length 128"} and (table["runs"] == 2).all() and len(table) == 6
    same = study.runs.assign(**{"model.width": 16})
    study.__dict__.update(runs=same)
    rates = FIGURES["learning-rate"](study)[0].data
    assert set(rates["arm"]) == {"kda, length 64", "kda, length 128"} and (rates["runs"] == 2).all()


@pytest.mark.parametrize(
    "sizes", [(1008, 1600, 29952, 44160), (272, 800, 2624, 10528), (16, 24), (1000, 2000, 4000, 8000, 16000, 32000)]
)
def test_sizes_of_state_are_read_apart(sizes):
    rows = [
        {"run_id": f"{size}", "task": "t", "stage": "kda", "arm": f"kda, width {size}", "seed": 0, "model.width": size,
         "state_elements": size, "test.accuracy": 0.5}
        for size in sizes
    ]  # fmt: skip
    study = Study(())
    study.__dict__.update(runs=pd.DataFrame(rows))
    figure = FIGURES["frontier"](study)[0].figure
    figure.draw_without_rendering()
    labels = [t.get_window_extent() for t in figure.axes[0].get_xticklabels()]
    assert len(labels) >= 2 and not any(a.overlaps(b) for a, b in pairwise(labels))


def test_a_stage_of_one_size_is_a_ceiling_and_defaults_have_no_name():
    """Of a stage with two feature maps the one it has anyway goes by the stage's name."""
    rows = [
        {"run_id": f"{stage}-{feature}-{width}-{seed}", "task": "t", "stage": stage, "arm": stage, "seed": seed, "model.width": width,
         "model.feature_map": feature, "state_elements": 16 * width, "test.accuracy": 0.5}
        for stage, feature, widths in (("gpt2", None, [64]), ("linear_attention", None, [16, 32]), ("linear_attention", "elu1", [16, 32]))
        for width in widths for seed in range(2)
    ]  # fmt: skip
    study = Study(())
    study.__dict__.update(runs=pd.DataFrame(rows))
    plot = FIGURES["frontier"](study)[0]
    assert set(plot.data["arm"]) == {"gpt2", "linear_attention", "linear_attention, feature map elu1"}
    across = [line for line in plot.figure.axes[0].lines if list(line.get_xdata()) == [0, 1]]
    assert len(across) == 1 and list(across[0].get_ydata()) == [0.5, 0.5] and "Dashed" in plot.caption
    study.__dict__.update(runs=study.runs[study.runs["stage"] != "gpt2"])
    assert "Dashed" not in FIGURES["frontier"](study)[0].caption


def test_a_sweep_over_loads_is_one_curve_a_model():
    frame = pd.concat(
        [rows(load=n, run_id=f"{n}", arm=f"kda, pairs {n}").assign(**{"task.pairs": n}) for n in (4, 8, 16)]
    )
    study = study_of(frame)
    study.runs["task.pairs"] = study.runs["run_id"].astype(int)
    plot = retention_by_lag(study, "load")[0]
    assert set(plot.data["arm"]) == {"kda"} and plot.data["load"].tolist() == [4, 8, 16]


def test_query_order_shows_what_reading_cost_where_it_can():
    place, example = np.tile(np.arange(4), 60), np.repeat(np.arange(60), 4)
    read = rows(query=place, query_index=place, example=example, lag_tokens=9).assign(
        scoring="sequential", correct=place < 2
    )
    both = pd.concat([read, read.assign(scoring="forked", correct=True)])
    plot = FIGURES["query-order"](study_of(both))[0]
    assert plot.data["mean"].tolist() == [0, 0, -1, -1] and "saved state" in plot.caption
    assert FIGURES["query-order"](study_of(read))[0].data["mean"].tolist() == [1, 1, 0, 0]


def test_every_condition_has_a_panel_and_every_run_a_mark():
    def of(arm, run_id, right):
        condition = np.tile(["fresh", "rebound"], 120)
        return rows(arm=arm, stage=arm, run_id=run_id, condition=condition, correct=condition == right)

    study = study_of(pd.concat([of("kda", "a", "fresh"), of("kda", "b", "rebound"), of("deltanet", "c", "fresh")]))
    plot = FIGURES["conditions"](study)[0]
    assert [axes.get_title("left") for axes in plot.figure.axes] == ["fresh", "rebound"]
    table = plot.data.set_index(["arm", "condition"])
    assert table.loc[("kda", "fresh"), ["mean", "least", "most", "runs"]].tolist() == [0.5, 0.0, 1.0, 2]
    assert table.loc[("deltanet", "rebound"), "mean"] == 0.0
    marks = [sorted(line.get_xdata()) for line in plot.figure.axes[0].lines if line.get_marker() == "|"]
    assert marks == [[1.0], [0.0, 1.0]]  # in the order of the lineage
    with pytest.raises(NotApplicable, match="one condition"):
        FIGURES["conditions"](study_of(rows(condition="fresh", correct=True)))


def test_retention_by_writes_lies_over_the_oracle():
    frame = rows(stage="deltanet", arm="deltanet", lag_writes=np.tile(np.arange(12), 20), load=12)
    plot = retention_by_lag(study_of(frame), "lag_writes")[0]
    oracle = plot.data[plot.data["panel"] == "oracle"]
    assert (
        oracle["lag_writes"].tolist() == list(range(12)) and oracle["mean"].iloc[0] > 0.9 and "Dotted" in plot.caption
    )


def test_profiles_and_steps_to_the_criterion():
    """5 of 6 fast runs solve the task, 2 of 6 slow ones: the median of the slow is open."""
    rows = [
        {"run_id": f"{arm}{seed}", "task": "t", "stage": arm, "arm": arm, "seed": seed, "test.accuracy": 1.0 if solved else 0.4,
         "steps_to_solved": solved, "steps": 600}
        for arm, times in (("kda", [40, 50, 60, 70, 80, None]), ("deltanet", [100, 120, None, None, None, None]))
        for seed, solved in enumerate(times)
    ]  # fmt: skip
    study = Study(())
    study.__dict__.update(runs=pd.DataFrame(rows))
    profile = FIGURES["profile"](study)[0].data
    at_half = profile[np.isclose(profile["accuracy"], 0.5)].set_index("arm")["mean"]
    assert at_half.to_dict() == pytest.approx({"kda": 5 / 6, "deltanet": 2 / 6})
    solved = FIGURES["solved"](study)[0].data
    ends = solved.groupby("arm").tail(1).set_index("arm")
    assert ends["mean"].to_dict() == pytest.approx({"kda": 5 / 6, "deltanet": 2 / 6}) and (ends["step"] == 600).all()
    assert ends["median"].to_dict() == {"kda": 60, "deltanet": np.inf}
    study.__dict__.update(runs=study.runs[study.runs["seed"] < 3])
    for name in ("profile", "solved"):
        with pytest.raises(BadRequest, match="4 runs"):
            FIGURES[name](study)


def claim(name: str, verdict: str, effect: float | None = None, margin: float | None = 0.1) -> dict:
    low, high = (None, None) if effect is None else (effect - 0.05, effect + 0.05)
    return {"id": name, "statement": "x", "verdict": verdict, "effect": effect, "low": low, "high": high, "margin": margin, "unit": "points"}  # fmt: skip


def test_claim_summary(tmp_path):
    claims = [
        claim("far", "supported", 9.0),
        claim("undecided", "undecidable here"),
        claim("no", "refuted", -0.02),
        claim("yes", "supported", 0.2),
        claim("exact", "supported", 0.0, margin=None),
    ]
    plot = claim_summary(claims)
    assert plot.data["id"].tolist() == ["far", "yes", "exact", "no", "undecided"]
    assert (
        plot.data.set_index("id")["effect_margins"]["yes"] == pytest.approx(2) and "3 supported; 1 refuted" in plot.alt
    )
    assert save(plot, tmp_path).png.exists()
    with pytest.raises(BadRequest, match="no claims"):
        claim_summary([])
    with pytest.raises(BadRequest, match="yes lacks margin"):
        claim_summary([{k: v for k, v in claim("yes", "supported", 1.0).items() if k != "margin"}])
    with pytest.raises(BadRequest, match="verdict='maybe'"):
        claim_summary([claim("x", "maybe")])


def study_of(records: pd.DataFrame) -> Study:
    study = Study(())
    study.__dict__.update(
        all_records=records, runs=records[["run_id", "task", "stage", "arm", "seed"]].drop_duplicates()
    )
    return study


def rows(n: int = 240, **columns) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    base = {
        "run_id": "a",
        "task": "t",
        "stage": "kda",
        "arm": "kda",
        "seed": 0,
        "example": np.arange(n) // 4,
        "chance": 0.1,
    }
    return pd.DataFrame({**base, "correct": rng.random(n) < 0.7, **columns})


def test_needle_map(tmp_path):
    frame = rows(task="needle", query_depth=np.tile([0, 50, 100], 80))
    frame["task.length"] = np.repeat([64, 128], 120)
    saved = save(FIGURES["needle"](study_of(frame))[0], tmp_path)
    assert len(pd.read_csv(saved.csv)) == 6 and saved.png.exists()


def test_interference_panels_and_release():
    frame = rows(
        condition=np.tile(["rebound", "control"], 120), paired_versions=np.repeat([2, 3], 120), ask=np.tile([0, 0, 1, 1], 60),
        version=0, n_stale=0, lag_writes=np.arange(240) % 5, lag_tokens=9,
    )  # fmt: skip
    plot = FIGURES["interference"](study_of(frame))[0]
    assert [a.get_title(loc="left") for a in plot.figure.axes] == [
        "Proactive",
        "Retroactive, same key",
        "Retroactive, other keys",
    ]
    assert "no curve" not in plot.caption + plot.alt
    topic = rows(condition=np.tile(["single", "no_shift", "shift", "return"], 60))
    plot = FIGURES["release"](study_of(topic))[0]
    assert set(plot.data["condition"]) == {"shift", "return"}


def test_a_panel_says_whose_curve_it_lacks_and_why():
    """An arm whose control is hardly ever right has no index; one that lacks a point has its curve all the same."""
    design = {
        "condition": np.tile(["rebound", "control"], 120), "paired_versions": 2, "ask": 0, "version": 0, "n_stale": 0,
        "lag_writes": np.arange(240) % 5, "lag_tokens": 9,
    }  # fmt: skip
    writes = np.arange(240) % 5
    never = writes > 0  # the control of the other keys, the fewest writes, is wrong
    hardly = never | (np.arange(240) < 20)
    far = (writes == 4) | ((writes == 0) & (np.arange(240) >= 120))
    frame = pd.concat(
        [
            rows(**design).assign(lag_tokens=np.where(far, 20, 9), correct=~far | never),
            rows(**design, run_id="b", stage="gla", arm="gla"),
            rows(**design, run_id="c", stage="gla", arm="gla").assign(correct=hardly),
            rows(**design, run_id="d", stage="deltanet", arm="deltanet").assign(correct=hardly),
            rows(**design, run_id="e", stage="mamba2", arm="mamba2").assign(correct=never),
        ]
    )
    plot = FIGURES["interference"](study_of(frame))[0]
    assert set(plot.data.loc[plot.data["panel"] == "proactive", "arm"]) == {"kda", "gla", "deltanet", "mamba2"}
    others = plot.data[plot.data["panel"] == "load"]
    assert set(others["arm"]) == {"kda"} and others["x"].tolist() == [1, 2, 3]
    few = "Retroactive, other keys: no curve for GLA; DeltaNet, since the control is right fewer than 10 times in some runs."
    none = "Retroactive, other keys: no curve for Mamba-2, since the control is never right: the index is undefined."
    for text in (plot.caption, plot.alt):
        assert few in text and none in text and text.count("no curve") == 2
    plot = FIGURES["interference"](study_of(frame[frame["arm"] == "deltanet"]))[0]
    assert (
        len(plot.figure.axes) == 1 and "Retroactive, other keys: no panel; nothing for DeltaNet, since" in plot.caption
    )


def test_the_legend_names_arms_of_every_panel_in_their_order():
    """DeltaNet's control is never right where versions are compared, so that it has a curve against later writes alone."""
    condition = np.tile(["rebound", "control"], 120)
    design = {
        "condition": condition, "paired_versions": 2, "ask": 0, "version": 0, "n_stale": 0, "lag_writes": np.arange(240) % 5,
        "lag_tokens": 9,
    }  # fmt: skip
    others = [rows(**design), rows(**design, run_id="b", stage="mamba2", arm="mamba2")]
    late = rows(**design, run_id="c", stage="deltanet", arm="deltanet").assign(correct=condition == "rebound")
    plot = FIGURES["interference"](study_of(pd.concat([*others, late])))[0]
    assert set(plot.data.loc[plot.data["arm"] == "deltanet", "panel"]) == {"load"}
    assert [text.get_text() for text in plot.figure.legends[0].get_texts()] == ["Mamba-2", "DeltaNet", "KDA"]


def test_figures_with_one_run_all_right_and_one_lag():
    """All right: points without bars, fits with an open half-life, no warning; one lag: the figure says why it is absent."""
    frame = rows(lag_tokens=np.tile(np.arange(1, 9), 30), correct=True)
    plot = FIGURES["retention"](study_of(frame))[0]
    assert (plot.data["mean"] == 1).all() and (plot.data["low"] == 1).all()
    assert (FIGURES["fits"](study_of(frame))[0].data["mean"] > 0.99).all()
    with pytest.raises(ValueError, match="no task here varies lag_tokens"):
        FIGURES["retention"](study_of(frame.assign(lag_tokens=3)))


def test_half_lives_panel_takes_points_and_densities(tmp_path):
    rng = np.random.default_rng(0)
    parts = [
        pd.DataFrame(
            {
                "task": "t",
                "arm": arm,
                "layer": 0,
                "head": h,
                "channel": range(n),
                "rate": rng.gamma(1, 0.1, n),
                "when": w,
            }
        )
        for arm, n in (("kda", 24), ("mamba2", 1))
        for h in (0, 1)
        for w in ("trained", "initial")
    ]
    plot = inside.half_lives(pd.concat(parts))[0]
    save(plot, tmp_path)
    assert "Median trained half-life" in plot.alt and len(plot.figure.axes) == 2


@pytest.mark.parametrize("decades", [1, 5])
def test_labels_of_a_log_axis_do_not_run_into_each_other(decades):
    names = {"task": "t", "arm": "kda", "run_id": "a", "seed": 0, "layer": 0, "offset": 0, "versions": 2}
    frame = pd.DataFrame(names, index=range(40))
    frame = frame.assign(predicted=np.geomspace(10.0 ** (1 - decades), 10, 40), log_odds=np.linspace(-1, 1, 40))
    figure = inside.predicted_ratio(frame)[0].figure
    figure.canvas.draw()
    inside_view = figure.axes[0].get_window_extent()
    boxes = [t.get_window_extent() for t in figure.axes[0].get_xticklabels() if t.get_text()]
    boxes = sorted((b.x0, b.x1) for b in boxes if inside_view.x0 <= (b.x0 + b.x1) / 2 <= inside_view.x1)
    assert len(boxes) >= 3 and all(end < start for (_, end), (start, _) in pairwise(boxes))


@pytest.mark.parametrize("arms", [2, 5, 9, 25])
def test_a_long_legend_makes_the_figure_larger_and_not_the_axes_smaller(arms):
    """Twenty-five arms in one column once left axes of no height."""
    with paper():
        figure, axes = canvas(COLUMN, 2.3)
        for n in range(arms):
            axes.plot([0, 1], [n, n], label=f"Linear attention, arm {n}")
        legend_above(figure, axes)
        figure.canvas.draw()
        box = axes.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
        (legend,) = figure.legends
        rows = legend.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
    assert box.height > 1.5 and box.width > 2.4
    assert rows.y0 > box.y1 and rows.x1 <= figure.get_figwidth() and rows.y1 <= figure.get_figheight()


@pytest.mark.parametrize("stage", ["rnn", "lstm", "gru", "kda"])
def test_every_marker_is_seen(stage):
    """Markers of strokes were once drawn in white."""
    line = look([stage])[stage].line()
    assert line["markeredgecolor"] == ("white" if stage == "kda" else line["color"])
