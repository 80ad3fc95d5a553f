"""Lazy names, nearest-name errors, decorators and plugins."""

import sys

import pytest

from mnemolab.errors import BadRequest
from mnemolab.registry import Entry, Registry, lazy_exports, load_plugins


@pytest.fixture
def registry():
    return Registry("animal", {"cat": Entry("collections:OrderedDict", "purrs"), "lost": Entry("no.such.module:Dog")})


def test_names_do_not_import(registry):
    assert list(registry) == ["cat", "lost"]
    assert registry.summary("cat") == "purrs"
    with pytest.raises(ModuleNotFoundError):
        registry["lost"]


def test_unknown_name_gives_the_nearest(registry):
    with pytest.raises(BadRequest, match=r"unknown animal 'catt'; did you mean 'cat'\?"):
        registry["catt"]


def test_a_name_is_taken_once_and_the_docstring_is_its_summary(registry):
    @registry.register("fox")
    class Fox:
        """Says nothing."""

    assert registry["fox"] is Fox
    assert registry.summary("fox") == "Says nothing."
    with pytest.raises(BadRequest, match="registered already"):
        registry.register("fox")(type("Other", (), {}))
    with pytest.raises(BadRequest, match="lower-case"):
        registry.register("Big Fox")


def test_lazy_exports_reach_names_and_submodules():
    get, names = lazy_exports("mnemolab", {"BadRequest": "errors", "files": "files"})
    assert get("BadRequest") is BadRequest
    assert get("files").__name__ == "mnemolab.files"
    assert names() == ["BadRequest", "files"]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        get("nothing")


def test_plugin_registers_by_import(tmp_path, monkeypatch):
    (tmp_path / "my_plugin_for_test.py").write_text(
        "from mnemolab.tasks import TASKS\nseen = list(TASKS)\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    load_plugins(["my_plugin_for_test"])
    assert "key_overwrite" in sys.modules.pop("my_plugin_for_test").seen
    with pytest.raises(BadRequest, match="--plugin not_there: no such module"):
        load_plugins(["not_there"])
