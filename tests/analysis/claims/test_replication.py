"""Contrasts under the first seeds and under others: what is compared, how, and how it is shown."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from scipy import stats

from mnemolab.analysis.claims import CLAIMS, Judgement, Sample
from mnemolab.analysis.claims.replication import agreement, agreement_said, read_replication
from mnemolab.analysis.claims.results import pooled, results
from mnemolab.analysis.claims.rules import interval, judged
from mnemolab.analysis.claims.write import read_claims, to_object, write_claims
from mnemolab.analysis.figures.plot import NotApplicable, save
from mnemolab.analysis.figures.replication import replication
from mnemolab.cli import main

DOCS = Path(__file__).parents[3] / "docs"
NAME = "additive-blend"


def judged_as(samples, placebo=(), name=NAME) -> dict:
    """The object of claims.json of these samples: (name, values, test or more)."""
    made = [[Sample(n, dict(enumerate(v)), *more) for n, v, *more in group] for group in (samples, placebo)]
    return to_object(judged(CLAIMS[name], Judgement(*made)))


def one(first, again, *more) -> pd.Series:
    """The row of one contrast with these values on the two sides."""
    (row,) = agreement([judged_as([("c", first, *more)])], [judged_as([("c", again, *more)])]).to_dict("records")
    return pd.Series(row)


@pytest.fixture(scope="module")
def docs():
    """(objects, methods, replication, agreement) of the verdicts in docs/results."""
    objects, methods = read_claims(DOCS / "results" / "full")
    again = read_replication(sorted((DOCS / "results").glob("replicate*")), objects, methods)
    return objects, methods, again, agreement(objects, again[0])


@pytest.mark.parametrize(
    "more", [("greater",), ("equivalent", 0.5), ("no worse",), ("possible",), ("greater", None, 0.2)]
)
def test_all_seeds_together_have_the_interval_of_their_values(more):
    """Recovered from the two intervals alone, whatever is asked of the mean; the last has the p of another test (log-rank)."""
    rng = np.random.default_rng(0)
    first, again = rng.normal(0.3, 1, 12), rng.normal(-0.2, 3, 7)
    row = one(first, again, *more)
    low, high = interval([*first, *again])
    assert [row[f"both_{n}"] for n in ("effect", "low", "high", "n")] == pytest.approx(
        [np.mean([*first, *again]), low, high, 19]
    )
    half = stats.ttest_ind(again, first, equal_var=False).confidence_interval(0.95)
    width = (half.high - half.low) / 2
    assert [row["predicted_low"], row["predicted_high"]] == pytest.approx([first.mean() - width, first.mean() + width])


def test_the_interval_of_the_docs_is_welchs(docs):
    """Another way to the same answer: inside where Welch's test of the difference has p above .05."""
    agreed = docs[-1]
    t = {side: stats.t.isf(0.025, agreed[f"{side}_n"] - 1) for side in ("first", "again")}
    sd = {
        side: (agreed[f"{side}_high"] - agreed[f"{side}_low"]) / 2 / t[side] * np.sqrt(agreed[f"{side}_n"])
        for side in t
    }
    spread = (sd["first"] > 0) | (sd["again"] > 0)
    given = [x[spread].to_numpy(float) for y in t for x in (agreed[f"{y}_effect"], sd[y], agreed[f"{y}_n"])]
    p = stats.ttest_ind_from_stats(*given, equal_var=False).pvalue
    assert (agreed.loc[spread, "inside"].to_numpy(bool) == (np.asarray(p) > 0.05)).all() and 75 < spread.sum() < 84
    assert (agreed["left_out"] == "").all()  # every interval is a t interval


