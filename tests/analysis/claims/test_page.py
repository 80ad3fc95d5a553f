"""The report on claims: one file that opens without a network, whole in a browser, at any width."""

import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from mnemolab.analysis.claims import CLAIMS, Evidence, Judgement, Sample
from mnemolab.analysis.claims.checked import check_claim
from mnemolab.analysis.claims.checks import Check
from mnemolab.analysis.claims.figures import draw
from mnemolab.analysis.claims.replication import read_replication
from mnemolab.analysis.claims.results import results
from mnemolab.analysis.claims.rules import judged
from mnemolab.analysis.claims.write import read_claims, write_claims
from mnemolab.cli import main
from mnemolab.errors import BadRequest

DOCS = Path(__file__).parents[3] / "docs"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


def spread(mean, n=12):
    return {seed: mean + 0.01 * (seed % 3 - 1) for seed in range(n)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A claims folder with one claim of each verdict."""
    out = tmp_path_factory.mktemp("claims") / "claims"
    out.mkdir()
    placebo, twins = [Sample("a placebo <with> & signs", spread(0.0))], [Sample("delta against itself", spread(0.0))]
    numbers = [{"measure": "share", "arm": "delta", "mean": 0.5, "low": None, "high": 0.6, "seeds": 12}]
    verdicts = [
        judged(
            CLAIMS[name],
            Judgement([Sample("a contrast", spread(mean, n))], placebo, twins, numbers, ["0123456789abcdef"] * 40),
        )
        for name, mean, n in (("additive-blend", 0.3, 12), ("gdn2-decouples", -0.2, 12), ("attnres-compute", 0.02, 3))
    ]
    verdicts.append(judged(CLAIMS["record-update"], Judgement([Sample("KDA, three seeds", spread(0.1, 3))])))
    verdicts.append(
        check_claim(CLAIMS["kv-bytes"], lambda t, d: [Check("share", 7 / 27, 0.25, 0.27, "share")], "quick", "cpu")
    )
    methods = {
        "tier": "quick", "claims": len(CLAIMS), "seeds": [100, 101, 102], "twin_seeds": [150, 151, 152], "pilot_seeds": [90],
        "how": "by hand", "rates": {"overwrite": {"kda": 0.003}}, "hashes": {"overwrite": "00ff"}, "runs": 3, "steps": 300,
        "training_seconds": 60.0, "wall_seconds": 40.0, "devices": ["cpu"], "checks_on": "cpu",
        "provenance": {"Command": "mnemolab claims", "Commit": "abc", "Versions": "mnemolab 0.1.0"},
    }  # fmt: skip
    methods["figures"] = draw(verdicts, Evidence([]), out / "figures")
    write_claims(verdicts, out, methods)
    return out


@pytest.fixture(scope="module")
def html(folder) -> str:
    assert main(["report", str(folder)]) == 0
    return (folder / "report" / "index.html").read_text()


def test_page_holds_every_part_of_every_claim(html, folder):
    objects, _ = read_claims(folder)
    assert [row["verdict"] for row in objects] == [
        "supported",
        "refuted",
        "undecidable here",
        "inconclusive",
        "supported",
    ]
    for row in objects:
        assert f'<article id="{row["id"]}">' in html and f'href="#{row["id"]}"' in html
        assert row["statement"][1:] in unescape(html)
    for text in (
        "What would change it",
        "0123456789abcdef",
        "by hand",
        "00ff",
        "A/A contrasts",
        "100 to 102",
        "replicate tier",
    ):
        assert text in html
    assert "a placebo &lt;with&gt; &amp; signs" in html and "<with>" not in html


class Links(HTMLParser):
    """Ids, references, images, and what would need a network."""

    def __init__(self):
        super().__init__()
        self.ids, self.refs, self.images, self.loaded = [], [], [], []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids += [given["id"]] if "id" in given else []
        self.refs += [href[1:] for href in [given.get("href") or ""] if href.startswith("#")]
        self.images += [given] if tag == "img" else []
        self.loaded += [given[a] for a in ("src", "href") if a in given and tag in ("img", "script", "link", "iframe")]


def test_page_is_self_contained_with_alt_texts_and_whole_links(html):
    found = Links()
    found.feed(html)
    assert found.images and all(len(image["alt"]) > 20 for image in found.images)
    assert (
        all(source.startswith("data:") for source in found.loaded) and "url(http" not in html and "@import" not in html
    )
    assert len(set(found.ids)) == len(found.ids) and set(found.refs) <= set(found.ids)


def test_figures_are_those_of_the_claims_that_trained(folder):
    rows = read_claims(folder)[1]["figures"]
    assert [row["claims"] for row in rows] == [
        ["additive-blend"],
        ["gdn2-decouples"],
        ["attnres-compute"],
        ["record-update"],
    ]
    for row in rows:
        assert all((folder / "figures" / row[kind]).stat().st_size for kind in ("png", "pdf", "csv"))


PROBE = """<script>
const errors = [];
addEventListener("error", e => errors.push(e.message || e.target.src), true);
addEventListener("load", () => {
  const bad = [...document.images].filter(i => !i.complete || !i.naturalWidth).length;
  const wide = document.documentElement.scrollWidth - innerWidth;
  document.title = `images=${document.images.length} broken=${bad} errors=${errors.length} wider=${wide} at=${innerWidth}`;
});
</script>"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> str:
    """A Chromium that can show a page of one word here; some sandboxes let none start."""
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH; .ci/run installs it where it can")
    profile = tmp_path_factory.mktemp("profile")
    words = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", "data:text/html,<p>ready"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{CHROMIUM} shows no page of one word within two minutes")
    if "ready" not in done.stdout:
        pytest.skip(f"{CHROMIUM} cannot start here: {done.stderr.strip()[-200:]}")
    return CHROMIUM


