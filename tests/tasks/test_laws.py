"""Laws that docs and docstrings state, task by task: filler after the last write, lags, lengths, loads, places (chi-square)."""

import pytest
import torch
from scipy import stats

from mnemolab.tasks import make_task
from tests.tasks.chi_square import follows, independent

# settings with little spare filler, so that each count is frequent
SPARE = [
    ("associative_recall", {"pairs": 4, "length": 20}),
    ("associative_recall", {"pairs": 6, "lags": 3, "layout": "interleaved", "length": 24}),
    ("key_overwrite", {"keys": 3, "versions": 2, "lags": 4, "length": 24}),
    ("key_overwrite", {"keys": 3, "versions": 2, "lags": 4, "ask": "mixed", "length": 32}),
    ("topic_switch", {"pairs": 3, "condition": "shift", "length": 24}),
    ("random_copy", {"items": 6, "length": 20}),
    ("random_copy", {"items": 6, "length": 20, "mode": "selective"}),
    ("random_copy", {"items": 6, "length": 24, "mode": "suffix", "queries": 2}),
    ("selective_retention", {"persistent": 2, "volatile": 2, "rewrites": 2, "span": 5, "length": 26}),
    ("record_update", {"entities": 1, "updates": 1, "lags": 6, "ask": "current", "length": 50}),
    ("stack", {"stacks": 2, "pushes": 2, "length": 24}),
    ("directed_forgetting", {"pairs": 3, "condition": "forget", "length": 26}),
]
IDS = [f"{name}-{j}" for j, (name, _) in enumerate(SPARE)]


def one_query(batch, which=0):
    """Columns of one query an example: those are independent."""
    return {name: column[:, which] for name, column in batch.queries.items()}


@pytest.mark.parametrize("name, fields", SPARE, ids=IDS)
def test_filler_after_the_last_write_is_uniform(name, fields):
    task = make_task(name, **fields)
    batch = task.sample(torch.arange(8000))
    end = int(batch.queries["fork"].max())
    context = batch.inputs[:, : end if end > 0 else task.length]
    hay = task.vocabulary.filler
    is_filler = (context >= hay.start) & (context < hay.stop)
    spare = int(is_filler[0].sum())
    assert spare >= 3 and (is_filler.sum(1) == spare).all()
    trailing = is_filler.flip(1).long().cumprod(1).sum(1)
    follows(trailing, [1.0] * (spare + 1))
    lag = one_query(batch)["lag_writes"]
    if lag.unique().numel() > 1:
        independent(trailing, lag - lag.min())  # time apart from writes


@pytest.mark.parametrize("name, fields", SPARE, ids=IDS)
def test_the_load_is_the_same_in_every_example(name, fields):
    task = make_task(name, **fields)
    q = task.sample(torch.arange(500)).queries
    used = q["position"] >= 0
    assert (q["serial_position"] + q["lag_writes"] + 1 == q["load"])[used & (q["lag_writes"] >= 0)].all()
    if int(q["fork"].max()) > 0:
        assert q["load"][used].unique().numel() == 1
    else:  # asking between the writes: every load occurs
        assert q["load"][used].unique().numel() > 3


@pytest.mark.parametrize(
    "name, fields, count",
    [
        ("associative_recall", {"pairs": 6}, 6),
        ("associative_recall", {"pairs": 6, "layout": "mqar"}, 6),
        ("associative_recall", {"pairs": 6, "queries": 2}, 6),
        ("associative_recall", {"pairs": 8, "lags": 5, "layout": "interleaved"}, 5),
        ("key_overwrite", {"lags": 9}, 9),
        ("topic_switch", {"pairs": 6, "condition": "no_shift"}, 6),
        ("selective_retention", {"span": 9}, 9),
        ("record_update", {"ask": "current"}, 12),
        ("record_update", {"ask": "previous"}, 12),
        ("record_update", {"ask": "mixed"}, 12),
        ("directed_forgetting", {"pairs": 4, "condition": "keep"}, 8),
        ("random_copy", {"items": 8, "mode": "prefix"}, 4),
        ("needle", {"keys": 5}, 5),
    ],
)
def test_the_lag_of_a_query_is_uniform(name, fields, count):
    task = make_task(name, **fields)
    last = int((task.sample(torch.arange(1)).queries["position"] >= 0).sum()) - 1
    for which in {0, last} if name != "associative_recall" or "lags" not in fields else (None,):
        q = task.sample(torch.arange(6000)).queries
        lag = q["lag_writes"][:, which] if which is not None else q["lag_writes"].flatten()
        lag = lag - getattr(task, "least_lag", 0)
        if name == "random_copy":  # a segment of two tokens, of which the second is the answer
            lag = lag // 2
        follows(lag, [1.0] * count)


