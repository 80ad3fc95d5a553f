"""A contact sheet: examples that a person can read, with their queries, lags and conditions."""

import textwrap

from mnemolab.tasks.base import Batch, Task

__all__ = ["sheet"]

_COLOURS = {"keys": 36, "endings": 36, "persistent": 36, "volatile": 34, "values": 32, "answers": 32, "topics": 35}
_COLOURS |= {"attributes": 35, "special": 33, "filler": 90, "bytes": 90}
_HEAD = ("at", "asked", "answer", "lag tokens", "lag writes", "version", "serial", "condition", "stale")


def sheet(task: Task, batch: Batch, *, colour: bool = False, width: int = 100, first: int = 0) -> str:
    """The examples of `batch` as text: tokens wrapped at `width`, then one line a query. `first` numbers the examples.

    With `colour`, ANSI colours tell the kinds of tokens apart: keys cyan, values green, filler grey, special yellow.
    """
    vocabulary = task.vocabulary

    def show(token: int) -> str:
        text = vocabulary.text(token)
        return f"\x1b[{_COLOURS.get(vocabulary.kind(token), 0)}m{text}\x1b[0m" if colour else text

    lines = []
    for row, tokens in enumerate(batch.inputs.tolist()):
        lines.append(f"example {first + row}")
        words = [vocabulary.text(token) for token in tokens]
        wrapped = textwrap.wrap(" ".join(words), width - 2, break_long_words=False, break_on_hyphens=False)
        shown = iter(tokens)
        lines += ["  " + " ".join(show(next(shown)) for _ in line.split()) for line in wrapped]
        table: list[tuple[str, ...]] = [_HEAD]
        column = {name: values[row].tolist() for name, values in batch.queries.items()}
        for q, position in enumerate(column["position"]):
            if position < 0:
                continue
            lags = [str(column[name][q]) if column[name][q] >= 0 else "-" for name in _LAGS]
            asked = " ".join(words[column["start"][q] : position + 1])
            asked = asked if len(asked) <= 24 else "... " + asked[-20:]
            stale = " ".join(vocabulary.text(token) for token in column["stale"][q] if token >= 0)
            condition = task.conditions[column["condition"][q]]
            table.append((str(position), asked, vocabulary.text(column["target"][q]), *lags, condition, stale or "-"))
        widths = [max(len(line[j]) for line in table) for j in range(len(_HEAD))]
        lines += [
            "  " + "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in table
        ]
        lines.append("")
    return "\n".join(lines)


_LAGS = ("lag_tokens", "lag_writes", "version", "serial_position")
