"""A small logistic regression, and what a predictor adds to it on held-out sequences."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["fit", "gain", "log_likelihood"]

_RIDGE = 1e-3
_STEPS = 50

Floats = NDArray[np.float64]


def fit(x: Floats, y: Floats) -> Floats:
    """Weights (P,) of P(y = 1) = logistic(x w), by Newton's method with a small ridge. x (N,P), y (N,) of 0 and 1."""
    w = np.zeros(x.shape[1])
    penalty = _RIDGE * np.eye(x.shape[1])
    for _ in range(_STEPS):
        p = _logistic(x @ w)
        curve = np.maximum(p * (1 - p), 1e-9)
        step = np.linalg.solve(x.T @ (curve[:, None] * x) + penalty, x.T @ (y - p) - penalty @ w)
        w = w + np.clip(step, -5, 5)
        if np.abs(step).max() < 1e-8:
            break
    return w


def log_likelihood(w: Floats, x: Floats, y: Floats) -> float:
    """Mean over rows, nats."""
    p = np.clip(_logistic(x @ w), 1e-9, 1 - 1e-9)
    return float(np.mean(y * np.log(p) + (1 - y) * np.log1p(-p)))


def gain(correct: Floats, lag: Floats, extra: Floats, groups: NDArray, known: Floats | None = None) -> float:
    """Held-out nats a row that `extra` adds to a fit on the lag and its logarithm; folds are even and odd `groups`.

    `known` (N,) of 0 and 1, a class of the rows: the fit then has a term for it, and for the lag within it.

    NaN when nothing varies: all answers right, or all wrong.
    """
    if len(correct) < 20 or correct.min() == correct.max():
        return float("nan")
    base = np.column_stack([np.ones_like(lag), _standard(lag), _standard(np.log1p(np.maximum(lag, 0)))])
    if known is not None:
        base = np.column_stack([base, known[:, None] * base])
    full = np.column_stack([base, _standard(extra)])
    odd = groups % 2 == 1
    found = 0.0
    for train, held in ((odd, ~odd), (~odd, odd)):
        if not train.any() or not held.any():
            return float("nan")
        for sign, x in ((1, full), (-1, base)):
            found += sign * log_likelihood(fit(x[train], correct[train]), x[held], correct[held]) / 2
    return found


def _standard(x: Floats) -> Floats:
    sd = x.std()
    return (x - x.mean()) / sd if sd > 1e-12 else np.zeros_like(x)


def _logistic(z: Floats) -> Floats:
    return 1 / (1 + np.exp(-np.clip(z, -30, 30)))
