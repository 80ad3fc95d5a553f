"""One list of tasks and modes; the properties apply to each."""

import pytest

from mnemolab.tasks import make_task

CASES = [
    ("associative_recall", {}),
    ("associative_recall", {"layout": "mqar"}),
    ("associative_recall", {"layout": "mqar", "unknown": 2, "filler_vocabulary": 1, "gap_power": 0.5}),
    ("associative_recall", {"layout": "interleaved"}),
    ("associative_recall", {"layout": "interleaved", "lag_law": "log", "unknown": 3}),
    ("associative_recall", {"unknown": 3, "queries": 4}),
    ("associative_recall", {"fan": 3}),
    ("associative_recall", {"fan": 2, "family": 2, "unknown": 2, "length": 80}),
    ("associative_recall", {"repeats": 4, "pairs": 13, "length": 64}),
    ("associative_recall", {"pool": 4}),
    ("associative_recall", {"pool": 4, "queries": 1}),
    ("associative_recall", {"family": 3}),
    ("associative_recall", {"family": 3, "layout": "mqar", "unknown": 2, "length": 80}),
    ("key_overwrite", {}),
    ("key_overwrite", {"ask": "first", "length": 70}),
    ("key_overwrite", {"ask": "previous", "length": 70}),
    ("key_overwrite", {"ask": "mixed", "length": 70, "gap": "mixed"}),
    ("key_overwrite", {"ask": "mixed", "length": 70, "control": False}),
    ("key_overwrite", {"lags": 11, "length": 70, "control": "equal"}),
    ("key_overwrite", {"ask": "mixed", "length": 70, "control": "equal"}),
    ("key_overwrite", {"lags": 11, "length": 70, "control": "one"}),
    ("key_overwrite", {"ask": "mixed", "length": 70, "control": "one"}),
    ("key_overwrite", {"gap": "near"}),
    ("key_overwrite", {"gap": "far", "versions": 3, "keys": 5}),
    ("key_overwrite", {"versions": 1}),
    ("topic_switch", {}),
    ("topic_switch", {"blocks": 3, "length": 96, "ask": "all", "marker": "topic"}),
    ("topic_switch", {"rebind": False, "ask": "all", "length": 80}),
    ("topic_switch", {"rebind": False, "ask": "relevant", "blocks": 3, "length": 96}),
    ("topic_switch", {"condition": "return", "blocks": 4, "length": 96, "marker": "none"}),
    ("topic_switch", {"condition": "single", "rebind": False}),
    ("random_copy", {}),
    ("random_copy", {"mode": "reverse", "forced": True}),
    ("random_copy", {"mode": "selective", "least": 4}),
    ("random_copy", {"mode": "reverse", "least": 3}),
    ("random_copy", {"replacement": True, "alphabet": 8}),
    ("random_copy", {"mode": "prefix"}),
    ("random_copy", {"mode": "suffix", "key_tokens": 2}),
    ("random_copy", {"mode": "prefix", "replacement": True, "alphabet": 26, "key_tokens": 2, "queries": 1}),
    ("random_copy", {"mode": "suffix", "replacement": True, "alphabet": 26, "key_tokens": 2, "queries": 1}),
    ("needle", {}),
    ("needle", {"keys": 4, "haystack": "random"}),
    ("needle", {"keys": 2, "values": 3, "haystack": "markov"}),
    ("needle", {"keys": 4, "queries": 3, "value_tokens": 3}),
    ("needle", {"keys": 2, "values": 2, "queries": 2, "value_tokens": 2, "haystack": "file"}),
    ("selective_retention", {}),
    ("selective_retention", {"span": 8, "gap": "near"}),
    ("record_update", {}),
    ("record_update", {"ask": "current"}),
    ("record_update", {"ask": "previous"}),
    ("record_update", {"ask": "compare"}),
    ("stack", {}),
    ("stack", {"depth": 1}),
    ("stack", {"stacks": 16, "pushes": 2, "length": 128}),
    ("directed_forgetting", {}),
    ("directed_forgetting", {"forgotten": "value"}),
    ("directed_forgetting", {"forgotten": "unasked"}),
    ("directed_forgetting", {"condition": "forget"}),
]


def _label(case):
    name, fields = case
    return "-".join([name, *(f"{k}={v}" for k, v in fields.items())])


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES, ids=[_label(case) for case in CASES])


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("Die Nadel liegt im Heu; wer sie sucht, übt Geduld. " * 40, encoding="utf-8")
    return str(path)


@pytest.fixture
def task(case, text_file):
    name, fields = case
    fields = {**fields, "path": text_file} if fields.get("haystack") == "file" else fields
    return make_task(name, **fields)
