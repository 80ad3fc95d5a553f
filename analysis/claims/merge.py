"""`python -m mnemolab.analysis.claims.merge FOLDER LATER`: claims that were judged later take their places in FOLDER.

Both are folders that `mnemolab claims` wrote, of one tier. An experiment that was run again, at another attempt say, does not make
the runs of all others necessary again. What stands in FOLDER afterwards says of every such claim when and by what it was judged.
"""

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from mnemolab.analysis.claims.write import read_claims, write_objects
from mnemolab.errors import BadRequest

__all__ = ["merge"]

# of methods, where the later folder adds to the earlier one or has the last word
_JOINED = ("attempts", "hashes", "rates")
_LISTS = ("devices", "diverged")


def merge(folder: Path, later: Path) -> list[Path]:
    """Put the claims of `later` into `folder`, with their runs and figures; what was written. Raises BadRequest for two tiers, other
    seeds, or a table of runs that cannot be read. Nothing is written before everything has been read."""
    objects, methods = read_claims(folder)
    new, added = read_claims(later)
    for name in ("tier", "seeds", "twin_seeds"):
        if methods.get(name) != added.get(name):
            raise BadRequest(
                f"{later}: {name}={added.get(name)!r}, but {methods.get(name)!r} in {folder}; merge folders of one tier"
            )
    by_id = {row["id"]: row for row in new}
    rows = [by_id.pop(row["id"], row) for row in objects] + list(by_id.values())
    runs = _runs(folder, later, added.get("hashes", {}))
    said = _methods(methods, added, [row["id"] for row in new], runs)
    for row in added.get("figures", ()):
        if not row["experiment"]:  # a forest, which the report draws anew
            continue
        for kind in ("png", "pdf", "csv"):
            source = later / "figures" / row[kind]
            if source.exists():
                (folder / "figures").mkdir(exist_ok=True)
                shutil.copyfile(source, folder / "figures" / row[kind])
    return write_objects(rows, said, folder, runs)


def _runs(folder: Path, later: Path, hashes: Mapping[str, str]) -> pd.DataFrame:
    """Both tables of runs; experiments of `later` (`hashes`) replace those of `folder`."""
    tables = []
    for place in (folder, later):
        try:
            tables.append(pd.read_parquet(place / "runs.parquet"))
        except (OSError, ValueError) as error:
            raise BadRequest(
                f"{place / 'runs.parquet'}: cannot read it ({error}); `mnemolab claims` writes it"
            ) from error
    first, second = tables
    return pd.concat([first[~first["experiment"].isin(list(hashes))], second], ignore_index=True)


def _methods(
    methods: Mapping[str, Any],
    added: Mapping[str, Any],
    ids: Sequence[str],
    runs: pd.DataFrame,
) -> dict[str, Any]:
    changed = [
        *(name for name in methods.get("rules_changed") or () if name not in ids),
        *(added.get("rules_changed") or ()),
    ]
    before = [
        entry | {"claims": [name for name in entry["claims"] if name not in ids]} for entry in methods.get("later", ())
    ]
    return {
        **methods,
        **{name: {**methods.get(name, {}), **added.get(name, {})} for name in _JOINED},
        **{name: list(dict.fromkeys([*methods.get(name, ()), *added.get(name, ())])) for name in _LISTS},
        "claims": max(methods.get("claims", 0), added.get("claims", 0)),
        "runs": int(runs["run_id"].nunique()),
        "steps": int(runs["result.steps"].sum()),
        "training_seconds": float(runs["result.train_seconds"].sum()),
        "rules_changed": changed if methods.get("rules_changed") is not None else None,
        "figures": [row for row in methods.get("figures", ()) if not {*row["claims"]} & {*ids}]
        + list(added.get("figures", ())),
        "later": [
            *(entry for entry in before if entry["claims"]),
            {"claims": list(ids), "provenance": added.get("provenance", {})},
        ],
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m mnemolab.analysis.claims.merge", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("later", type=Path, metavar="LATER")
    args = parser.parse_args(argv)
    try:
        for path in merge(args.folder, args.later):
            print(path)
    except BadRequest as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