@pytest.mark.parametrize("column", ["inside", "inside_alone"])
def test_where_seeds_alone_make_the_difference_nineteen_of_twenty_lie_inside(column):
    """Five seeds a side, where a normal quantile would hold 89% (and 81% by the first side alone)."""
    rng, whole = np.random.default_rng(1), judged_as([("c", np.arange(5.0))])

    def drawn(claim: str) -> dict:
        values = rng.normal(size=5)
        low, high = interval(values)
        return whole | {
            "id": claim, "contrasts": [whole["contrasts"][0] | {"effect": values.mean(), "low": low, "high": high}]
        }  # fmt: skip

    sides = [[drawn(str(n)) for n in range(1500)] for _ in range(2)]
    assert 0.935 <= agreement(*sides)[column].mean() <= 0.975


def test_distances_are_those_of_the_outcomes(docs):
    """Supported: the margin is reached, whatever is asked; refuted: the 95% interval lies wholly short of it."""
    agreed = docs[-1]
    assert set(agreed["test"]) == {"greater", "equivalent", "no worse", "possible"}
    for side in ("first", "again"):
        away, outcome = agreed[f"{side}_distance"], agreed[f"{side}_outcome"]
        limit = stats.t.isf(0.025, agreed[f"{side}_n"] - 1)
        assert (away[outcome == "supported"] >= 0).all()
        assert (away < -limit)[outcome == "refuted"].all()
    assert one([0.04, 0.06, 0.08], [0.2, 0.2, 0.26])["first_distance"] == pytest.approx(0.01 / (0.02 / 3**0.5))


def test_contrasts_are_matched_by_name_and_placebos_apart():
    first = judged_as(
        [("a", [0.3, 0.4, 0.5]), ("b", [0.1, 0.2, 0.3]), ("not there", [1.0, 2.0])],
        [("a", [0.0, 0.01, 0.02]), ("none", [])],
    )
    again = judged_as([("b", [0.2, 0.2, 0.5]), ("a", [0.1, 0.1, 0.4])], [("a", [0.1, 0.0, 0.0]), ("none", [0.1, 0.2])])
    agreed = agreement([first, judged_as([("a", [1.0, 2.0])], name="record-update")], [again])
    assert list(zip(agreed["claim"], agreed["contrast"], agreed["placebo"], strict=True)) == [
        (NAME, "a", False), (NAME, "b", False), (NAME, "a", True)
    ]  # fmt: skip
    assert agreed["again_effect"].tolist() == pytest.approx([0.2, 0.3, 0.1 / 3])
    assert again["deciding"] == "a" and agreed["decides"].tolist() == [True, False, False]


def test_contrasts_without_spread():
    """A constant has no standard error, but for rounding: another constant is outside, the same one inside, and nothing is nan."""
    zero = one([0.0] * 12, [0.0] * 12, "no worse")
    assert zero["inside"] and zero["inside_alone"] and zero["first_distance"] == zero["again_distance"] == np.inf
    assert zero[["predicted_low", "predicted_high", "both_effect", "both_low", "both_high"]].tolist() == [0.0] * 5
    third = [0.1 + 0.2, 0.3, 0.3, 0.1 + 0.2, 0.3]  # twice the same number, all but the last digit
    same = one(third, [0.3] * 12)
    assert same["inside"] and same["inside_alone"] and same["first_distance"] == np.inf
    other = one([0.3] * 12, [0.31] * 12)
    assert not other["inside"] and other["both_effect"] == pytest.approx(0.305)
    assert [other["both_low"], other["both_high"]] == pytest.approx(interval([0.3] * 12 + [0.31] * 12))
    assert one([0.05] * 12, [0.0] * 12)[["first_distance", "again_distance"]].tolist() == [0.0, -np.inf]
    # a spread on one side alone: that side's degrees of freedom
    values = np.array([0.0] * 11 + [-0.9])
    late = one([0.0] * 12, values, "no worse")
    assert late["inside"] and not late["inside_alone"]
    assert late["predicted_high"] == pytest.approx(np.ptp(interval(values)) / 2)
    small = one(np.array([1.0, 2.0, 3.0]) * 1e-9, np.array([1.0, 2.0, 4.0]) * 1e-9)
    assert np.isfinite(small["first_distance"]) and small["predicted_low"] < small["predicted_high"]


