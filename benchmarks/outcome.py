"""What every benchmark does with its result: keep it as a JSON line, and print it as JSON or as tables."""

import argparse
import json
from collections.abc import Callable
from typing import Any

from mnemolab.files import append_line

__all__ = ["deliver"]


def deliver(result: dict[str, Any], args: argparse.Namespace, show: Callable[[dict[str, Any]], None]) -> None:
    """Append to `args.save`, if given; then one JSON value (`args.json`) or what `show` prints."""
    if args.save is not None:
        args.save.parent.mkdir(parents=True, exist_ok=True)
        append_line(args.save, result)
    if args.json:
        print(json.dumps(result))
    else:
        show(result)
