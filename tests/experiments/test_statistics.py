"""Statistics of few seeds, beside rliable's own numbers and beside exact ones."""

from itertools import product

import numpy as np
import pytest

from experiments import statistics
from experiments.statistics import chance, interval, iqm, mean, mean_and_error

X = np.array([[4.1, 0.2], [5.3, 0.9], [2.2, 0.4], [9.9, 0.7], [4.8, -3.0]])
Y = np.array([[3.9, 0.1], [4.1, 0.8], [1.0, 0.5], [5.5, 0.6]])


def test_the_figures_are_those_of_rliable() -> None:
    """rliable 1.2.0: aggregate_iqm."""
    assert iqm(X) == pytest.approx(2.1833333333333336, abs=1e-12)
    assert iqm(Y) == pytest.approx(1.575, abs=1e-12)


def test_the_intervals_are_those_of_rliable() -> None:
    """rliable 1.2.0: get_interval_estimates, with 15,000 and 5,000 resamples."""
    assert interval(iqm, X) == pytest.approx((1.31666667, 3.43333333), abs=0.06)  # one step of it


def test_an_interval_is_that_of_all_resamples() -> None:
    scores = np.array([[1.0], [2.0], [4.0]])
    every = np.array([scores[list(which)] for which in product(range(3), repeat=3)])
    low, high = np.quantile(mean(every), [0.1, 0.9])
    assert interval(mean, scores, share=0.8) == pytest.approx((low, high), abs=1e-9)


def test_a_chance_is_the_share_of_deals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 3 and 3 there are 20 ways to deal; of 2^3 signs one is as large. Of too many so many are drawn."""
    low, high = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])

    def gap(ours: np.ndarray, theirs: np.ndarray) -> float:
        return float(ours.mean() - theirs.mean())

    assert chance(gap, high, low) == 1 / 20
    assert chance(gap, low, high) == 1.0
    assert chance(gap, high, np.array([3.5]), known=True) == 1 / 8
    seeds, others = np.random.default_rng(0).normal(size=(2, 6))  # 924 deals, 64 signs
    for sides, known in (((seeds + 0.5, others), False), ((seeds + 0.5, np.array([0.0])), True)):
        exact = chance(gap, *sides, known)
        with monkeypatch.context() as patch:
            patch.setattr(statistics, "DEALS", 60)
            assert 0.0 < abs(chance(gap, *sides, known) - exact) < 0.15  # drawn: 2.5 standard errors at most
            patch.setattr(statistics, "DEALS", 50_000)
            assert chance(gap, *sides, known) == exact


def test_the_middle_ignores_the_ends() -> None:
    assert iqm(np.array([[1.0], [2.0], [3.0], [4.0], [-1e9]])) == 2.0
    assert interval(iqm, np.full((4, 2), 7.0)) == (7.0, 7.0)


def test_a_standard_error_is_that_of_a_sample() -> None:
    """Of n − 1: two values 0 and 2 have a variance of 2, and their mean a standard error of 1."""
    assert mean_and_error(np.array([0.0, 2.0])) == [1.0, 1.0]