def test_what_cannot_be_compared_is_left_out_and_named():
    first = judged_as([("a", [0.1, 0.2, 0.4]), ("b", [0.1]), ("c", [0.3, 0.5, 0.6])])
    again = judged_as([("a", [0.1, 0.3, 0.4]), ("b", [0.1, 0.2]), ("c", [0.3, 0.5, 0.5])])
    again["contrasts"][2]["high"] += 0.01  # as a bootstrap's would be
    agreed = agreement([first], [again]).set_index("contrast")
    assert agreed["left_out"].to_dict() == {
        "a": "", "b": "one seed has no spread", "c": "its interval is no t interval of the mean"
    }  # fmt: skip
    lacking = agreed.loc[["b", "c"], ["inside", "both_effect", "both_low", "predicted_low", "first_distance"]]
    assert lacking.isna().to_numpy().all() and not agreed.loc[["a"]].isna().to_numpy().any()
    assert agreed.loc[["b"], ["first_effect", "again_n"]].to_numpy().tolist() == [[0.1, 2]]
    said = agreement_said(agreed.reset_index())
    assert said.startswith("Of 1 contrasts that both measured, 1 second effects lie in the 95% prediction interval")
    assert said.endswith(
        f"Left out: {NAME} (b), one seed has no spread; {NAME} (c), its interval is no t interval of the mean."
    )


def test_the_sentence_counts_placebos_apart_and_names_what_lies_outside():
    near, far = [0.0, 0.01, 0.02, 0.03], [0.5, 0.51, 0.52, 0.54]
    first = judged_as([("a", near), ("b", near), ("c", near)], [("p", near), ("q", near)])
    again = judged_as([("a", near), ("b", far), ("c", far)], [("p", near), ("q", far)])
    said = agreement_said(agreement([first], [again]))
    assert said.startswith("Of 3 contrasts that both measured, 1 second effects lie")
    assert f"; outside: {NAME} (b; c). Of 2 placebo contrasts 1; outside: {NAME} (q)." in said
    assert agreement_said(agreement([first], [])) == ""
    with pytest.raises(NotApplicable, match="no contrast was measured under both"):
        replication(agreement([first], []))


def test_header_and_tables_say_what_the_docs_folders_hold(docs):
    """Placebos of both sides, where the other seeds were judged, and seeds that would decide what is open only."""
    objects, methods, again, _ = docs
    text = results(objects, methods, again)
    passed = "channels-multi-timescale"
    assert f"Placebos that passed, as none may: {passed}; under other seeds: {passed}." in text
    made = (
        "1b9e484, 2026-11-30 20:30 UTC and at 23897ca-dirty, 2026-11-30 22:52 UTC and at fe2cd45, 2026-12-01 04:38 UTC"
    )
    assert f"Those claims were judged at {made}." in text
    for rows, end in ((objects, 8), (again[0], 5)):
        for row in (row for row in rows if row["contrasts"]):
            table = text[text.index("| under other seeds") :] if end == 5 else text
            line = next(line for line in table.splitlines() if line.startswith(f"| `{row['id']}` |"))
            open_ = row["verdict"] not in ("supported", "refuted") and row["seeds_needed"]
            assert line.split("|")[end].strip() == (str(row["seeds_needed"]) if open_ else "")


