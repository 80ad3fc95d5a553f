"""What the README points at exists, and its example plugin works."""

import re
import sys
from pathlib import Path

from mnemolab import cli

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_links_and_pictures_exist():
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in target]
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_tree_names_every_room():
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert rooms - set(re.findall(r"^(\w+)/", README, re.MULTILINE)) == set()


def test_the_example_mixer_trains(tmp_path, monkeypatch):
    (source,) = re.findall(r"```python\n# my_memory.py\n(.*?)```", README, re.DOTALL)
    (tmp_path / "my_memory.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = "train --plugin my_memory --task associative_recall --model leaky_sum --steps 2 --budget.batch_size 2"
    words += " --budget.test_examples 8 --budget.validation_examples 8 --device cpu"
    try:
        assert cli.main([*words.split(), "--out", str(tmp_path / "runs")]) == 0
    finally:
        sys.modules.pop("my_memory", None)
    assert len(list((tmp_path / "runs").glob("*/result.json"))) == 1
