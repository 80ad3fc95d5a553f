"""The list of claims, the command that judges them, and the files it writes."""

import json
import subprocess
import sys

import pandas as pd
import pytest

from mnemolab.analysis.claims import CLAIMS, Claim, Judgement, Sample, command, kept, register_claim
from mnemolab.analysis.claims.checked import check_claim
from mnemolab.analysis.claims.checks import CHECKS, Check, Undecidable
from mnemolab.analysis.claims.claim import VERDICTS, Verdict
from mnemolab.analysis.claims.evidence import Evidence
from mnemolab.analysis.claims.judge import _loaded, judge_claim, judge_claims, twin_limit, twin_rate
from mnemolab.analysis.claims.write import FIELDS, read_claims, to_object, write_claims
from mnemolab.cli import main
from mnemolab.errors import BadRequest
from mnemolab.registry import Entry

IDS = [
    "additive-blend",
    "delta-overwrites",
    "additive-interference",
    "key-collision",
    "delta-cannot-clear",
    "scalar-decay-clears",
    "scalar-decay-uniform",
    "channel-selects",
    "channels-multi-timescale",
    "decay-predicts-retention",
    "gdn2-decouples",
    "feature-map-fidelity",
    "lineage-order",
    "softmax-exact",
    "fixed-state-bottleneck",
    "rnn-distance",
    "hybrid-retrieves",
    "hybrid-outperforms",
    "ratio-3-1",
    "order-from-recurrence",
    "record-update",
    "directed-forgetting",
    "kv-cache-equal",
    "kv-bytes",
    "chunk-exact",
    "attnres-zero-plain",
    "latent-moe-flops",
    "scale-22580",
    "fixed-state-constant",
    "linear-training",
    "chunk-cost",
    "situ-fused",
    "attnres-latency",
    "attnres-compute",
    "latent-moe-quality",
]


def test_every_claim_of_the_design_is_there_and_can_be_judged():
    assert sorted(CLAIMS) == sorted(IDS)
    for name, claim in CLAIMS.items():
        assert claim.id == name and all(
            getattr(claim, f) for f in ("statement", "source", "statistic", "direction", "placebo")
        )
        assert claim.judge is not None or name in CHECKS, name
        assert (claim.judge is not None) == bool(claim.experiment), name
        if claim.judge is not None:
            assert callable(_loaded(claim.judge)), name
    assert set(CHECKS) <= set(CLAIMS)


@pytest.fixture
def mnemolab(capsys):
    """The command in this process: torch is loaded already."""

    def run(*words):
        code = main(list(words))
        return code, *capsys.readouterr()

    return run


def test_list_claims_costs_no_torch():
    code = (
        "import sys, mnemolab.cli as c; c.main(['list', 'claims']);"
        "sys.exit(any(m in sys.modules for m in ('torch', 'pandas', 'scipy')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(IDS)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--only", "additive-blnd"), "unknown claim 'additive-blnd'; did you mean 'additive-blend'?"),
        (("--tier", "ful"), "unknown tier 'ful'; did you mean 'full'?"),
        (("--workers", "0"), "--workers 0: use at least 1"),
        (("--minutes", "0"), "--minutes 0.0: use more than 0"),
        (("--only", ","), "--only names no claim"),
        (("--device", "cuda:99", "--only", "scale-22580", "--out", "OUT"), "device='cuda:99'"),
    ],
)
def test_a_bad_request_is_one_line(mnemolab, words, says, tmp_path):
    code, _, told = mnemolab("claims", *(str(tmp_path) if w == "OUT" else w for w in words))
    assert code == 2 and says in told and len(told.strip().splitlines()) == 1


def test_a_counted_claim_end_to_end(mnemolab, tmp_path):
    code, _, told = mnemolab("claims", "--only", "kv-bytes,scale-22580", "--out", str(tmp_path), "--device", "cpu")
    assert code == 0, told
    found, methods = read_claims(tmp_path)
    assert [row["id"] for row in found] == ["kv-bytes", "scale-22580"]
    for row in found:
        assert tuple(sorted(row)) == tuple(sorted(FIELDS)) and row["verdict"] in VERDICTS and row["checks"]
    assert methods["tier"] == "quick" and methods["twins"] == 0
    table = pd.read_csv(tmp_path / "claims.csv")
    assert list(table["id"]) == ["kv-bytes", "scale-22580"]
    assert "\\toprule" in (tmp_path / "claims.tex").read_text()


def a_claim(**more):
    fields = {"statistic": "s", "direction": "up", "margin": 0.1, "unit": "points", "rule": "family", "placebo": "p"}
    return Claim(more.pop("id", "mine"), "a claim of mine", "me", "trained", **(fields | more))


