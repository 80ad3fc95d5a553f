"""The command line as a user types it."""

import json
import subprocess
import sys
import time

import pytest

HEAVY = ("torch", "lightning")


def mnemolab(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "mnemolab", *words], capture_output=True, text=True, timeout=120, check=False, **options
    )


def imported(*words):
    """The exit code of a command, and which heavy packages it imported."""
    code = (
        "import sys\nfrom mnemolab.cli import main\ntry:\n    code = main(sys.argv[1:])\nexcept SystemExit as stop:\n"
        "    code = stop.code\n"
        f"print('HEAVY', code, [m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120, check=False
    )
    last = done.stdout.strip().splitlines()[-1].split(maxsplit=2)
    return last[1], json.loads(last[2].replace("'", '"')), done


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("list",),
        ("list", "tasks"),
        ("list", "models"),
        *((command, "--help") for command in ("list", "train", "sweep", "probe", "report", "data", "demo", "bench")),
    ],
    ids=" ".join,
)
def test_help_and_names_import_nothing_heavy(words):
    code, heavy, done = imported(*words)
    assert heavy == []
    assert code in ("0", "None"), done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("lisst",), ("unknown command 'lisst'", "'list'")),
        (("list", "animals"), ("invalid choice", "tasks")),
        (("train", "--task", "key_overwrit", "--model", "kda"), ("unknown task", "did you mean 'key_overwrite'")),
        (("train", "--task", "key_overwrite", "--model", "deltanett"), ("unknown", "did you mean 'deltanet'")),
        (("data", "key_overwrit"), ("unknown task", "did you mean 'key_overwrite'")),
        (("list", "--nonsense"), ("--nonsense",)),
    ],
    ids=lambda value: " ".join(value),
)
def test_unknown_names_are_one_line_and_import_nothing_heavy(words, parts):
    code, heavy, done = imported(*words)
    assert heavy == []
    assert code == "2"
    assert done.stderr.count("\n") == 1
    for part in parts:
        assert part in done.stderr


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            ("train", "--task", "key_overwrite", "--model", "kda", "--task.version", "4"),
            ("version", "did you mean 'versions'"),
        ),
        (
            ("train", "--task", "key_overwrite", "--model", "kda", "--model.widht", "4"),
            ("widht", "did you mean 'width'"),
        ),
        (("train", "--task", "key_overwrite", "--model", "kda", "--task.length", "3"), ("length",)),
    ],
    ids=lambda value: " ".join(value),
)
def test_field_errors_import_torch_at_most(words, parts):
    code, heavy, done = imported(*words)
    assert "lightning" not in heavy
    assert code == "2", done.stderr
    assert done.stderr.count("\n") == 1
    for part in parts:
        assert part in done.stderr


def test_help_answers_quickly():
    # 0.5 s is the promise on an idle machine; the best of five tells code from noise
    best = min(_seconds("--help") for _ in range(5))
    assert best < 0.5


def _seconds(*words):
    start = time.perf_counter()
    assert mnemolab(*words).returncode == 0
    return time.perf_counter() - start


def test_list_json_is_one_value_with_fields():
    rows = json.loads(mnemolab("list", "tasks", "--json").stdout)
    task = next(row for row in rows if row["name"] == "key_overwrite")
    fields = {field["name"]: field for field in task["fields"]}
    assert {"length", "versions"} <= set(fields)
    assert all({"name", "type", "default", "meaning", "low", "high"} <= set(field) for field in fields.values())


def test_version():
    assert mnemolab("--version").stdout.startswith("mnemolab 0.")


def test_a_closed_pipe_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m mnemolab list | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Traceback" not in done.stderr