def test_the_table_compares_one_contrast_and_says_which():
    """The weakest contrast is another under the other seeds; its effect above is not the one that the table above has."""
    first = judged_as([("a", np.linspace(0.1, 0.2, 12)), ("b", np.linspace(0.4, 0.6, 12))])
    again = judged_as([("a", np.linspace(0.5, 0.7, 12)), ("b", np.linspace(0.2, 0.4, 12))])
    assert (first["deciding"], again["deciding"]) == ("a", "b")
    text = results([first], {"tier": "full"}, ([again], {"seeds": [700]}))
    low, high = interval([*np.linspace(0.4, 0.6, 12), *np.linspace(0.2, 0.4, 12)])
    both = f"0.4 ({low:.3g} to {high:.3g})"
    assert f"| `{NAME}` | supported | 0.3 | 0.258 to 0.342 |  | supported | 0.5 † | {both} |" in text
    assert f"† Another contrast decides above; here: `{NAME}`, b." in text
    assert "not the frozen rule and changes no verdict" in text
    assert f"* other seeds: supported, b 0.3 (0.258 to 0.342); all 24 seeds {both}" in text
    assert "†" not in results([first], {"tier": "full"}, ([first], {"seeds": [700]}))
    assert pooled(NAME, agreement([first], [judged_as([("c", [0.1, 0.2])])])) == ""


def test_the_figure_of_the_docs_names_claims_that_changed_and_names_do_not_overlap(docs, tmp_path):
    plot = replication(docs[-1])
    figure = plot.figure
    figure.draw_without_rendering()
    names = [t for t in figure.axes[0].texts if re.fullmatch(r"[a-z]+(-[a-z]+)+", t.get_text())]
    black = {t.get_text() for t in names if t.get_color() == "black"}
    assert black == {"softmax-exact", "hybrid-retrieves", "record-update", "attnres-compute"}
    inside = figure.axes[0].get_window_extent()
    spans = [Text.get_window_extent(t) for t in figure.axes[0].texts]  # of the words, without the lines
    assert not any(a.overlaps(b) for a, b in combinations(spans, 2))
    named = [span for t, span in zip(figure.axes[0].texts, spans, strict=True) if t in names]
    assert len(named) == 6 and all(inside.x0 <= s.x0 and s.x1 <= inside.x1 and s.y1 <= inside.y1 for s in named)
    assert plot.data["inside"].tolist().count("no") == 2 and "50 contrasts and 34 placebos" in plot.alt
    away = docs[-1][["first_distance", "again_distance"]].abs().max(axis=1)
    assert f"; {(away >= 1000).sum()} at 1,000 standard errors or beyond." in plot.alt
    saved = save(plot, tmp_path)
    table = pd.read_csv(saved.csv)
    assert len(table) == 84 and set(table["placebo"]) == {"yes", "no"} and table["first_distance"].notna().all()


@pytest.mark.parametrize("spread", [0.5, 0.0])
def test_names_of_points_that_lie_together_stand_apart(spread):
    """Nine at one point, in the middle and in the corner; kinds without any point once took room beside the axes, at the cost of their size."""
    rng = np.random.default_rng(4)
    row = judged_as([("a", rng.normal(0.1, spread, 12))])
    rows = [row | {"id": f"a-claim-of-many-{n}"} for n in range(9)]
    plot = replication(agreement(rows, [row | {"verdict": "refuted"} for row in rows]))
    plot.figure.draw_without_rendering()
    spans = [Text.get_window_extent(t) for t in plot.figure.axes[0].texts if "many" in t.get_text()]
    assert len(spans) == 9 and not any(a.overlaps(b) for a, b in combinations(spans, 2))
    inside = plot.figure.axes[0].get_window_extent()
    assert all(inside.x0 <= s.x0 and s.x1 <= inside.x1 and inside.y0 <= s.y0 and s.y1 <= inside.y1 for s in spans)
    assert inside.width > 0.7 * plot.figure.bbox.width


def test_a_claim_that_changed_without_a_contrast_is_named_where_it_is_decided():
    """A reservation turns an open verdict into `undecidable here`; the contrast that decides may be open both times."""
    rng = np.random.default_rng(3)
    row = judged_as([("a", rng.normal(0.1, 0.5, 12)), ("b", rng.normal(0.0, 0.5, 12))])
    agreed = agreement([row], [row | {"verdict": "undecidable here"}])
    texts = [t.get_text() for t in replication(agreed).figure.axes[0].texts]
    assert texts.count(NAME) == 1 and f"Another verdict: {NAME}." in replication(agreed).alt


