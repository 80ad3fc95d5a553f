"""Query columns of tasks whose keys are several tokens, replayed from the tokens."""

import pytest
import torch

from mnemolab.tasks import make_task

N = 150


def rows(batch):
    columns = {name: column.tolist() for name, column in batch.queries.items()}
    for j, row in enumerate(batch.inputs.tolist()):
        for q, position in enumerate(columns["position"][j]):
            if position >= 0:
                yield row, {name: column[j][q] for name, column in columns.items()}


def shown(query):
    return [token for token in query["stale"] if token >= 0]


def test_needles_of_a_key_and_their_value_tokens():
    task = make_task("needle", keys=2, values=3, queries=2, value_tokens=2, length=160)
    marker = task.vocabulary.token("needle")
    for row, query in rows(task.sample(torch.arange(N))):
        planted = [t for t in range(query["fork"]) if row[t] == marker]
        own = [t for t in planted if row[t + 1] == query["key"]]
        at = query["position"] - query["lag_tokens"]
        mine = at - 2 - query["token_index"]
        assert mine in own and row[at] == query["target"]
        assert query["version"] == own.index(mine) and query["serial_position"] == planted.index(mine)
        assert row[query["start"]] == task.vocabulary.token(f"#{query['version'] + 1}")
        newest_first = [row[t + 2 + j] for t in own[::-1] for j in (1, 0)]
        assert shown(query) == [token for token in newest_first if token != query["target"]]
        before = sum(
            t not in range(p, p + 4) for t in range(mine) for p in [max([q for q in planted if q <= t], default=-9)]
        )
        hay = query["fork"] - 4 * len(planted)
        assert abs(query["depth"] / 100 * hay - before) <= 0.5 + hay / 100


def test_facts_of_a_record():
    task = make_task("record_update", updates=4, length=160, attribute_values=40)
    vocabulary = task.vocabulary
    for row, query in rows(task.sample(torch.arange(N))):
        written = [t for t in range(query["fork"]) if row[t] in vocabulary.values]
        own = [row[t] for t in written if row[t - 2 : t] == [query["key"], query["attribute"]]]
        kind = task.conditions[query["condition"]]
        if kind == "compare":
            # both values that are compared, and those before, are values that the key has or had
            assert shown(query) == own[::-1] and query["version"] == len(own) - 1 and query["rivals"] == 2
            continue
        assert query["target"] == own[query["version"]]
        assert query["version"] == len(own) - (2 if kind == "previous" else 1)
        assert shown(query) == [value for value in own[::-1] if value != query["target"]]
        assert (kind == "untouched") == (len(own) == 1 and kind != "previous")
        assert query["rivals"] == sum(row[t - 1] == query["attribute"] for t in written)


@pytest.mark.parametrize("pool", [0, 9])
def test_families_share_their_stems(pool):
    task = make_task("associative_recall", family=3, unknown=2, pool=pool, length=64)
    seen = set()
    for row, query in rows(task.sample(torch.arange(N))):
        bound = {(row[t - 2], row[t - 1]) for t in range(query["fork"]) if row[t] in task.vocabulary.values}
        asked = row[query["position"] - 1], row[query["position"]]
        assert (asked in bound) == (task.conditions[query["condition"]] == "known")
        assert query["neighbours"] == sum(stem == asked[0] for stem, _ in bound - {asked})
        seen.add(query["neighbours"])
    assert {0, 1, 2} <= seen


def test_repeated_pairs_keep_their_value_and_say_their_spacing():
    task = make_task("associative_recall", repeats=3, pairs=10, length=64)
    spaced = 0
    for row, query in rows(task.sample(torch.arange(N))):
        written = [t for t in range(query["fork"]) if row[t] in task.vocabulary.values]
        own = [j for j, t in enumerate(written) if row[t - 1] == query["key"]]
        assert {row[written[j]] for j in own} == {query["target"]}
        assert query["serial_position"] == own[-1]
        assert query["spacing"] == (own[1] - own[0] if len(own) == 2 else 0)
        spaced += len(own) == 2
    assert spaced == 3 * N


def test_values_of_a_fan_are_asked_by_ordinal():
    task = make_task("associative_recall", pairs=9, fan=3, length=64)
    for row, query in rows(task.sample(torch.arange(N))):
        own = [row[t + 1] for t in range(query["fork"]) if row[t] == query["key"]]
        assert query["fan"] == len(own) and own[query["ordinal"]] == query["target"]
        assert row[query["start"]] == task.vocabulary.token(f"#{query['ordinal'] + 1}")


def test_gaps_are_writes_between_two_versions():
    for name, fields in (("key_overwrite", {"ask": "mixed", "length": 70}), ("selective_retention", {})):
        task = make_task(name, **fields)
        rebound = 0
        for row, query in rows(task.sample(torch.arange(N))):
            written = [t for t in range(query["fork"]) if row[t] in task.vocabulary.values]
            own = [j for j, t in enumerate(written) if row[t - 1] == query["key"]]
            if query["lag_writes"] < 0 or query["version"] == 0:
                assert query["gap_writes"] == -1
                continue
            assert query["gap_writes"] == own[query["version"]] - own[query["version"] - 1]
            rebound += 1
        assert rebound