def test_versions_and_keys_follow_their_laws():
    q = one_query(make_task("key_overwrite", versions=5, length=80, control=False).sample(torch.arange(6000)))
    follows(q["versions"] - 1, [1.0] * 5)
    pool = make_task("associative_recall", pairs=8, pool=3)
    batch = pool.sample(torch.arange(4000))
    vocabulary = pool.vocabulary
    # the asked key of 3, drawn with replacement 8 times, was bound version + 1 times: 1 + binomial(7, 1/3) for the last write's
    last = batch.queries["lag_writes"] == 0
    assert (last.sum(1) == 1).all()
    follows(batch.queries["version"][last], stats.binom.pmf(range(8), 7, 1 / 3).tolist())
    assert vocabulary.has("none")
    fan = make_task("associative_recall", pairs=12, fan=3, length=64)
    sizes = one_query(fan.sample(torch.arange(6000)))["fan"]
    follows(sizes - 1, [2.0, 4.0, 6.0])  # 12 bindings: two keys of each size


def test_scattered_queries_follow_the_power_law():
    task = make_task("associative_recall", pairs=4, queries=1, layout="mqar", gap_power=0.3, length=32)
    q = one_query(task.sample(torch.arange(8000)))
    slot = (q["position"] - 8) // 2
    follows(slot, [(j + 1) ** (0.3 - 1) for j in range(12)])


def test_unknown_keys_are_asked_anywhere():
    task = make_task("associative_recall", pairs=6, lags=3, unknown=1, layout="interleaved")
    q = task.sample(torch.arange(6000)).queries
    follows(q["load"][q["condition"] == 1] - 1, [1.0] * 6)


def test_relevant_questions_are_about_blocks_of_the_last_topic():
    task = make_task("topic_switch", pairs=4, blocks=4, rebind=False, ask="relevant", length=80)
    batch = task.sample(torch.arange(8000))
    q = one_query(batch)
    asked = {name: q["blocks_ago"][q["condition"] == code] for code, name in enumerate(task.conditions)}
    for name in ("single", "shift"):
        assert (asked[name] == 0).all()
    follows(asked["no_shift"], [1.0] * 4)
    assert (asked["return"] != 1).all()  # one block back is the other topic's
    follows((asked["return"] - 1).clamp(min=0), [1.0] * 3)
    values = task.vocabulary.values.start
    assert (
        (batch.queries["target"] - values) // task.topic_values == batch.queries["topic"] - task.vocabulary.topics.start
    ).all()


def test_string_lengths_and_topics_follow_their_laws():
    q = one_query(make_task("random_copy", items=10, least=4).sample(torch.arange(6000)))
    follows(q["string_length"] - 4, [1.0] * 7)
    own = make_task("topic_switch", pairs=4, blocks=3, rebind=False, ask="all", condition="shift", length=80)
    follows(one_query(own.sample(torch.arange(6000)))["blocks_ago"], [1.0] * 3)
    shared = make_task("topic_switch", pairs=4, blocks=3, ask="all", condition="shift", length=80)
    follows(one_query(shared.sample(torch.arange(6000)))["blocks_ago"], [1.0] * 2)
    first = own.vocabulary.topics.start
    follows(one_query(own.sample(torch.arange(6000)))["topic"] - first, [1.0] * own.topics)


def test_a_stack_throws_a_fair_coin_where_both_are_possible():
    task = make_task("stack", stacks=1, pushes=4, depth=2, length=40)
    vocabulary = task.vocabulary
    coins = []
    for row in task.sample(torch.arange(1500)).inputs.tolist():
        height = made = 0
        for t, token in enumerate(row):
            pop = token == vocabulary.token("pop")
            if not pop and not (token in vocabulary.keys and row[t - 1] != vocabulary.token("pop")):
                continue
            if 0 < height < 2 and made < 4:
                coins.append(int(pop))
            height += -1 if pop else 1
            made += not pop
        assert height == 0 and made == 4
    follows(torch.tensor(coins), [1.0, 1.0])


def test_attributes_of_other_records_and_asks_are_uniform():
    task = make_task("record_update", lags=16, length=160, attribute_values=40)
    q = task.sample(torch.arange(3000)).queries
    updated = q["version"] + (q["condition"] == 2).long() > 0
    ask = torch.where(q["condition"] <= 1, 0, q["condition"] - 1)
    follows(ask[updated & (q["query_index"] == 3)], [1.0] * 3)


def test_a_forget_token_follows_each_condition():
    q = make_task("directed_forgetting", pairs=3).sample(torch.arange(2000)).queries
    assert q["condition"][:, 0].tolist() == [0, 1] * 1000
    follows(q["block"][:, 0], [1.0, 1.0])
    independent(q["block"][::2].flatten(), q["query_index"][::2].flatten())
