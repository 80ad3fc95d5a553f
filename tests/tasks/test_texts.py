"""A needle's haystack from the user's own text: what it shows, which part each split takes, and what names it."""

import torch

from mnemolab.tasks import make_task
from mnemolab.tasks.base import SPLITS


def test_a_needles_text_is_its_haystack(text_file, tmp_path):
    task = make_task("needle", haystack="file", path=text_file)
    batch = task.sample(torch.arange(50))
    spell = task.vocabulary["bytes"]
    with open(text_file, "rb") as file:
        text = file.read()
    for row in batch.inputs.tolist():
        assert bytes(token - spell.start for token in row if token in spell) in text


def test_splits_take_windows_of_different_parts_of_the_text(tmp_path):
    path = tmp_path / "numbers.txt"
    path.write_text(" ".join(f"{n:05d}" for n in range(2000)))
    task = make_task("needle", haystack="file", path=str(path), length=256)
    spell = task.vocabulary["bytes"]
    seen, text = [], path.read_bytes()
    for split in SPLITS:
        places = set()
        for row in task.sample(torch.arange(2000), split=split).inputs.tolist():
            window = bytes(token - spell.start for token in row if token in spell)
            first = text.find(window)
            assert first >= 0
            places |= set(range(first, first + len(window)))
        assert not any(places & other for other in seen)
        seen.append(places)
    assert sum(map(len, seen)) > 0.9 * len(text)  # windows reach all of it


def test_a_texts_content_and_not_its_path_is_in_the_fingerprint(tmp_path):
    """Two texts with the same bytes are one task; one that differs is another, even where no window shows it."""
    fingerprints = []
    for name, text in (("a", "Some words. " * 400), ("b", "Some words. " * 400), ("c", "Some words. " * 400 + "!")):
        (tmp_path / name).write_text(text)
        fingerprints.append(make_task("needle", haystack="file", path=str(tmp_path / name)).fingerprint())
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]
    task = make_task("needle", haystack="file", path=str(tmp_path / "a"))
    (tmp_path / "a").write_text("Other words, which come later. " * 400)
    assert task.fingerprint() != fingerprints[0]