@pytest.mark.parametrize("width", [340, 800, 1600])
def test_page_in_a_browser(html, folder, tmp_path, width, browser):
    """No broken image, no console error, nothing wider than the window."""
    inside = tmp_path / "inside.html"
    inside.write_text(html.replace("<title>", PROBE + "<title>", 1))
    outside = tmp_path / "page.html"
    # chromium's headless window has a least width; a frame of the width asked for does not
    outside.write_text(
        f'<iframe id="f" src="inside.html" width="{width}" height="900" style="border:0"></iframe><script>'
        "f.onload = () => setTimeout(() => document.title = f.contentDocument.title, 100)</script>"
    )
    done = subprocess.run(
        [
            browser, *FLAGS, "--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}",
            "--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom", outside.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    title = re.search(r"<title>(images=.*?)</title>", done.stdout)
    assert title, done.stderr[-2000:]
    said = {k: int(v) for k, v in (pair.split("=") for pair in title[1].split())}
    assert said["images"] == len(read_claims(folder)[1]["figures"]) and said["broken"] == said["errors"] == 0
    assert said["at"] == width and said["wider"] <= 0
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_results_page_is_written_from_the_files(folder, html):
    objects, methods = read_claims(folder)
    text = results(objects, methods)
    assert (folder / "report" / "results.md").read_text() == text
    assert "This is not the full tier" in text and "| `kv-bytes` | supported |" in text
    assert "The replicate tier, with disjoint seeds, is not part of this page" in results(
        objects, methods | {"tier": "full"}
    )


@pytest.fixture(scope="module")
def replicate(folder) -> Path:
    """One claim judged again with another outcome, one with the same."""
    out = folder.parent / "replicate"
    out.mkdir()
    verdicts = [
        judged(CLAIMS[name], Judgement([Sample("a contrast again", spread(mean))], runs=["fedcba9876543210"]))
        for name, mean in (("additive-blend", -0.4), ("gdn2-decouples", -0.3))
    ]
    methods = read_claims(folder)[1] | {"tier": "replicate", "seeds": [700, 701, 702], "runs": 48, "figures": []}
    write_claims(verdicts, out, methods)
    return out


def test_a_replication_is_shown_beside_the_verdicts(folder, replicate, tmp_path):
    assert main(["report", str(folder), "--out", str(tmp_path), "--replication", str(replicate)]) == 0
    text, page = (tmp_path / "results.md").read_text(), (tmp_path / "index.html").read_text()
    said = "(700 to 702; the replicate tier, 48 runs) 2 of 4 claims that trained models decide were judged again, 1 with the same verdict"
    assert said in page and "another for additive-blend; not yet run: attnres-compute, record-update." in page
    assert "<dt>Other seeds</dt><dd>refuted, a contrast again -0.4 (" in page
    assert page.count('<span class="refuted" role="img" aria-label="refuted" title="refuted">✕</span>') == 2
    assert "| `additive-blend` | refuted | -0.4 | " in text and "* other seeds: refuted, a contrast again -0.4" in text
    objects, methods = read_claims(folder)
    assert said in results(objects, methods | {"tier": "full"}, read_replication([replicate], objects, methods))
    assert main(["report", str(folder), "--out", str(tmp_path / "alone")]) == 0
    assert "<dt>Other seeds</dt>" not in (tmp_path / "alone" / "index.html").read_text()


@pytest.mark.parametrize(
    "change, said",
    [({"tier": "full"}, "tier full"), ({"seeds": [102, 700]}, "seeds [102]"), ({"margin": 0.5}, "another margin")],
)
def test_what_replicates_nothing_is_refused(folder, replicate, tmp_path, change, said, capsys):
    rows, methods = read_claims(replicate)
    if "margin" in change:
        rows[0] |= change
    else:
        methods |= change
    (tmp_path / "claims.json").write_text(json.dumps(rows))
    (tmp_path / "methods.json").write_text(json.dumps(methods))
    assert main(["report", str(folder), "--out", str(tmp_path / "out"), "--replication", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "out").exists()


def written(folder: Path, names: dict[str, float], **methods) -> Path:
    """A folder of the tier replicate with these claims and their effects; one A/A contrast each, lower by .15."""
    folder.mkdir()
    verdicts = [
        judged(CLAIMS[n], Judgement([Sample("again", spread(mean))], twins=[Sample("a twin", spread(mean - 0.15))]))
        for n, mean in names.items()
    ]
    write_claims(verdicts, folder, {"tier": "replicate", "devices": ["cpu"]} | methods)
    return folder


def test_folders_of_a_replication_are_joined(folder, replicate, tmp_path):
    """What is said of them is said of all: seeds, runs, left-out runs, A/A contrasts, claims judged and not yet."""
    record = written(
        tmp_path / "record", {"record-update": 0.1}, seeds=[700, 701, 900], runs=40, hashes={"record": "01"},
        attempts={"record": 1, "never run": 3}, diverged=["record, main, kda, 701 (ab)"],
    )  # fmt: skip
    quality = written(tmp_path / "quality", {"attnres-compute": 0.3}, seeds=[703], runs=12, hashes={"quality": "02"})
    folders = [record, replicate, quality]
    words = ["report", str(folder), "--out", str(tmp_path / "out")]
    words += [word for each in folders for word in ("--replication", str(each))]
    assert main(words) == 0
    text, page = (tmp_path / "out" / "results.md").read_text(), (tmp_path / "out" / "index.html").read_text()
    assert (
        "(700 to 703, 900, 1,000 more for each later attempt; the replicate tier, 100 runs) 4 of 4 claims that trained models "
        "decide were judged again, 1 with the same verdict, another for additive-blend, attnres-compute, record-update. "
        "A/A contrasts called supported there: 1 of 2 (95% upper limit of the rate: 97%). "
        "Left out there, since their loss or gradient was not finite: record, main, kda, 701 (ab)."
    ) in page
    again = re.findall(r"^\| `(.+?)` \|", text[text.index("| under other seeds") :], re.MULTILINE)
    assert again == ["additive-blend", "gdn2-decouples", "attnres-compute", "record-update"]  # as above
    objects, methods = read_claims(folder)
    found = read_replication(folders, objects, methods)
    assert found == read_replication(folders[::-1], objects, methods) and found[1]["attempts"] == {"record": 1}
    alone = read_replication([replicate], objects, methods)[1]
    assert (alone["seeds"], alone["runs"], alone["attempts"]) == ([700, 701, 702], 48, {})


def test_runs_that_two_folders_share_count_once(folder, replicate, tmp_path):
    """Claims of one experiment may lie in two folders, each of which counts all of its runs."""
    other = written(tmp_path / "other", {"record-update": 0.1}, seeds=[700], runs=50, hashes={"overwrite": "00ff"})
    replicate = Path(shutil.copytree(replicate, tmp_path / "replicate"))
    objects, methods = read_claims(folder)
    with pytest.raises(BadRequest, match=r"runs.parquet: cannot read it .* which runs of overwrite the folders share"):
        read_replication([replicate, other], objects, methods)
    for where, first in ((replicate, 0), (other, 45)):
        ids = [f"{n}" for n in range(first, first + 48)]
        pd.DataFrame({"run_id": [*ids, ids[0]]}).to_parquet(
            where / "runs.parquet"
        )  # one stands in two places of the plan
    assert read_replication([replicate, other], objects, methods)[1]["runs"] == 48 + 50 - 3


def test_a_claim_in_two_folders_is_refused(folder, replicate, tmp_path, capsys):
    other = written(tmp_path / "other", {"record-update": 0.1, "gdn2-decouples": 0.1}, seeds=[700], runs=50)
    words = ["report", str(folder), "--out", str(tmp_path / "out")]
    assert main([*words, "--replication", str(replicate), "--replication", str(other)]) == 2
    said = capsys.readouterr().err
    assert f"gdn2-decouples is judged in {replicate} and in {other}; leave one of the two out" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change, said", [({"tier": "full"}, "tier full"), ({"seeds": [102]}, "seeds [102]")])
def test_every_folder_of_a_replication_is_checked(folder, replicate, tmp_path, change, said, capsys):
    other = written(tmp_path / "other", {"record-update": 0.1}, **{"seeds": [700], "runs": 1} | change)
    words = ["report", str(folder), "--out", str(tmp_path / "out")]
    assert main([*words, "--replication", str(replicate), "--replication", str(other)]) == 2
    assert f"{other}: {said}" in capsys.readouterr().err


def test_docs_say_plainly_what_has_run():
    """The page and the table of runs are of the verdicts that lie beside them."""
    objects, methods = read_claims(DOCS / "results" / "full")
    again = read_replication(sorted((DOCS / "results").glob("replicate*")), objects, methods)
    assert (DOCS / "results.md").read_text() == results(objects, methods, again)
    assert [row["id"] for row in objects] == list(CLAIMS)
    runs = pd.read_parquet(DOCS / "results" / "full" / "runs.parquet")
    assert len(runs) == methods["runs"] and {i for row in objects for i in row["evidence"]} <= set(runs["run_id"])
