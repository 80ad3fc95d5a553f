"""Errors a user can act on, and the hint that finds the name they meant."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["BadRequest", "MnemolabError", "RunFailed", "hint", "unknown"]


class MnemolabError(Exception):
    """Base of the errors that the command line prints without a traceback."""

    exit_code = 1


class BadRequest(MnemolabError, ValueError):
    """The request cannot be met. The message is one line: the field, its value, and what would do. Exit code 2."""

    exit_code = 2


class RunFailed(MnemolabError, RuntimeError):
    """A run started and did not finish. Exit code 1."""


def hint(name: str, choices: Iterable[str]) -> str:
    """`did you mean 'kda'?` when something is near, else the list of choices."""
    known = sorted(choices)
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"


def unknown(kind: str, name: object, choices: Iterable[str]) -> BadRequest:
    """The error for a name that is not in `choices`."""
    return BadRequest(f"unknown {kind} {name!r}; {hint(str(name), choices)}")
