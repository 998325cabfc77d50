"""Bets on a difference, with exact answers: a wealth that grows only where the difference is there."""

import math

import numpy as np
import pytest

from benchmarks import comparing as simulated
from repolicy.many import bets, comparing
from repolicy.many.bets import (
    MAX_STAKE,
    WARMUP,
    Margin,
    is_mean_proven_positive,
    log_wealth,
    loss_bounds,
    mean_lower_bound,
    numbers_needed,
)


def test_the_same_gain_again_and_again_is_told_by_the_formula() -> None:
    gains, size = np.full(200, 0.05), np.ones(200)
    bets = math.ceil(math.log(20) / math.log(1.0 + MAX_STAKE * 0.05))
    assert is_mean_proven_positive(gains, size, 0.05).argmax() + 1 == WARMUP + bets == 92
    # The mean is above m as soon as that many bets on 0.05 − m are won.
    each = (20 ** (1 / (200 - WARMUP)) - 1.0) / MAX_STAKE
    assert mean_lower_bound(gains, size, 0.05) == pytest.approx((0.05 - each) / (1.0 + each), abs=1e-9)


@pytest.mark.parametrize("error", [0.05, 0.001])
@pytest.mark.parametrize("margin", [0.005, 0.05, 0.5, 3.0])
def test_the_numbers_needed_are_as_many_as_it_takes(margin: float, error: float) -> None:
    gains, sizes = np.full(2000, margin), np.ones(2000)
    taken = is_mean_proven_positive(gains, sizes, error).argmax() + 1
    assert [numbers_needed(gains[:known], sizes[:known], error) for known in (5, 11, 2000)] == [taken] * 3
    assert numbers_needed(-gains, sizes, error) == 0


def test_no_stake_knows_the_number_it_is_on() -> None:
    """Whatever comes next, 1 + stake · value is made with the stake of those before, and the bound of those before."""
    before = np.tile([-0.5, 0.9], 30)  # ends on the highest wealth so far

    def stake(value: float, loss: float) -> float:
        logs = log_wealth(np.append(before, value), np.append(np.ones(60), loss))
        return float(np.expm1(logs[-1] - logs[-2]) / value)

    assert 0.0 < stake(0.2, 1.0) < MAX_STAKE
    assert [stake(0.9, 1.0), stake(0.2, 9.0)] == pytest.approx([stake(0.2, 1.0)] * 2)


def test_the_largest_loss_is_remembered() -> None:
    gains, losses = np.full(50, 0.05), np.ones(50)
    losses[3] = 9.0
    assert (log_wealth(gains, losses) == log_wealth(gains, np.full(50, 9.0))).all()


def test_one_in_w_at_most_reaches_a_wealth_of_w() -> None:
    """Every order of gains and losses of a fair coin, enumerated: as few reach a wealth as is promised."""
    coins = np.array([[1 if row >> place & 1 else -1 for place in range(4)] for row in range(16)], float)
    seen = np.tile(np.where(np.arange(WARMUP) % 5, 0.5, -0.2), (16, 1))  # so that there is a stake
    final = np.exp(log_wealth(np.hstack([seen, coins]), np.ones((16, WARMUP + 4))))
    assert final.max() > 2.0
    assert all((final >= level).mean() <= 1.0 / level for level in (1.5, 2.0, 4.0, 8.0))


def test_a_loss_may_be_as_large_as_what_was_seen_is_wide() -> None:
    """Of returns of one sign that is less than their size; from 1 to −1 two are lost."""
    old, new = np.array([2.0, 3.0, 1.0]), np.array([1.0, 2.5, 2.0])
    assert loss_bounds(old, new).tolist() == [2.0, 3.0, 2.0]
    assert loss_bounds(-old, -new).tolist() == [2.0, 3.0, 2.0]
    assert loss_bounds(np.array([1.0, 1.0, 1.0]), np.array([1.0, -1.0, 1.0])).tolist() == [1.0, 2.0, 2.0]


def test_nobody_wins_by_betting_on_nothing() -> None:
    zeros = np.zeros(500)
    assert not is_mean_proven_positive(zeros, zeros, 0.05).any()


def test_of_several_at_the_margin_any_is_seldom_called_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    """What must be shown of all keeps its own error: as of one quantity, 92 equal episodes are enough."""
    monkeypatch.setattr(bets, "mean_lower_bound", lambda *_: 0.0)  # for the time's sake
    five, names = Margin.parse("5%"), ("basic_reward", "addon_reward_a", "addon_reward_b", "addon_reward_c", "length")
    old, new = simulated.at_margin(400 * len(names), np.random.default_rng(1))["lognormal"]()
    false = 0
    for first in range(0, len(old), len(names)):
        sides = [dict(zip(names, values[first:], strict=False)) for values in (old, new)]
        false += "worse" in [row.verdict for row in comparing._compare_quantities([sides], five, 0.05)]
    assert 0 < false <= 0.05 * 400
    ones = dict.fromkeys(names, np.ones(92))
    rows = comparing._compare_quantities([[ones, ones]], five, 0.05)
    assert [row.verdict for row in rows] == [*["not worse"] * 4, None]
