"""The command line as a user types it."""

import json
import resource
import subprocess
import sys

import pytest

HEAVY = ("torch", "lightning")
TRAIN = ("train", "--task", "key_overwrite", "--model", "kda")


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
        *(
            (command, "--help")
            for command in ("list", "train", "sweep", "probe", "claims", "report", "data", "demo", "bench")
        ),
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
        (("train", "--task", "key_overwrit", "--help"), ("unknown task", "did you mean 'key_overwrite'")),
        (("train", "--task", "stack", "--task", "needle", "--model", "kda"), ("--task is given twice",)),
        (("train", "--task", "stack", "--model", "kda", "--task.name", "needle"), ("--task.name", "--task needle")),
        (("train", "--task", "stack", "--model", "kda", "--step", "3"), ("unknown argument '--step'",)),
        (("train", "--task", "stack", "--model", "kda", "--steps", "3", "--budget.steps", "4"), ("same field",)),
        (("train", "--task", "stack", "--model", "kda", "--plugin="), ("--plugin ''", "my_module")),
        (("probe", ".", "--probe", "retenton"), ("unknown probe", "did you mean 'retention'")),
        (("probe", "no-such-folder"), ("no-such-folder", "no such run")),
        (("report", "no-such-folder"), ("no-such-folder", "no such folder")),
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


FIELD_ERRORS = [
    (("--task.version", "4"), ("version", "did you mean 'versions'")),
    (("--model.widht", "4"), ("widht", "did you mean 'width'")),
    (("--task.length", "3"), ("length",)),
    (("--task.length", "100000000000"), ("the most is",)),
    (("--task.versions", "none"), ("versions=none", "such as 4")),
    (("--task.versions", "abc"), ("whole number", "abc")),
    (("--device", "cuda:x"), ("cuda:x", "cuda:N")),
    (("--device", "cpu:3"), ("cpu:3", "cuda:N")),
]


@pytest.fixture(scope="module")
def field_errors():
    """Exit code, stderr and heavy packages so far of each of FIELD_ERRORS, in one process: to import torch takes seconds."""
    code = (
        "import contextlib, io, json, sys\nfrom mnemolab.cli import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    with contextlib.redirect_stderr(io.StringIO()) as said:\n"
        "        try:\n            code = main(words)\n"
        "        except SystemExit as stop:\n            code = stop.code\n"
        f"    print(json.dumps([code, said.getvalue(), [m for m in {HEAVY!r} if m in sys.modules]]))"
    )
    words = json.dumps([[*TRAIN, *words] for words, _ in FIELD_ERRORS])
    done = subprocess.run([sys.executable, "-c", code, words], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("case", range(len(FIELD_ERRORS)), ids=[" ".join(words) for words, _ in FIELD_ERRORS])
def test_field_errors_import_torch_at_most(field_errors, case):
    code, said, heavy = field_errors[case]
    assert "lightning" not in heavy
    assert code == 2, said
    assert said.count("\n") == 1
    for part in FIELD_ERRORS[case][1]:
        assert part in said


@pytest.mark.parametrize(
    "words", [("--help",), ("list",), ("train", "--task", "key_overwrit", "--model", "kda")], ids=" ".join
)
def test_help_names_and_unknown_names_answer_within_half_a_second(words):
    # processor time, which a busy machine does not stretch
    assert min(_seconds(*words) for _ in range(3)) < 0.5


def _seconds(*words):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    mnemolab(*words)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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
