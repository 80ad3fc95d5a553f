"""The forest of a claim, from its object in claims.json, alone and beside other seeds."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from mnemolab.analysis.claims.forest import forest
from mnemolab.analysis.figures.plot import NotApplicable


def contrast(name, effect, outcome="supported", n=12, low=None, high=None, test="greater"):
    low, high = (effect - 0.1, effect + 0.1) if low is None and n > 1 else (low, high)
    return {
        "name": name, "test": test, "effect": effect, "low": low, "high": high, "p": 0.01, "adjusted": 0.02, "margin": 0.05, "n": n,
        "power": 0.8, "needed": 12, "outcome": outcome, "lacking": "",
    }  # fmt: skip


def claim(verdict, *effects, twins=(), **more):
    rows = [contrast(f"contrast {i}", e, **more) for i, e in enumerate(effects)]
    placebo = [contrast("contrast 0", -0.2, "refuted")]
    return {
        "id": "some-claim",
        "verdict": verdict,
        "unit": "nats",
        "margin": 0.05,
        "contrasts": rows,
        "placebo_contrasts": placebo,
        "twins": list(twins),
    }


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def heights(plot):
    """y of every marker."""
    return sorted(
        round(float(line.get_ydata()[0]), 2)
        for line in plot.figure.axes[0].lines
        if line.get_marker() not in ("None", "")
    )


def test_a_row_a_contrast_with_its_margin_and_numbers():
    plot = forest(claim("supported", 0.3, 0.4))
    assert plot.name == "claim-some-claim" and plot.title == "some-claim: supported"
    assert heights(plot) == [0, 1, 2]
    assert plot.data["effect"].tolist() == [0.3, 0.4, -0.2] and plot.data["which"].unique().tolist() == ["first"]
    assert "contrast 1, 0.400 (0.300 to 0.500), supported" in plot.alt
    assert plot.figure.axes[0].get_xlabel() == "effect (nats)" and not plot.figure.legends
    # the pink ticks, one a row
    assert sum(list(line.get_xdata()) == [0.05, 0.05] for line in plot.figure.axes[0].lines) == 3


def test_single_seeds_are_dots_where_the_file_has_them():
    made = claim("supported", 0.3, 0.4)
    made["contrasts"][0]["values"] = {"600": 0.2, "601": 2.5}
    plot = forest(made)
    dots = [
        list(line.get_xdata())
        for line in plot.figure.axes[0].lines
        if len(line.get_xdata()) == 2 and line.get_marker() == "o"
    ]
    assert dots == [[0.2, 2.5]] and "Small dots: single seeds" in plot.caption
    assert plot.figure.axes[0].get_xlim()[1] > 2.5
    assert "dots" not in forest(claim("supported", 0.3)).caption


def test_other_seeds_stand_below_the_contrast_of_their_name_and_kind():
    again = claim("inconclusive", 0.1)
    again["placebo_contrasts"][0]["effect"] = -0.7
    plot = forest(claim("supported", 0.3, 0.4), again)
    assert heights(plot) == [0, 0.3, 1, 2, 2.3]
    assert plot.title == "some-claim: supported (other seeds: inconclusive)"
    rows = plot.data.set_index(["what", "contrast", "which"])["effect"]
    assert rows["contrast", "contrast 0", "other"] == 0.1 and rows["placebo", "contrast 0", "other"] == -0.7
    assert [text.get_text() for text in plot.figure.legends[0].get_texts()] == ["first seeds", "other seeds"]
    assert "Below each and thinner: the same under other seeds." in plot.caption
    assert plot.alt.endswith("Under other seeds: contrast 0, 0.100 (0.000 to 0.200), supported")


def test_one_seed_has_no_interval():
    plot = forest(claim("inconclusive", 0.3, n=1))
    assert "contrast 0, 0.300 (? to ?)" in plot.alt
    lines = [line for line in plot.figure.axes[0].lines if list(line.get_xdata()) == [0.3, 0.3]]
    assert len(lines) == 1


@pytest.mark.parametrize("test, ticks", [("no worse", [-0.05]), ("equivalent", [-0.05, 0.05]), ("greater", [0.05])])
def test_where_the_margins_lie(test, ticks):
    plot = forest(claim("supported", 0.0, test=test))
    first = [line for line in plot.figure.axes[0].lines if list(line.get_ydata()) == [-0.32, 0.32]]
    assert [float(np.asarray(line.get_xdata())[0]) for line in first] == ticks


def names(plot):
    """The rows of every panel."""
    return [[label.get_text() for label in axes.get_yticklabels()] for axes in plot.figure.axes]


def test_effects_of_very_different_size_have_an_axis_each():
    """In nats beside shares; what does not count joins those of its size."""
    mixed = claim("supported", 10.0, 0.3, twins=[contrast("a twin", 0.01, low=0.0, high=0.02)])
    mixed["contrasts"][0]["margin"] = 0.1
    plot = forest(mixed, claim("supported", 9.0, 0.2))
    assert names(plot) == [["contrast 0"], ["contrast 1", "placebo: contrast 0", "A/A: a twin"]]
    assert [axes.get_xlabel() for axes in plot.figure.axes] == ["effect", "effect (nats)"]
    assert plot.caption.count("An axis each") == 1 and len(plot.data) == 7
    mixed["contrasts"].reverse()
    assert names(forest(mixed))[0] == ["contrast 1", "placebo: contrast 0", "A/A: a twin"]


def test_what_lies_within_its_margin_needs_no_axis_of_its_own():
    tiny = claim("supported", 0.3, 0.0)
    tiny["contrasts"][1] |= {"effect": 1e-7, "low": 0.0, "high": 2e-7}
    assert len(forest(tiny).figure.axes) == 1
    tiny["contrasts"][1]["margin"] = 0.0
    assert len(forest(tiny).figure.axes) == 2


@pytest.mark.parametrize("effect, panels", [(0.9, 1), (9.0, 2)])
def test_a_placebo_has_an_axis_of_its_own_only_where_it_would_squash_the_contrasts(effect, panels):
    big = claim("supported", 0.3)
    big["placebo_contrasts"][0] |= {"effect": effect, "low": effect, "high": effect}
    plot = forest(big)
    assert len(plot.figure.axes) == panels
    assert {axes.get_xlabel() for axes in plot.figure.axes} == {"effect (nats)"}


def test_nothing_measured_is_no_figure():
    with pytest.raises(NotApplicable, match="some-claim"):
        forest(claim("inconclusive", 0.3, n=0))