def test_claims_json_holds_every_field_and_no_nan(tmp_path):
    twins = [Sample("a against itself", dict(enumerate([0.0, 0.1, -0.1])))]
    judgement = Judgement(
        [Sample("c", {0: 0.3}), Sample("d", {})], placebo=[Sample("p", {0: 0.0})], twins=twins, numbers=[{"mean": float("nan")}],
        runs=["abc"],
    )  # fmt: skip
    verdict = judge_claim(a_claim(judge=lambda evidence: judgement), Evidence([]), "quick", "cpu")
    write_claims([verdict], tmp_path, {"tier": "quick"})
    (row,), methods = read_claims(tmp_path)
    assert tuple(sorted(row)) == tuple(sorted(FIELDS))
    assert row["evidence"] == ["abc"] and row["verdict"] == "inconclusive" and row["numbers"] == [{"mean": None}]
    assert row["contrasts"][0]["low"] is None  # one seed has no interval
    assert (methods["twins"], methods["twins_supported"]) == (1, 0) and twin_rate([row]) == (0, 1)
    json.loads((tmp_path / "claims.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("claims", "methods", "said"),
    [([], {}, "claims.json: not what"), ([{"id": "a"}], [], "methods.json: not what"), ([{"id": "a"}], {"tier": "q"}, "lacks 'statement'")],
)  # fmt: skip
def test_a_folder_that_claims_did_not_write_is_one_clear_line(tmp_path, claims, methods, said):
    (tmp_path / "claims.json").write_text(json.dumps(claims))
    (tmp_path / "methods.json").write_text(json.dumps(methods))
    with pytest.raises(BadRequest, match=said):
        read_claims(tmp_path)


def test_the_upper_limit_of_the_twin_rate():
    assert twin_limit(0, 0) is None and twin_limit(3, 3) == 1
    assert twin_limit(0, 15) == pytest.approx(1 - 0.05 ** (1 / 15)) == pytest.approx(0.181, abs=1e-3)
    assert twin_limit(1, 15) == pytest.approx(0.279, abs=1e-3)


def test_a_kept_verdict_is_used_again_only_for_the_same_runs(tmp_path):
    judgement = Judgement([Sample("c", {0: 0.3})], placebo=[Sample("p", dict(enumerate([0.0, 0.1])))], runs=["abc"])
    claim = a_claim(judge=lambda evidence: judgement)
    verdict = judge_claim(claim, Evidence([]), "quick", "cpu")
    state = kept.key(claim, ["abc"], "quick", "cpu")
    kept.save(tmp_path, verdict, state)
    assert to_object(kept.load(tmp_path, claim, state)) == to_object(verdict)
    for other in (
        kept.key(claim, ["abc", "d"], "quick", "cpu"),
        kept.key(claim, ["abc"], "full", "cpu"),
        kept.key(claim, ["abc"], "quick", "cuda"),
    ):
        assert other != state and kept.load(tmp_path, claim, other) is None
    assert kept.load(tmp_path, a_claim(id="other"), state) is None


def test_a_kept_verdict_depends_on_the_files_that_it_comes_from(tmp_path, monkeypatch):
    """A figure that is drawn anew costs no GPU time, and a judge that is mended no check."""
    shown = ("figures/draw.py", "style.py", "claims/replication.py")
    for place in ("claims/kept.py", "claims/judges/load.py", "claims/checks/units.py", *shown):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("before")
    monkeypatch.setattr(kept, "__file__", str(tmp_path / "claims" / "kept.py"))
    trained, checked = a_claim(judge=len), a_claim(id="checked")

    def changed(place):
        before = [kept.key(claim, ["abc"], "full", "cpu") for claim in (trained, checked)]
        (tmp_path / place).write_text(f"after {place}")
        return [
            kept.key(claim, ["abc"], "full", "cpu") != key
            for claim, key in zip((trained, checked), before, strict=True)
        ]

    assert changed("claims/judges/load.py") == [True, False]
    assert changed("claims/checks/units.py") == [True, True]
    assert [changed(place) for place in shown] == [[False, False]] * 3


def test_costs_of_a_gpu_stand_where_there_is_none(tmp_path, monkeypatch):
    """Claims with checks take over what a GPU found; those of trained models alone do not ask where they are judged."""
    asked = []

    def judged(claim, evidence, tier, device):
        asked.append((claim.id, device))
        return Verdict(claim, "supported", f"on {device}", "")

    monkeypatch.setattr(command, "judge_claim", judged)
    ids = ["situ-fused", "additive-blend"]
    _, devices = command._judge(ids, Evidence([]), "full", "cuda:0", tmp_path, None)
    assert devices == ["cuda:0"] and asked == [("situ-fused", "cuda:0"), ("additive-blend", "cuda:0")]
    again, devices = command._judge([*ids, "kv-bytes"], Evidence([]), "full", "cpu", tmp_path, None)
    assert asked[2:] == [("kv-bytes", "cpu")] and devices == ["cuda:0", "cpu"]
    assert [v.why for v in again] == ["on cuda:0", "on cuda:0", "on cpu"]
    # and not the other way: a processor says nothing about a GPU
    command._judge(["kv-bytes"], Evidence([]), "full", "cuda:0", tmp_path, None)
    assert asked[3:] == [("kv-bytes", "cuda:0")]


def test_a_third_party_claim(monkeypatch):
    monkeypatch.setattr(CLAIMS, "_entries", dict(CLAIMS._entries))

    @register_claim(a_claim())
    def judge(evidence):
        return Judgement([Sample("c", dict.fromkeys(range(6), 0.2))])

    (verdict,) = judge_claims(["mine"], Evidence([]), "quick", "cpu")
    assert verdict.verdict == "supported" and CLAIMS.summary("mine") == "a claim of mine"
    with pytest.raises(BadRequest, match="registered already"):
        register_claim(a_claim())(judge)


def test_a_claim_without_runs_is_inconclusive_and_says_what_is_missing():
    verdict = judge_claim(CLAIMS["additive-blend"], Evidence([]), "quick", "cpu")
    assert verdict.verdict == "inconclusive" and "no finished run" in verdict.why


def test_an_arm_that_the_tier_leaves_out_is_said_and_other_errors_are_not_swallowed(make_evidence):
    made = make_evidence(lambda cell, arm, rng, seed: {}, [("small", "main", "delta")])
    read = lambda evidence: evidence.values("small", lambda run: 1.0)
    judge = lambda evidence: Judgement([Sample("c", read(evidence).minus("delta", "additive"))])
    verdict = judge_claim(a_claim(judge=judge), made, "quick", "cpu")
    assert verdict.verdict == "inconclusive" and "not trained in this tier: no arm 'additive'" in verdict.why

    def broken(evidence):
        raise BadRequest("task.length is wrong")

    with pytest.raises(BadRequest, match="length is wrong"):
        judge_claim(a_claim(judge=broken), made, "quick", "cpu")


def checks(*values, interval=None):
    return lambda tier, device: [Check(f"c{i}", v, 0.0, 1.0, "x", interval=interval) for i, v in enumerate(values)]


def test_checks_become_verdicts():
    claim = CLAIMS["kv-bytes"]
    verdict = lambda *values, **more: check_claim(claim, checks(*values, **more), "quick", "cpu")
    assert verdict(0.5, 0.9).verdict == "supported" and verdict(0.5, 0.9).effect == 0.9
    failed = verdict(0.5, 1.5)
    assert failed.verdict == "refuted" and "c1" in failed.why and failed.effect == 1.5
    assert verdict(0.9, interval=(0.8, 1.1)).verdict == "inconclusive"
    assert verdict(1.5, interval=(1.4, 1.6)).verdict == "refuted"
    assert verdict(float("nan")).verdict == "refuted"

    def unsaid(tier, device):
        raise Undecidable("too small here", "a cluster")

    found = check_claim(claim, unsaid, "quick", "cpu")
    assert (found.verdict, found.why, found.changes) == ("undecidable here", "too small here", "a cluster")


@pytest.mark.parametrize(("value", "expected"), [(0.5, "supported"), (2.0, "refuted")])
def test_trained_and_checked_must_both_hold(monkeypatch, value, expected):
    monkeypatch.setattr(CHECKS, "_entries", {**CHECKS._entries, "mine": Entry(checks(value))})
    claim = a_claim(judge=lambda evidence: Judgement([Sample("c", dict.fromkeys(range(6), 0.2))]))
    verdict = judge_claim(claim, Evidence([]), "quick", "cpu")
    assert verdict.verdict == expected and len(verdict.checks) == 1 and len(verdict.contrasts) == 1


def test_a_folder_that_is_no_claims_folder(tmp_path):
    with pytest.raises(BadRequest, match="mnemolab claims --out"):
        read_claims(tmp_path)
    (tmp_path / "claims.json").write_text('[{"id": "x"}]')
    (tmp_path / "methods.json").write_text("{}")
    with pytest.raises(BadRequest, match="lacks 'statement'"):
        read_claims(tmp_path)
