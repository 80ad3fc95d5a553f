"""Counts against a stated law, and two factors against each other."""

import torch
from scipy import stats

__all__ = ["LIMIT", "follows", "independent"]

LIMIT = 1e-4


def follows(values, weights):
    """Counts of `values` 0 .. n - 1 against the law with these weights."""
    weights = torch.tensor(weights, dtype=torch.float64)
    counts = values.bincount(minlength=len(weights))
    assert len(counts) == len(weights), counts
    expected = weights / weights.sum() * counts.sum()
    assert stats.chisquare(counts.numpy(), expected.numpy()).pvalue > LIMIT, counts


def independent(a, b):
    table = torch.zeros(int(a.max()) + 1, int(b.max()) + 1)
    table.index_put_((a, b), torch.ones(len(a)), accumulate=True)
    table = table[table.sum(1) > 0][:, table.sum(0) > 0]
    assert min(table.shape) > 1
    assert stats.chi2_contingency(table.numpy()).pvalue > LIMIT, table
