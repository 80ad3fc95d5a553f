"""Whole or absent files, and locks freed by death."""

import json
import os
import subprocess
import sys

import pytest

from mnemolab.errors import BadRequest
from mnemolab.files import append_line, held, output_folder, write_atomic, write_json


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = write_json(tmp_path / "result.json", {"accuracy": 0.5})

    def half(temporary):
        temporary.write_text("{", encoding="utf-8")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError):
        write_atomic(path, half)
    assert json.loads(path.read_text()) == {"accuracy": 0.5}
    assert os.listdir(tmp_path) == ["result.json"]


def test_not_a_number_is_refused(tmp_path):
    with pytest.raises(ValueError):
        write_json(tmp_path / "result.json", {"accuracy": float("nan")})
    assert os.listdir(tmp_path) == []


def test_lines_append(tmp_path):
    for step in range(3):
        append_line(tmp_path / "metrics.jsonl", {"step": step})
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == [{"step": 0}, {"step": 1}, {"step": 2}]


def test_a_file_where_the_folder_must_be_is_one_clear_line(tmp_path):
    (tmp_path / "runs").write_text("in the way")
    with pytest.raises(BadRequest, match=r"--out .*runs.*: cannot write there .*choose another folder"):
        output_folder(tmp_path / "runs" / "a")


def test_lock_excludes_and_death_frees_it(tmp_path):
    lock = tmp_path / "lock"
    holder = "import sys,time; from mnemolab.files import held\nwith held(sys.argv[1]) as had: print(had, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", holder, str(lock)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "True\n"
    with held(lock) as had:
        assert not had
    process.kill()
    process.wait()
    process.stdout.close()
    with held(lock) as had:
        assert had
