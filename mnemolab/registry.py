"""Names to classes, without importing the classes.

An entry is `"module:attribute"` and is imported when it is first asked for, so a list of names costs neither torch nor
lightning. Third parties add entries with a decorator (`@register_task("name")`) in a module that `--plugin` names or that
the entry-point group `mnemolab.plugins` announces.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar

from mnemolab.errors import BadRequest, unknown

__all__ = ["Entry", "Registry", "lazy_exports", "load_plugins"]

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """`target` is `"module:attribute"` or the object itself; `summary` is the one line that `mnemolab list` prints."""

    target: Any
    summary: str = ""

    def load(self) -> Any:
        if not isinstance(self.target, str):
            return self.target
        module, _, attribute = self.target.partition(":")
        return getattr(import_module(module), attribute)


class Registry(Mapping[str, Any]):
    """A mapping from name to object. Iterating gives names and imports nothing; indexing imports one entry."""

    def __init__(self, kind: str, entries: Mapping[str, Entry]):
        self.kind = kind
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> Any:
        return self.entry(name).load()

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    def entry(self, name: str) -> Entry:
        """Raises BadRequest, with the nearest known name, when `name` is not registered."""
        if name not in self:
            raise unknown(self.kind, name, self._entries)
        return self._entries[name]

    def summary(self, name: str) -> str:
        return self.entry(name).summary

    def register(self, name: str, *, summary: str = "") -> Callable[[T], T]:
        """Decorator that adds its class or function under `name`; names are lower case and taken once."""
        if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
            raise BadRequest(f"{self.kind} name {name!r}: use lower-case letters, digits, '_' and '-'")

        def add(target: T) -> T:
            held = self._entries.get(name)
            if held is not None and held.target is not target:
                raise BadRequest(f"{self.kind} {name!r} is registered already; choose another name")
            doc = (getattr(target, "__doc__", None) or "").strip().partition("\n")[0]
            self._entries[name] = Entry(target, summary or doc)
            return target

        return add


def lazy_exports(package: str, where: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__, __dir__` for a package whose names live in submodules (PEP 562).

    `where` maps an exported name to the submodule that defines it; a name that maps to itself is the submodule.
    """

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{where[name]}")
        return module if name == where[name] else getattr(module, name)

    return get, lambda: sorted(where)


def load_plugins(modules: Iterable[str] = ()) -> None:
    """Import every installed plugin of the group `mnemolab.plugins`, then the modules named by `--plugin`."""
    for point in entry_points(group="mnemolab.plugins"):
        _tried(f"plugin {point.name} ({point.value})", point.load)
    for name in modules:
        if not name or name.startswith("."):
            raise BadRequest(f"--plugin {name!r}: give the name of a module, such as my_module")
        _tried(f"--plugin {name}", lambda name=name: import_module(name), name)


def _tried(what: str, load: Callable[[], Any], module: str = "") -> None:
    """`load()`; whatever someone else's code raises becomes one line (`--traceback` shows the rest)."""
    try:
        load()
    except ModuleNotFoundError as error:
        if module and error.name is not None and module.split(".")[0] == error.name.split(".")[0]:
            raise BadRequest(f"{what}: no such module; is its folder on PYTHONPATH?") from error
        raise BadRequest(f"{what}: cannot be imported ({error}); install what it needs") from error
    except BadRequest:
        raise
    except Exception as error:
        raise BadRequest(f"{what}: cannot be imported ({type(error).__name__}: {error})") from error
