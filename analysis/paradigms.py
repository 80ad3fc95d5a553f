"""The classic experiments on memory, read off the records of the tasks that run them.

Each function takes records of one or several tasks, keeps the queries of its design, and raises BadRequest, naming what is
missing, when the records do not hold that design. Definitions of the indices: `mnemolab.analysis.indices`.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mnemolab.analysis.cells import codes_of, curve
from mnemolab.analysis.indices import contrast, index, matched_index, release, slope
from mnemolab.analysis.matching import matched_slope
from mnemolab.analysis.records import require
from mnemolab.errors import BadRequest

__all__ = [
    "ASKS",
    "directed_forgetting",
    "fan",
    "in_pairs",
    "latest_mask",
    "load_interference",
    "output_interference",
    "proactive",
    "release_from_interference",
    "retroactive",
    "serial_position",
    "spacing",
    "version_slope",
    "with_twins",
]

By = Sequence[str]
# Codes of the column `ask` of key_overwrite.
ASKS = ("latest", "first", "previous")


def proactive(records: pd.DataFrame, by: By = ("arm",), seed: int = 0) -> pd.DataFrame:
    """Proactive interference by `versions` of the key: the latest value asked, against the twin of the same lag whose key was
    bound once.

    Needs key_overwrite with controls (control=true, equal or one). Where the records name the keys, a rebound key counts
    only where it has its own control (`in_pairs`): with control=one no other has. Columns as `indices.index`, the axis being
    `versions`.
    """
    frame = _paired(records, "latest", "proactive interference", by)
    return index(frame, "rebound", "control", "versions", by, seed=seed)


def retroactive(records: pd.DataFrame, by: By = ("arm",), seed: int = 0) -> pd.DataFrame:
    """Retroactive interference by `later` rebindings of the key: the first value asked, against the twin whose later
    bindings went to other keys, paired as in `proactive`. Needs key_overwrite with ask=first or mixed and controls."""
    frame = _paired(records, "first", "retroactive interference", by)
    return index(frame.assign(later=frame["versions"] - 1), "rebound", "control", "later", by, seed=seed)


def load_interference(records: pd.DataFrame, by: By = ("arm",), seed: int = 0) -> pd.DataFrame:
    """Retroactive interference by other keys: keys bound once, by later writes, against the fewest later writes of the arm
    at the same lag in tokens (the rest being filler).

    This is capacity: what other keys' writes cost a key that nobody rebinds. Columns as `indices.index` over `lag_writes`.
    Refused where the lag in tokens follows from the lag in writes.
    """
    require(records, ["lag_writes", "lag_tokens", "n_stale"], "interference by other keys")
    once = (records["n_stale"].to_numpy() == 0) & (records["lag_writes"].to_numpy() >= 0)
    if not once.any():
        raise BadRequest("interference by other keys: every key was rebound")
    frame = _only(records, once, by, "lag_writes", "lag_tokens")
    if frame["lag_writes"].nunique() < 2:
        raise BadRequest("interference by other keys: the lag in writes does not vary")
    return matched_index(frame, "lag_writes", by, seed=seed)


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
    frame = _varied(records, "fan", by)
    measures = _measures(frame)
    parts = [slope(frame, "fan", value, by, seed=seed).assign(measure=name) for name, value in measures.items()]
    return pd.concat(parts, ignore_index=True)


def spacing(records: pd.DataFrame, by: By = ("arm",), seed: int = 0) -> pd.DataFrame:
    """Spacing effect: slopes on ln spacing of pairs that were written twice, among queries of the same lag since the second
    writing. Needs associative_recall with repeats > 0. Columns of `matching.matched_slope`, with `measure`."""
    frame = _varied(records, "spacing", by)
    measures = _measures(frame)
    parts = [matched_slope(frame, "spacing", v, by, seed=seed).assign(measure=name) for name, v in measures.items()]
    return pd.concat(parts, ignore_index=True)


def output_interference(records: pd.DataFrame, by: By = ("arm",), seed: int = 0) -> pd.DataFrame:
    """Slope of accuracy on the number of queries read before. Needs sequential scoring: forked queries do not write.

    Where the records hold both scorings, of sequential minus forked correctness of the same query (`against` forked):
    whatever else the place of a query brings, its lag from the write included, is the same in both. With sequential
    records alone, among queries of the same lag in tokens (`against` lag). Columns `by`, slope, low, high (per query read),
    change, change_low, change_high (sequential minus forked over queries with a query before them; NaN without forked
    records), runs, against.
    """
    require(records, ["query_index", "scoring", "correct"], "output interference")
    read = (records["scoring"] == "sequential").to_numpy()
    if not read.any():
        raise BadRequest("output interference: these runs were scored forked; train with scoring=both or sequential")
    frame = with_twins(records, by)
    if frame is not None:
        found = slope(frame, "query_index", "change", by, log=False, seed=seed)[[*by, "slope", "low", "high", "runs"]]
        later = (frame["query_index"] > 0).to_numpy()
        mean = curve(frame, None, "change", by, seed=seed, where=later)[[*by, "mean", "low", "high"]]
        names = {"mean": "change", "low": "change_low", "high": "change_high"}
        return found.merge(mean.rename(columns=names), on=list(by)).assign(against="forked")
    alone = _only(records, read, by, "query_index", "lag_tokens")
    found = matched_slope(alone, "query_index", by=by, log=False, seed=seed)
    return found.assign(change=np.nan, change_low=np.nan, change_high=np.nan, against="lag")


def serial_position(records: pd.DataFrame, by: By = ("arm",), seed: int = 0) -> pd.DataFrame:
    """Primacy and recency: accuracy of the first and of the last tenth of positions minus the middle three fifths, among
    queries of the same lag in tokens.

    Columns `by`, part, difference, low, high, a (that part), b (the middle), runs. Refused where position and lag are
    complements, as in forked scoring of lists of one length; loads that vary, or sequential scoring of queries in random
    order, tell them apart. A part that shares no lag with the middle has no row.
    """
    require(records, ["serial_position", "load", "lag_tokens"], "serial position")
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
        try:
            found = contrast(records, chosen, middle, by=by, seed=seed, match="lag_tokens")
        except BadRequest:
            continue
        parts.append(found.assign(part=name))
    if not parts:
        raise BadRequest(
            "serial position: position and lag go together in these records, so their effects cannot be told apart; "
            "vary the load, or score sequentially"
        )
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


def in_pairs(records: pd.DataFrame, what: str) -> np.ndarray:
    """Which queries are one of a pair: a control, and its twin's query of the same key, which was rebound there.

    Twins are examples 2i and 2i + 1 of a run (task key_overwrite). Raises BadRequest, with `what` the measure, where there is
    no pair.
    """
    require(records, ["example", "key", "condition"], what)
    codes, labels = codes_of(records["condition"])
    control, rebound = (
        np.isin(codes, [n for n, label in enumerate(labels) if str(label) == name]) for name in ("control", "rebound")
    )
    run = [records["run_id"]] if "run_id" in records else []  # without it all rows are of one
    keys = [*run, records["example"] // 2, records["key"]]
    pair = records.groupby(keys, observed=True, sort=False, dropna=False).ngroup().to_numpy()
    relieved, treated = (np.bincount(pair[side], minlength=pair.max() + 1) > 0 for side in (control, rebound))
    found = (control | rebound) & (relieved & treated)[pair]
    if not found.any():
        raise BadRequest(
            f"{what}: no control has its key rebound in its twin (examples 2i and 2i + 1 are twins); give records of "
            "key_overwrite with control=true, equal or one, both twins of a pair in them"
        )
    return found


def _paired(records: pd.DataFrame, ask: str, what: str, by: By) -> pd.DataFrame:
    """Queries of `ask` in the conditions rebound and control, with `versions` those of the pair. Where the records name the keys
    (foreign ones may not), those in pairs alone."""
    require(records, ["condition", "paired_versions"], what)
    asked = records["paired_versions"].to_numpy() > 1
    if "ask" in records:
        asked = asked & (records["ask"].to_numpy() == ASKS.index(ask))
    elif ask != "latest":
        asked = np.zeros(len(records), dtype=bool)
    if not asked.any():
        raise BadRequest(f"{what}: no query asks for the {ask} value of a rebound key; set task.ask to {ask} or mixed")
    frame = _only(records, asked, by, "condition", "paired_versions", "key")
    if "key" in frame:
        frame = frame[in_pairs(frame, what)]
    return frame.rename(columns={"paired_versions": "versions"})


def _only(records: pd.DataFrame, rows: np.ndarray, by: By, *columns: str) -> pd.DataFrame:
    """Chosen rows with the columns that an index needs: a big table is not copied whole."""
    have = [c for c in dict.fromkeys([*by, "run_id", "example", "correct", *columns]) if c in records]
    return records[have][rows]


def _varied(records: pd.DataFrame, axis: str, by: By) -> pd.DataFrame:
    """Queries that have `axis`, with the columns that its effect needs."""
    require(records, [axis, "lag_tokens"], f"{axis} effect")
    frame = _only(records, records[axis].to_numpy() > 0, by, axis, "lag_tokens", "log_odds_other")
    if frame.empty or frame[axis].nunique() < 2:
        raise BadRequest(f"{axis} effect: the records do not vary {axis}")
    return frame


def _measures(frame: pd.DataFrame) -> dict[str, str]:
    margin = "log_odds_other" in frame and frame["log_odds_other"].notna().any()
    return {"accuracy": "correct"} | ({"margin": "log_odds_other"} if margin else {})


def with_twins(records: pd.DataFrame, by: By = ("arm",)) -> pd.DataFrame | None:
    """Sequential rows that have a forked twin (same run, example and query), with `change` = correct - the twin's correct;
    None where there is none."""
    read = (records["scoring"] == "sequential").to_numpy()
    if "query" not in records or not (~read).any():
        return None
    keys = ["run_id", "example", "query"]
    forked = records.loc[(records["scoring"] == "forked").to_numpy(), [*keys, "correct"]]
    pairs = _only(records, read, by, "query", "query_index").merge(forked, on=keys, suffixes=("", "_forked"))
    if pairs.empty:
        return None
    return pairs.assign(change=pairs["correct"].astype(float) - pairs["correct_forked"].astype(float))
