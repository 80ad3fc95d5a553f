"""What every task must be, whatever its mode: an experiment whose every query is annotated as its tokens say."""

import pytest
import torch

from mnemolab.tasks.base import QUERY_COLUMNS, SPLITS

N = 100


def rows(batch):
    """(tokens, query as a dict) of every used query slot."""
    tokens = batch.inputs.tolist()
    columns = {name: column.tolist() for name, column in batch.queries.items()}
    for j, row in enumerate(tokens):
        for q, position in enumerate(columns["position"][j]):
            if position >= 0:
                yield row, {name: column[j][q] for name, column in columns.items()}


def writes_before(task, row, query):
    """Positions of the value tokens that the query can ask for."""
    end = query["fork"] if query["fork"] >= 0 else query["start"]
    first = (
        task.queries * (task.key_tokens + 1) if getattr(task, "mode", "") == "prefix" else 0
    )  # keys before the string
    values = task.vocabulary.values  # made anew each time that it is asked for
    return [t for t in range(first, end) if row[t] in values]


def test_the_oracle_gives_the_targets(task):
    batch = task.sample(torch.arange(2000), split="validation", seed=3)
    assert torch.equal(task.solve(batch.inputs), batch.targets)
    assert (batch.targets >= 0).any()


@pytest.mark.slow
def test_the_oracle_gives_the_targets_of_100_000_examples(task):
    for first in range(0, 100_000, 4000):
        batch = task.sample(torch.arange(first, first + 4000), split="train", seed=11)
        assert torch.equal(task.solve(batch.inputs), batch.targets)


def test_tokens_and_columns_are_well_formed(task):
    batch = task.sample(torch.arange(N))
    assert batch.inputs.shape == batch.targets.shape == (N, task.length)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert 0 <= batch.inputs.min() and batch.inputs.max() < task.vocabulary.size
    assert batch.targets.max() < task.vocabulary.size
    shape = batch.queries["position"].shape
    for name in QUERY_COLUMNS:
        assert batch.queries[name].shape == shape and batch.queries[name].dtype == torch.int64, name
    assert batch.queries["stale"].shape[:2] == shape and batch.queries["stale"].shape[2] >= 1
    unused = batch.queries["position"] < 0
    assert all((column[unused] == -1).all() for column in batch.queries.values())


def test_scored_positions_and_used_slots_correspond(task):
    batch = task.sample(torch.arange(N))
    position = batch.queries["position"]
    used = position >= 0
    assert ((batch.targets != -100).sum(1) == used.sum(1)).all()
    scored = batch.targets.gather(1, position.clamp(min=0))
    assert torch.equal(scored[used], batch.queries["target"][used])
    start, fork = batch.queries["start"][used], batch.queries["fork"][used]
    assert (start <= position[used]).all() and ((fork <= start) | (fork == -1)).all()
    # the vocabulary of conditions covers the codes
    assert batch.queries["condition"][used].max() < len(task.conditions)


def test_an_example_does_not_depend_on_its_batch(task):
    count = 2 * task._chunk + 9  # more than one piece
    picked = [count - 1, 7, task._chunk]
    whole = task.sample(torch.arange(count), split="test", seed=1)
    part = task.sample(torch.tensor(picked), split="test", seed=1)
    for name, column in [("inputs", whole.inputs), ("targets", whole.targets), *whole.queries.items()]:
        mine = {"inputs": part.inputs, "targets": part.targets, **part.queries}[name]
        assert torch.equal(column[picked], mine), name


def test_splits_and_seeds_share_no_example(task):
    seen = set()
    for split in SPLITS:
        found = {tuple(row) for row in task.sample(torch.arange(2000), split=split, seed=0).inputs.tolist()}
        assert not seen & found
        seen |= found
    first = task.sample(torch.arange(8), seed=0).inputs
    assert not torch.equal(first, task.sample(torch.arange(8), seed=1).inputs)


def test_lags_say_where_the_answer_was_written(task):
    if getattr(task, "value_tokens", 1) > 1:
        pytest.skip("several tokens a value: a test of its own")
    checked, values = 0, task.vocabulary.values
    for row, query in rows(task.sample(torch.arange(N))):
        written = writes_before(task, row, query)
        assert len(written) == query["load"]
        if query["lag_tokens"] < 0:
            assert query["lag_writes"] == query["serial_position"] == -1
            assert task.vocabulary.text(query["target"]) == "none"
            continue
        at = query["position"] - query["lag_tokens"]
        index = written.index(at)
        assert query["serial_position"] == index and query["lag_writes"] == len(written) - 1 - index
        if query["target"] in values:
            assert row[at] == query["target"]
        checked += 1
    assert checked


