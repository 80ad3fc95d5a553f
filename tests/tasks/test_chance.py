"""`chance` from both sides: guessers that know everything but the answer land on it, neither above nor below."""

import pytest
import torch

N = 600  # a multiple of every group


def cases(task, split, seed):
    """(example, position, target, chance, candidates, is none) of every used query.

    Candidates are the values that were presented before the query and could answer it, read off the tokens.
    """
    batch = task.sample(torch.arange(N), split=split, seed=seed)
    vocabulary = task.vocabulary
    none = vocabulary.token("none") if vocabulary.has("none") else -1
    chance, columns = task.chance(batch).tolist(), {name: c.tolist() for name, c in batch.queries.items()}
    for j, row in enumerate(batch.inputs.tolist()):
        for q, position in enumerate(columns["position"][j]):
            if position < 0:
                continue
            query = {name: column[j][q] for name, column in columns.items()}
            yield j, row, query, chance[j][q], candidates(task, vocabulary, row, query), query["target"] == none


def candidates(task, vocabulary, row, query):
    end = query["fork"] if query["fork"] >= 0 else query["start"]
    values = vocabulary.values
    if task.name == "record_update":
        if task.conditions[query["condition"]] == "compare":
            return list(vocabulary["answers"])
        return [row[t] for t in range(2, end) if row[t] in values and row[t - 1] == query["attribute"]]
    if task.name == "needle":
        back, marker = 2 + query["token_index"], vocabulary.token("needle")
        return [row[t + back] for t in range(end - back) if row[t] == marker]
    first = task.queries * (task.key_tokens + 1) if getattr(task, "mode", "") == "prefix" else 0
    held = [row[t] for t in range(first, end) if row[t] in values]
    if getattr(task, "replacement", False):
        # the best that a guesser without memory of the order can do: the most frequent token
        counts = {token: held.count(token) for token in held}
        return [max(counts, key=lambda token: (counts[token], token))]
    return list(dict.fromkeys(held))


def says_none(task, found):
    """For every query, how likely the guesser is to say NONE: as often as it is right, without knowing when.

    In associative_recall that is the share of unknown keys in the example; elsewhere a query of another example with the
    same cue or condition says what to guess.
    """
    groups: dict[int, list[bool]] = {}
    places = []
    for j, _, query, _, _, none in found:
        kind = {"associative_recall": j, "key_overwrite": query.get("ask"), "directed_forgetting": query["condition"]}
        held = groups.setdefault(kind.get(task.name, 0), [])
        places.append((held, len(held)))
        held.append(none)
    if task.name == "associative_recall":
        return [sum(held) / len(held) for held, _ in places]
    return [float(held[(at + len(held) // 2) % len(held)]) for held, at in places]


def lands_on_chance(task, rights, chances, examples):
    """Mean of right - chance is 0 within 4.5 standard errors over groups of examples, which share their numbers."""
    sums = torch.zeros(N // task.group, dtype=torch.float64)
    sums.index_add_(
        0, torch.tensor(examples) // task.group, torch.tensor(rights).double() - torch.tensor(chances).double()
    )
    error = sums.std() / len(sums) ** 0.5
    assert abs(sums.mean()) <= 4.5 * error + 1e-6, (sums.mean(), error)


def test_a_guess_among_what_was_presented_lands_on_chance(task):
    """A guesser that says NONE as often as it is right and else any presented value with equal odds: its expected score."""
    found = list(cases(task, "test", 3))
    rights = [
        p if none else (1 - p) * values.count(query["target"]) / len(values)
        for p, (_, _, query, _, values, none) in zip(says_none(task, found), found, strict=True)
    ]
    lands_on_chance(task, rights, [case[3] for case in found], [case[0] for case in found])


def test_habits_learned_from_the_training_text_land_on_chance(task):
    """A bigram and a majority predictor choose, among the presented values, the one most often right in training."""
    if getattr(task, "forced", False):
        pytest.skip("the inputs hold the answers so far, which excludes them")
    votes: dict[object, dict[int, int]] = {}
    for _, row, query, *_ in cases(task, "train", 5):
        for habit in (None, (row[query["position"] - 1], row[query["position"]])):
            held = votes.setdefault(habit, {})
            held[query["target"]] = held.get(query["target"], 0) + 1
    found = list(cases(task, "test", 5))
    known = [(p, case) for p, case in zip(says_none(task, found), found, strict=True) if not case[5]]
    for bigram in (False, True):
        rights = []
        for p, (_, row, query, _, values, _) in known:
            habit = (row[query["position"] - 1], row[query["position"]]) if bigram else None
            held = votes.get(habit, votes[None])
            # ties in an order of their own, not that of the context, where a place may be asked more often than another
            guess = max(values, key=lambda token: (held.get(token, 0), token * 2654435761 % 4294967291))
            rights.append((1 - p) * (guess == query["target"]))
        lands_on_chance(task, rights, [case[3] for _, case in known], [case[0] for _, case in known])
