"""What the README points at exists, and its example plugin works."""

import re
import sys
from pathlib import Path

from mnemolab.cli import main
from mnemolab.models.lineage import STAGES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_links_and_pictures_exist():
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in target]
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_tree_names_every_room():
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert rooms - set(re.findall(r"^(\w+)/", README, re.MULTILINE)) == set()


def test_the_example_task_is_the_one_that_the_docs_test():
    (source,) = re.findall(r"```python\n# my_task.py\n(.*?)```", README, re.DOTALL)
    whole = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    lines = [line for line in source.splitlines() if line.strip()]
    assert len(lines) > 10
    assert [line for line in lines if line not in whole.splitlines()] == []


def test_the_example_mixer_trains(tmp_path, monkeypatch):
    (source,) = re.findall(r"```python\n# my_memory.py\n(.*?)```", README, re.DOTALL)
    (tmp_path / "my_memory.py").write_text(source)
    words = "train --plugin my_memory --task associative_recall --model leaky_sum --steps 2 --budget.batch_size 2"
    words += " --budget.test_examples 8 --budget.validation_examples 8 --device cpu --out runs"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(STAGES, "_entries", dict(STAGES._entries))  # a plugin stays registered
    try:
        assert main(words.split()) == 0
    finally:
        sys.modules.pop("my_memory", None)
    assert len(list((tmp_path / "runs").glob("*/result.json"))) == 1
