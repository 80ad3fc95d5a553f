"""After a switch of topic: what a state without decay keeps, and what one decay for all clears."""

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mnemolab.analysis.claims.claim import Judgement, Sample
from mnemolab.analysis.claims.evidence import Evidence, Ran
from mnemolab.analysis.claims.judges.reading import only
from mnemolab.analysis.decay.state import retained_energy
from mnemolab.analysis.interventions import effects
from mnemolab.errors import BadRequest

__all__ = ["delta_cannot_clear", "gate_difference", "marker_positions", "proactive", "release", "scalar_decay_clears"]

# share of the old topic's energy above which it counts as kept
KEPT = 0.25
# accuracy, with nothing else in the state, from which a stage counts as having learned the task
LEARNED = 0.5


def delta_cannot_clear(evidence: Evidence) -> Judgement:
    """Only the current topic is asked, load above the state's channels: DeltaNet keeps the old topic's energy to the end of
    the context, and wiping the state at the switch raises accuracy.

    Placebo: the same wipe where nothing had been written yet (condition single).
    """
    energy = evidence.values("topic", _energy, "current", ["delta", "delta scalar"])
    wiped = evidence.values("topic", lambda run: _wipe(run, "shift"), "current", ["delta"])
    nothing = evidence.values("topic", lambda run: _wipe(run, "single"), "current", ["delta"])
    learned = evidence.values("topic", lambda run: _accuracy(run.records, "single") - LEARNED, "current", ["delta"])
    ground = Sample(f"DeltaNet, one topic alone: accuracy beyond {LEARNED}", learned.of("delta"), margin=0.0)
    kept = {seed: value - KEPT for seed, value in energy.of("delta").items()}
    return Judgement(
        samples=[
            Sample(f"DeltaNet: energy of the old topic left, beyond {KEPT}", kept, margin=0.0, ground=ground),
            Sample("DeltaNet: accuracy gained by wiping the state at the switch", wiped.of("delta"), ground=ground),
        ],
        placebo=[Sample("DeltaNet: accuracy gained by wiping an empty state", nothing.of("delta"))],
        twins=wiped.twins("gain by wiping"),
        numbers=[*energy.rows("energy of the old topic left"), *wiped.rows("gain by wiping, shift")],
    )


def scalar_decay_clears(evidence: Evidence) -> Judgement:
    """Gated DeltaNet decays more at the switch marker than at a placebo marker, and gets more release from proactive
    interference than DeltaNet. An older block of the same topic is still asked, so that clearing pays at a switch only.

    Ground: Gated DeltaNet answers less of the last block when an older one of its topic must be kept beside it, in seeds in
    which both stages learned the task; where nothing is lost, nothing can be released. Placebo: the same release where an
    older block is never asked, so that a shift makes no difference to what should be kept.
    """
    both = ["delta", "delta scalar"]
    gates = evidence.values("topic", lambda run: gate_difference(run), "relevant", ["delta scalar"])
    unasked = evidence.values("topic", lambda run: release(run.records), "current", both)
    gained = evidence.values("topic", lambda run: release(run.records), "relevant", both)
    lost = evidence.values("topic", lambda run: proactive(run.records), "relevant", both)
    right = {
        c: evidence.values("topic", lambda run, c=c: _accuracy(_last(run.records), c), "relevant", both)
        for c in ("single", "no_shift", "shift")
    }
    learned = lost.of("delta")
    room = {seed: value for seed, value in lost.of("delta scalar").items() if seed in learned}
    ground = Sample(f"Gated DeltaNet: what an older block costs, where both answer {LEARNED} of one block alone", room)
    return Judgement(
        samples=[
            Sample(
                "Gated DeltaNet: decay at the switch minus at a placebo marker (nats)",
                gates.of("delta scalar"),
                margin=0.1,
            ),
            Sample("release, Gated DeltaNet minus DeltaNet", gained.minus("delta scalar", "delta"), ground=ground),
        ],
        placebo=[Sample("release where older blocks are never asked", unasked.minus("delta scalar", "delta"))],
        twins=gained.twins("release"),
        numbers=[
            *gates.rows("decay, switch minus placebo (nats)"),
            *(row for c, v in right.items() for row in v.rows(f"accuracy on the last block, {c}")),
            *gained.rows("p(shift) - p(no shift), last block"),
            *lost.rows("p(single) - p(no shift), last block"),
        ],
    )


def release(records: pd.DataFrame) -> float:
    """Accuracy after a shift of topic minus without one, last block: what the shift releases."""
    last = _last(records)
    return _accuracy(last, "shift") - _accuracy(last, "no_shift")


def proactive(records: pd.DataFrame) -> float:
    """Accuracy of the last block alone minus that after a block of its topic. NaN where one block alone was not learned."""
    last = _last(records)
    alone = _accuracy(last, "single")
    return alone - _accuracy(last, "no_shift") if alone >= LEARNED else float("nan")


def _last(records: pd.DataFrame) -> pd.DataFrame:
    """Queries of the last block; older ones are asked as well while their topic lasts."""
    return records[records["blocks_ago"] == 0]


def _accuracy(records: pd.DataFrame, condition: str) -> float:
    return float(records.loc[records["condition"] == condition, "correct"].mean())


def marker_positions(run: Ran) -> Tensor:
    """(B,) where the last marker of each context stands. Raises BadRequest for a sequence without one."""
    marks = _marks(run.batch.inputs, run)
    last = torch.where(marks, torch.arange(marks.shape[1]), -1).amax(1)
    if int(last.min()) < 1:
        raise BadRequest("topic: a sequence has no marker between its blocks; set task.marker to switch")
    return last


def _marks(inputs: Tensor, run: Ran) -> Tensor:
    vocabulary = run.task.vocabulary
    return (inputs == vocabulary.token("switch")) | (inputs == vocabulary.token("placebo"))


def _energy(run: Ran) -> float:
    """Energy of the old topic's state left at the end of the context, shift condition, mean over sequences and heads."""
    chosen, places = _condition(run, "shift"), marker_positions(run)
    context = int(run.batch.queries["fork"].max())
    kept = [
        retained_energy(only(run.traces[0], chosen & (places == at)), at, context)
        for at in places[chosen].unique().tolist()
    ]
    return float(np.mean(np.concatenate(kept)))


def _wipe(run: Ran, condition: str) -> float:
    """Accuracy gained by wiping the state at the last marker, which need not stand at one place in all sequences."""
    chosen, places = _condition(run, condition), marker_positions(run)
    gained = []
    for at in places[chosen].unique().tolist():
        rows, _ = effects(run.model, run.task, ["wipe-state"], examples=len(run.batch), seed=run.seed, wipe_at=at)
        mine = (chosen & (places == at)).numpy()[rows["example"]]
        gained.append(rows.loc[mine, "change"].to_numpy(float))
    return float(np.concatenate(gained).mean())


def _condition(run: Ran, name: str) -> Tensor:
    """(B,) whether the sequence is of this condition."""
    return run.batch.queries["condition"][:, 0] == list(run.task.conditions).index(name)


def gate_difference(run: Ran) -> float:
    """Nats of decay at the last marker where the topic shifts, minus where it does not; mean over heads and channels."""
    decay = run.traces[0].decay
    gate = -decay[torch.arange(len(decay)), marker_positions(run)].mean((-1, -2))  # (B,)
    same = _condition(run, "no_shift")
    return float(gate[_condition(run, "shift")].mean() - gate[same].mean())