def test_versions_and_stale_values_are_the_keys_own(task):
    if task.name in ("random_copy", "needle", "record_update"):
        pytest.skip("keys of several tokens, or none: tests of their own")
    for row, query in rows(task.sample(torch.arange(N))):
        written = [t for t in writes_before(task, row, query) if row[t - 1] == query["key"]]
        held = [row[t] for t in written]
        assert row[query["position"]] == query["key"]
        others = [value for value in held[::-1] if value != query["target"]]
        assert [value for value in query["stale"] if value >= 0] == others
        if query["lag_tokens"] >= 0:
            assert query["version"] == written.index(query["position"] - query["lag_tokens"])


def test_values_are_different_and_answers_are_not_given_away(task):
    looks_up_repeats = getattr(task, "replacement", False) and task.mode in ("prefix", "suffix")
    for row, query in rows(task.sample(torch.arange(N))):
        written = writes_before(task, row, query)
        if not getattr(task, "repeats", 0) and not getattr(task, "replacement", False):
            assert len({row[t] for t in written}) == len(written)
        if getattr(task, "forced", False) or looks_up_repeats:
            continue
        assert query["target"] not in row[query["start"] :]


def test_filler_holds_no_key_and_no_value(task):
    """Every key token stands in a write or a query: none is left over in the filler."""
    batch = task.sample(torch.arange(N))
    vocabulary = task.vocabulary
    if task.name in ("random_copy", "needle", "record_update") or not vocabulary.keys:
        pytest.skip("no single key token before each value")
    kind = {token: vocabulary.kind(token) for token in range(vocabulary.size)}
    cues = batch.queries["position"]
    for row, asked in zip(batch.inputs.tolist(), cues.tolist(), strict=True):
        last = "endings" if vocabulary["endings"] else "keys"
        keys = [t for t, token in enumerate(row) if kind[token] == last]
        wrote = [t for t in keys if t + 1 < len(row) and kind[row[t + 1]] == "values"]
        assert len(wrote) == sum(kind[token] == "values" for token in row)
        assert set(keys) - set(wrote) == {t for t in asked if t >= 0}


def test_chance_is_a_share_and_zero_where_nothing_is_asked(task):
    batch = task.sample(torch.arange(N))
    chance, used = task.chance(batch), batch.queries["position"] >= 0
    assert chance.shape == used.shape and chance.dtype == torch.float32
    assert (chance[~used] == 0).all() and (chance[used] > 0).all() and (chance[used] <= 1).all()


def test_a_bigram_and_a_majority_predictor_stay_at_chance(task):
    """Predictors that know the training text but read no context: the answer seen most after these two tokens, or at all."""
    vocabulary = task.vocabulary
    train, test = (task.sample(torch.arange(2000), split=split, seed=5) for split in ("train", "test"))

    def cases(batch):
        used = batch.queries["position"] >= 0
        position = batch.queries["position"].clamp(min=0)
        now, before = (batch.inputs.gather(1, (position - lag).clamp(min=0))[used] for lag in (0, 1))
        target = batch.queries["target"][used]
        # the answer NONE is right at a known rate, and judged by signal detection
        judged = target != (vocabulary.token("none") if vocabulary.has("none") else -1)
        return (before * vocabulary.size + now)[judged], target[judged], task.chance(batch)[used][judged]

    gram, target, _ = cases(train)
    table: dict[int, dict[int, int]] = {}
    for g, t in zip(gram.tolist(), target.tolist(), strict=True):
        table.setdefault(g, {}).setdefault(t, 0)
        table[g][t] += 1
    common = target.bincount().argmax().item()
    gram, target, chance = cases(test)
    most = {g: max(seen.items(), key=lambda pair: pair[1])[0] for g, seen in table.items()}
    guess = [most.get(g, common) for g in gram.tolist()]
    if getattr(task, "forced", False):
        guess = [common] * len(guess)  # the inputs hold the last answer, so a bigram excludes it
    limit = chance.mean() + 4.5 * (chance * (1 - chance) / len(test)).mean().sqrt()
    for guessed in (torch.tensor(guess), torch.full_like(target, common)):
        assert (guessed == target).float().mean() <= limit


def test_the_fingerprint_knows_fields_and_content(task):
    assert task.fingerprint() == task.fingerprint() and len(task.fingerprint()) == 16


def test_the_bits_are_a_lower_bound_where_examples_can_be_counted(task):
    assert task.bits > 10