def test_the_report_draws_the_figure_without_the_runs(docs, tmp_path):
    """docs/results/full has the figures of one experiment's runs: those of the others are left out, the forests and that of the
    replication are made."""
    words = ["report", str(DOCS / "results" / "full"), "--out", str(tmp_path)]
    for each in sorted((DOCS / "results").glob("replicate*")):
        words += ["--replication", str(each)]
    assert main(words) == 0
    measured = {row["id"] for row in read_claims(DOCS / "results" / "full")[0] if any(c["n"] for c in row["contrasts"])}
    names = {"replication", *(f"claim-{name}" for name in measured)}
    assert len(measured) == 23
    assert {p.name for p in (tmp_path / "figures").iterdir()} == {
        f"{name}.{kind}" for name in names for kind in ("png", "pdf", "csv")
    }
    page, text = (tmp_path / "index.html").read_text(), (tmp_path / "results.md").read_text()
    kept = list((DOCS / "results" / "full" / "figures").glob("*.png"))
    assert (
        kept
        and page.count("<img ") == len(names) + len(kept)
        and page.index("Figure 1. Every contrast") < page.index('<section id="claims">')
    )
    said = agreement_said(docs[-1])
    assert said in text and said.split("(")[0] in page and "not the frozen rule and changes no verdict" in page
    assert "<dt>Both</dt><dd>all 24 seeds 0.222 (0.202 to 0.241), not the frozen rule</dd>" in page
    (link,) = re.findall(r"^!\[.+\]\((.+)\)$", text, re.MULTILINE)
    assert (tmp_path / link).is_file() and (DOCS / link).is_file()


def test_other_figures_count_on_from_that_of_the_replication(tmp_path):
    """It stands first on the page; where nothing was measured twice there is none."""
    from mnemolab.analysis.claims import Evidence
    from mnemolab.analysis.claims.figures import draw

    def write(folder, contrast, **methods):
        values = {seed: 0.1 + 0.01 * (seed % 3) for seed in range(12)}
        verdicts = [judged(CLAIMS[NAME], Judgement([Sample(contrast, values)]))]
        folder.mkdir()
        drawn = draw(verdicts, Evidence([]), folder / "figures")
        write_claims(verdicts, folder, {"tier": "replicate", "figures": drawn} | methods)
        return str(folder)

    first = write(tmp_path / "first", "a", tier="full", seeds=[1])
    for contrast, numbers in (("a", ["1", "2"]), ("b", ["1"])):
        out = tmp_path / f"out {contrast}"
        again = write(tmp_path / contrast, contrast, seeds=[700])
        assert main(["report", first, "--out", str(out), "--replication", again]) == 0
        page = (out / "index.html").read_text()
        assert re.findall(r"<b>Figure (\d+)\.", page) == re.findall(r'<figure id="f(\d+)"', page) == numbers
        assert (out / "figures" / f"claim-{NAME}.png").exists()
        assert (
            ("prediction interval" in page)
            == (out / "figures" / "replication.png").exists()
            == ("Below each and thinner" in page)
            == (contrast == "a")
        )
        assert ("![" in (out / "results.md").read_text()) == (contrast == "a")


def test_a_contrast_with_another_margin_is_refused(tmp_path):
    """The claim's own margin is compared anyway; one contrast may have its own."""
    from mnemolab.errors import BadRequest

    first, again = (judged_as([("a", [0.1, 0.2, 0.3], "greater", margin)]) for margin in (0.1, 0.2))
    verdict = judged(CLAIMS[NAME], Judgement([Sample("a", {0: 0.1, 1: 0.2}, margin=0.2)]))
    write_claims([verdict], tmp_path, {"tier": "replicate", "seeds": [700]})
    with pytest.raises(BadRequest, match="additive-blend has another margin of 'a' there"):
        read_replication([tmp_path], [first], {"seeds": [1]})
    assert len(read_replication([tmp_path], [again], {"seeds": [1]})[0]) == 1
