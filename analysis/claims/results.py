"""docs/results.md from a claims folder: verdicts and numbers as plain Markdown, nothing by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from mnemolab.analysis.claims.claim import VERDICTS
from mnemolab.analysis.claims.judge import twin_limit, twin_rate
from mnemolab.analysis.claims.replication import Replication, agreement, agreement_said
from mnemolab.analysis.figures.replication import alt, caption

__all__ = [
    "POOLED",
    "later_said",
    "needed",
    "placebos_said",
    "pooled",
    "replicated",
    "replication_said",
    "results",
    "rules_said",
    "spans",
]

_HEAD = "<!-- Written by `mnemolab report`; do not edit by hand. -->"
_SAID = (
    "These commands count that one, run it on one GPU in pieces of nine minutes, each of which goes on where the last one",
    "stopped, and fill this page:",
    "",
)
_COMMANDS = (
    "```",
    "mnemolab claims --tier full --dry-run",
    "while mnemolab claims --tier full --freeze --minutes 9; do test -f configs/claims/frozen/full.yaml && break; done",
    "while mnemolab claims --tier full --minutes 9; do test -f claims/full/claims.json && break; done",
    "mnemolab report claims/full && cp claims/full/report/results.md docs/results.md",
    "```",
    "",
)
# said wherever the seeds of both sides are taken together
POOLED = "Taking all seeds together is not the frozen rule and changes no verdict."


def results(
    objects: Sequence[Mapping[str, Any]], methods: Mapping[str, Any], replication: Replication | None = None
) -> str:
    """The page for judged claims (objects of claims.json), and what became of them under other seeds."""
    facts = methods.get("provenance", {})
    agreed = None if replication is None else agreement(objects, replication[0])
    counts = ", ".join(f"{sum(row['verdict'] == v for row in objects)} {v}" for v in VERDICTS)
    twins, supported = methods.get("twins", 0), methods.get("twins_supported", 0)
    lines = [
        _HEAD,
        f"# Results: the {methods.get('tier')} tier",
        "",
        (
            f"{counts}. {methods.get('runs', 0)} runs, {len(methods.get('seeds', []))} seeds an arm, "
            f"{methods.get('steps', 0):,} steps, on {', '.join(methods.get('devices', [])) or 'no device'}."
        ),
        f"A/A contrasts called supported: {supported} of {twins}{_limit(methods)}. Learning rates: {methods.get('how', '?')}.",
        placebos_said(objects, replication),
        "",
        (
            f"`{facts.get('Command', '?')}` at {facts.get('Commit', '?')}, {facts.get('Made', 'undated')}; "
            f"{facts.get('Versions', '')}."
        ),
        *later_said(methods),
    ]
    if methods.get("tier") != "quick":  # that one confirms nothing
        lines += ["", rules_said(methods)]
    if methods.get("diverged"):
        lines += ["", f"Left out, since their loss or gradient was not finite: {', '.join(methods['diverged'])}."]
    if methods.get("tier") == "quick":
        lines += [
            "",
            "**This is not the full tier.** Below are small models and three seeds, which decide nothing about what is trained;",
            "exact and counted claims are as in every tier, costs are those of this device.",
            *_SAID,
            *_COMMANDS[:-1],
        ]
    elif methods.get("tier") == "full":
        lines += [
            "",
            f"{replication_said(objects, replication)} What made this page, in pieces that go on where the last one stopped",
            "(training and judging need not share a machine, [claims.md](claims.md); `--tier replicate` and `--replication claims/replicate` add the other seeds and a figure, report/figures/replication.png):",
            "",
            *_COMMANDS[:-1],
        ]
    lines += [
        "",
        "| claim | verdict | effect | 95% interval | margin | p | seeds | seeds that would decide |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in objects:
        span = _interval(row)
        margin = _say(row["deciding_margin"]) if row["contrasts"] else ""
        lines.append(
            f"| `{row['id']}` | {row['verdict']} | {_say(row['effect'])} | {span} | {margin} | {_say(row['p'])} | "
            f"{row['seeds'] or ''} | {_say(needed(row))} |"
        )
    if replication is not None and agreed is not None:
        lines += ["", *_replication_table(objects, replication[0], agreed)]
    for row in objects:
        lines += [
            "",
            f"## {row['id']}",
            "",
            (
                f"{row['statement'][:1].upper()}{row['statement'][1:]}. **{row['verdict'].capitalize()}**: {row['why']}. "
                f"What would change it: {row['would_change']}."
            ),
        ]
        lines += [f"* {_contrast(c)}" for c in row["contrasts"]]
        lines += [f"* placebo: {_contrast(c)}" for c in row["placebo_contrasts"]]
        lines += [f"* {_check(c)}" for c in row["checks"]]
        again, both = replicated(row["id"], replication), pooled(row["id"], agreed)
        lines += [f"* other seeds: {again}{f'; {both}' if both else ''}"] if again else []
        if row["note"]:
            lines.append(f"\n{row['note']}")
    return "\n".join(lines) + "\n"


def later_said(methods: Mapping[str, Any]) -> list[str]:
    """Which claims were judged later than the others, at what commit and when (`merge`): one text an entry."""
    found = []
    for entry in methods.get("later", ()):
        facts = entry["provenance"]
        when = f"at {facts.get('Commit', '?')}, {facts.get('Made', 'undated')}"
        found.append(f"Judged later, {when}: {', '.join(entry['claims'])}.")
    return found


def replication_said(objects: Sequence[Mapping[str, Any]], replication: Replication | None) -> str:
    """How many of the claims that trained models decide were judged again under other seeds, how many alike, and which not yet; then
    their A/A contrasts and the runs that were left out."""
    if replication is None:
        return "The replicate tier, with disjoint seeds, is not part of this page."
    rows, methods = replication
    first = {row["id"]: row["verdict"] for row in objects if row["experiment"] and row["seeds"]}
    alike = [row["id"] for row in rows if row["verdict"] == first.get(row["id"])]
    other = [row["id"] for row in rows if row["id"] not in alike]
    left = [name for name in first if name not in {row["id"] for row in rows}]
    later = ", 1,000 more for each later attempt" if methods.get("attempts") else ""
    said = (
        f"With disjoint seeds ({spans(methods['seeds'])}{later}; the replicate tier, {methods.get('runs', 0)} runs) {len(rows)} of {len(first)} "
        f"claims that trained models decide were judged again, {len(alike)} with the same verdict"
    )
    said += f", another for {', '.join(other)}" if other else ""
    said += f"; not yet run: {', '.join(left)}." if left else "."
    supported, twins = twin_rate(rows)
    if twins:
        limit = _limit({"twins_limit": twin_limit(supported, twins)})
        said += f" A/A contrasts called supported there: {supported} of {twins}{limit}."
    if methods.get("diverged"):
        said += f" Left out there, since their loss or gradient was not finite: {', '.join(methods['diverged'])}."
    made = [f"{p.get('Commit', '?')}, {p.get('Made', 'undated')}" for p in methods.get("provenance", ()) if p]
    return said + (f" Those claims were judged at {' and at '.join(made)}." if made else "")


def placebos_said(objects: Sequence[Mapping[str, Any]], replication: Replication | None) -> str:
    """Which placebos passed the rule of their claim, here and under other seeds."""
    here, there = (
        ", ".join(row["id"] for row in rows if row["placebo_passed"])
        for rows in (objects, () if replication is None else replication[0])
    )
    if not here and not there:
        return f"No placebo passed the rule of its claim{', nor under other seeds' if replication else ''}."
    said = f"Placebos that passed, as none may: {here or 'none'}"
    return f"{said}; under other seeds: {there or 'none'}." if replication else f"{said}."


def needed(row: Mapping[str, Any]) -> int | None:
    """Seeds that would decide a claim; None where it is decided, or no number would."""
    return None if row["verdict"] in ("supported", "refuted") else row["seeds_needed"]


def spans(seeds: Sequence[int]) -> str:
    """Seeds in words, a stretch without a gap by its ends: `700 to 711, 900`."""
    ends: list[list[int]] = []
    for seed in seeds:
        if ends and seed == ends[-1][1] + 1:
            ends[-1][1] = seed
        else:
            ends.append([seed, seed])
    return ", ".join(f"{low} to {high}" if high > low else f"{low}" for low, high in ends) or "none"


def replicated(claim: str, replication: Replication | None) -> str:
    """The verdict on `claim` under other seeds, with its effect; nothing where there is none."""
    for row in replication[0] if replication is not None else ():
        if row["id"] == claim:
            return f"{row['verdict']}, {row['deciding']} {_say(row['effect'])} ({_interval(row)})"
    return ""


def pooled(claim: str, agreed: pd.DataFrame | None) -> str:
    """The effect over the seeds of both sides of the contrast that decides `claim` under the other seeds (`agreed` is of
    `agreement`); nothing where that is not known."""
    row = _decides(claim, agreed)
    return "" if row is None or row["left_out"] else f"all {row['both_n']} seeds {_both(row)}"


def _decides(claim: str, agreed: pd.DataFrame | None) -> pd.Series | None:
    """The row of `agreed` of the contrast that decides `claim` under the other seeds, if the first ones measured it too."""
    rows = None if agreed is None else agreed[(agreed["claim"] == claim) & agreed["decides"]]
    return None if rows is None or rows.empty else rows.iloc[0]


def _both(row: Mapping[str, Any] | pd.Series) -> str:
    return f"{_say(row['both_effect'])} ({_say(row['both_low'])} to {_say(row['both_high'])})"


def _replication_table(
    objects: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], agreed: pd.DataFrame
) -> list[str]:
    """Verdict and deciding contrast under the other seeds, the same contrast above and over all seeds; then how far the two agree."""
    first = {row["id"]: row for row in objects}
    lines = [
        "| under other seeds | verdict | effect | 95% interval | seeds that would decide | verdict above | effect above | both |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    others = []
    for row in rows:
        above, same = first[row["id"]], _decides(row["id"], agreed)
        effect = "" if same is None else _say(same["first_effect"])
        if row["deciding"] != above["deciding"]:
            effect = f"{effect} †".strip()
            others.append(f"`{row['id']}`, {row['deciding']}")
        both = "" if same is None or same["left_out"] else _both(same)
        lines.append(
            f"| `{row['id']}` | {row['verdict']} | {_say(row['effect'])} | {_interval(row)} | {_say(needed(row))} | "
            f"{above['verdict']} | {effect} | {both} |"
        )
    lines += [
        "",
        "Effects are those of the contrast that decides under the other seeds, `both` its mean over all seeds of the two tiers with a "
        f"95% t interval. {POOLED}"
        + (f" † Another contrast decides above; here: {'; '.join(others)}." if others else ""),
    ]
    if said := agreement_said(agreed):
        lines += ["", said, "", f"![{alt(agreed)}](figures/replication.png)", "", caption(agreed)]
    return lines


def rules_said(methods: Mapping[str, Any]) -> str:
    """Whether statistics, margins, rules and placebos are as they were frozen."""
    changed = methods.get("rules_changed")
    if changed is None:
        return "What the claims ask was not frozen."
    if changed:
        return f"Statistic, rule, placebo, or a number in the judge's module changed after it was frozen: {', '.join(changed)}."
    return "Statistics, margins, rules and placebos of the claims that trained models decide are as they were frozen."


def _say(value: float | None) -> str:
    if value is None:
        return ""
    if 1000 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:g}" if isinstance(value, int) or float(value).is_integer() else f"{value:.3g}"


def _interval(row: Mapping[str, Any]) -> str:
    return "" if row["low"] is None or row["high"] is None else f"{_say(row['low'])} to {_say(row['high'])}"


def _limit(methods: Mapping[str, Any]) -> str:
    limit = methods.get("twins_limit")
    return "" if limit is None else f" (95% upper limit of the rate: {limit:.0%})"


def _contrast(c: Mapping[str, Any]) -> str:
    span = _interval(c)
    return f"{c['name']}: {_say(c['effect'])}{f' ({span})' if span else ''}, p {_say(c['adjusted'])}, {c['n']} seeds, {c['outcome']}"


def _check(c: Mapping[str, Any]) -> str:
    bounds = f"{_say(c['low'])} to {_say(c['high'])}" if c["low"] is not None and c["high"] is not None else (
        f"at least {_say(c['low'])}" if c["high"] is None else f"at most {_say(c['high'])}"
    )  # fmt: skip
    return f"{c['name']}: {_say(c['value'])} {c['unit']}, to be {bounds}: {'kept' if c['passed'] else 'not kept'}"
