"""The classic experiments on memory, read off the records of the tasks that run them.

Each function takes records of one or several tasks, keeps the queries of its design, and raises BadRequest, naming what is
missing, when the records do not hold that design. Definitions of the indices: `mnemolab.analysis.indices`.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mnemolab.analysis.cells import codes_of
from mnemolab.analysis.indices import contrast, index, release, slope
from mnemolab.analysis.records import require
from mnemolab.errors import BadRequest

__all__ = [
    "ASKS",
    "directed_forgetting",
    "fan",
    "latest_mask",
    "load_interference",
    "output_interference",
    "proactive",
    "release_from_interference",
    "retroactive",
    "serial_position",
    "spacing",
    "version_slope",
]

By = Sequence[str]
# Codes of the column `ask` of key_overwrite.
ASKS = ("latest", "first", "previous")


def proactive(records: pd.DataFrame, by: By = ("arm",), seed: int = 0) -> pd.DataFrame:
    """Proactive interference by `versions` of the key: the latest value asked, against the fresh-key twin of the same lag.

    Needs key_overwrite with control=True. Columns as `indices.index`, the axis being `versions`.
    """
    frame = _paired(records, "latest", "proactive interference", by)
    return index(frame, "rebound", "control", "versions", by, seed=seed)


def retroactive(records: pd.DataFrame, by: By = ("arm",), seed: int = 0) -> pd.DataFrame:
    """Retroactive interference by `later` rebindings of the key: the first value asked, against the twin whose later
    bindings went to fresh keys. Needs key_overwrite with ask=first or mixed and control=True."""
    frame = _paired(records, "first", "retroactive interference", by)
    return index(frame.assign(later=frame["versions"] - 1), "rebound", "control", "later", by, seed=seed)


def load_interference(records: pd.DataFrame, by: By = ("arm",), seed: int = 0) -> pd.DataFrame:
    """Retroactive interference by other keys: keys bound once, by later writes, against the fewest later writes.

    This is capacity: what other keys' writes cost a key that nobody rebinds. Columns as `indices.index` over `lag_writes`.
    """
    require(records, ["lag_writes", "n_stale"], "interference by other keys")
    once = (records["n_stale"].to_numpy() == 0) & (records["lag_writes"].to_numpy() >= 0)
    if not once.any():
        raise BadRequest("interference by other keys: every key was rebound")
    frame = _only(records, once, by, "lag_writes")
    lag = frame["lag_writes"].to_numpy()
    fewest = lag == lag.min()
    if fewest.all():
        raise BadRequest("interference by other keys: the lag in writes does not vary")
    return index(frame, ~fewest, fewest, "lag_writes", by, pooled_control=True, bins=12, seed=seed)


def version_slope(records: pd.DataFrame, by: By = ("arm",), seed: int = 0) -> pd.DataFrame:
    """Slope of accuracy on ln versions and the number of versions at half accuracy. Columns as `indices.slope`."""
    require(records, ["version"], "slope on versions")
    latest = latest_mask(records)
    if not latest.any():
        raise BadRequest("slope on versions: no query asks for the latest value of its key")
    name = "versions" if "versions" in records else "version"
    frame = _only(records, latest, by, name)
    return slope(frame.assign(versions=frame[name] + (name == "version")), "versions", by=by, seed=seed)


def release_from_interference(records: pd.DataFrame, by: By = ("arm",), seed: int = 0) -> pd.DataFrame:
    """Release from proactive interference at a shift of topic, and at the return to the first (A-B-A).

    Needs topic_switch with its conditions mixed. Columns as `indices.release`, with `condition` shift or return.
    """
    require(records, ["condition"], "release")
    have = set(map(str, codes_of(records["condition"])[1]))
    if not {"single", "no_shift", "shift"} <= have:
        raise BadRequest(
            "release: needs the conditions single, no_shift and shift (task topic_switch, condition=mixed)"
        )
    frame = records
    if "blocks_ago" in records:
        # the last block, the same in all conditions
        frame = _only(records, records["blocks_ago"].to_numpy() == 0, by, "condition")
    parts = [
        release(frame, name, "no_shift", "single", by, seed=seed).assign(condition=name)
        for name in ("shift", "return")
        if name in have
    ]
    return pd.concat(parts, ignore_index=True)


def fan(records: pd.DataFrame, by: By = ("arm",), seed: int = 0) -> pd.DataFrame:
    """Fan effect: slopes of accuracy and of the margin over other presented values on ln fan (ACT-R predicts -1 times a
    constant for the margin). Needs associative_recall with fan > 1. Columns of `indices.slope`, with `measure`."""
    return _slopes(records, "fan", by, seed, log=True)


def spacing(records: pd.DataFrame, by: By = ("arm",), seed: int = 0) -> pd.DataFrame:
    """Spacing effect: slopes on ln spacing of pairs that were written twice. Needs associative_recall with repeats > 0."""
    return _slopes(records, "spacing", by, seed, log=True)


def output_interference(records: pd.DataFrame, by: By = ("arm",), seed: int = 0) -> pd.DataFrame:
    """Slope of accuracy on the number of queries read before. Needs sequential scoring: forked queries do not write."""
    require(records, ["query_index", "scoring"], "output interference")
    read = (records["scoring"] == "sequential").to_numpy()
    if not read.any():
        raise BadRequest("output interference: these runs were scored forked; train with scoring=both or sequential")
    frame = _only(records, read, by, "query_index")
    return slope(frame, "query_index", by=by, log=False, seed=seed)


def serial_position(records: pd.DataFrame, by: By = ("arm",), seed: int = 0) -> pd.DataFrame:
    """Primacy and recency: accuracy of the first and of the last tenth of positions minus the middle three fifths.

    Columns `by`, part, difference, low, high, a (that part), b (the middle), runs. At full length lag and position are
    complements; designs that vary the lag apart from the position tell them apart.
    """
    require(records, ["serial_position", "load"], "serial position")
    load, at = records["load"].to_numpy(), records["serial_position"].to_numpy()
    place = (at / np.maximum(load - 1, 1)).astype(np.float32)
    known = at >= 0
    middle = known & (place >= 0.2) & (place <= 0.8)
    parts = []
    for name, chosen in (("primacy", known & (place <= 0.1)), ("recency", known & (place >= 0.9))):
        if not chosen.any() or not middle.any():
            raise BadRequest(
                f"serial position: no query falls into {name if middle.any() else 'the middle'}; vary positions"
            )
        parts.append(contrast(records, chosen, middle, by=by, seed=seed).assign(part=name))
    return pd.concat(parts, ignore_index=True)


def directed_forgetting(records: pd.DataFrame, by: By = ("arm",), seed: int = 0) -> pd.DataFrame:
    """Cost and benefit of a forget token: accuracy of the first and of the later block, forget minus keep.

    Needs the task directed_forgetting. Columns `by`, part (cost: first block, benefit: later block), difference, low, high.
    """
    require(records, ["condition", "block"], "directed forgetting")
    codes, labels = codes_of(records["condition"])
    block = records["block"].to_numpy()
    if not {"keep", "forget"} <= set(map(str, labels)):
        raise BadRequest("directed forgetting: needs the conditions keep and forget (task directed_forgetting)")
    parts = []
    for name, number in (("cost", 0), ("benefit", 1)):
        told, kept = ((block == number) & (codes == labels.index(name)) for name in ("forget", "keep"))
        if told.any() and kept.any():
            parts.append(contrast(records, told, kept, by=by, seed=seed).assign(part=name))
    if not parts:
        raise BadRequest("directed forgetting: no block is asked both after keep and after forget")
    return pd.concat(parts, ignore_index=True)


def latest_mask(records: pd.DataFrame) -> np.ndarray:
    """Which queries ask for the latest value: as `ask` says, else those with as many other values as earlier ones."""
    if "ask" in records:
        return records["ask"].to_numpy() == ASKS.index("latest")
    if "ordinal" in records or "token_index" in records:  # several values stand side by side: none replaces another
        return np.zeros(len(records), dtype=bool)
    if "n_stale" in records and "version" in records:
        return records["n_stale"].to_numpy() == records["version"].to_numpy()
    return np.ones(len(records), dtype=bool)


def _paired(records: pd.DataFrame, ask: str, what: str, by: By) -> pd.DataFrame:
    """Queries of `ask` in the conditions rebound and control, with `versions` those of the pair."""
    require(records, ["condition", "paired_versions"], what)
    asked = records["paired_versions"].to_numpy() > 1
    if "ask" in records:
        asked = asked & (records["ask"].to_numpy() == ASKS.index(ask))
    elif ask != "latest":
        asked = np.zeros(len(records), dtype=bool)
    if not asked.any():
        raise BadRequest(f"{what}: no query asks for the {ask} value of a rebound key; set task.ask to {ask} or mixed")
    frame = _only(records, asked, by, "condition", "paired_versions")
    return frame.rename(columns={"paired_versions": "versions"})


def _only(records: pd.DataFrame, rows: np.ndarray, by: By, *columns: str) -> pd.DataFrame:
    """Chosen rows with the columns that an index needs: a big table is not copied whole."""
    have = [c for c in dict.fromkeys([*by, "run_id", "example", "correct", *columns]) if c in records]
    return records[have][rows]


def _slopes(records: pd.DataFrame, axis: str, by: By, seed: int, log: bool) -> pd.DataFrame:
    require(records, [axis], f"{axis} effect")
    frame = _only(records, records[axis].to_numpy() > 0, by, axis, "log_odds_other")
    if frame.empty or frame[axis].nunique() < 2:
        raise BadRequest(f"{axis} effect: the records do not vary {axis}")
    parts = [slope(frame, axis, by=by, log=log, seed=seed).assign(measure="accuracy")]
    if "log_odds_other" in frame and frame["log_odds_other"].notna().any():
        parts.append(slope(frame, axis, "log_odds_other", by, log=log, seed=seed).assign(measure="margin"))
    return pd.concat(parts, ignore_index=True)
