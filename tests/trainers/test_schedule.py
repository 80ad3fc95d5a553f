"""Learning rates, worked by hand."""

import pytest

from mnemolab.trainers import Optimiser
from mnemolab.trainers.schedule import learning_rates


def test_cosine_after_linear_warm_up():
    rates = learning_rates(Optimiser(learning_rate=2.0, warmup=0.5, floor=0.5), 4)
    # warm-up 1/2, 1 of the peak; then floor + (1 - floor) (1 + cos 0) / 2 = 1 and floor + .5 (1 + cos pi/2) / 2 = .75
    assert rates == pytest.approx([1.0, 2.0, 2.0, 1.5])


def test_stable_then_straight_down():
    rates = learning_rates(Optimiser(learning_rate=1.0, schedule="wsd", warmup=0.2, decay=0.4, floor=0.1), 10)
    assert rates == pytest.approx([0.5, 1, 1, 1, 1, 1, 1.0, 0.775, 0.55, 0.325])


def test_constant_without_warm_up():
    assert learning_rates(Optimiser(learning_rate=0.1, schedule="constant", warmup=0.0), 3) == [0.1] * 3


def test_one_step_runs_at_the_peak():
    assert learning_rates(Optimiser(learning_rate=0.1), 1) == [0.1]
