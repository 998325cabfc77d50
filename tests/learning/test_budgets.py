"""Budgets of nats: how what is measured moves the weights."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from repolicy.addons.limits import Limit, parse_limits
from repolicy.learning.multipliers import HeldLimit, Multipliers, budget_violation, moved_weight, steered_objective
from repolicy.learning.worker import Worker
from repolicy.objective import residual
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.policy import Policy, PolicySpec, frozen
from repolicy.runs.request import Request
from repolicy.runs.result import Estimate
from repolicy.runs.settings import Settings, budget_of


def multipliers(**settings: Any) -> Multipliers:
    return Multipliers(Request("CartPole-v1", residual(0.2, 0.1), Settings(**settings), prior="a checksum"))


def test_a_small_budget_does_not_make_the_steering_jump() -> None:
    """A KL of 0.001 from 4,096 samples comes out between −0.0005 and 0.0025, which is not what the policy did."""
    budget, weights, before = 0.001, residual(0.2, 0.1), 0.0
    for measured in (-0.0005, 0.0025, 0.001, -0.0005, 0.0025) * 4:
        now = budget_violation(measured, budget, before, 4096)
        after = steered_objective(weights, before, now)
        assert 2 / 3 < after.omega / weights.omega < 3 / 2
        weights, before = after, now
    assert 0.1 < weights.omega < 0.4
    for _ in range(100):  # a drift that lasts is followed
        before = budget_violation(0.01, budget, before, 4096)
    assert before == 2.0


def test_a_budget_steers_towards_itself_and_answers_to_a_drift_on_its_way() -> None:
    """By 3 % of what is off, and by as much as that has changed."""
    weights = residual(0.2, 0.1)
    for measured, off in ((20.0, 2.0), (2e-3, -2.0), (2.0, 0.0)):
        assert budget_violation(measured, 2.0) == budget_violation(measured, 2.0, -2.0, samples=4096) == off
        assert steered_objective(weights, off, off).omega == pytest.approx(0.2 * math.exp(0.03 * off))
    doubled = steered_objective(weights, math.log(0.25), math.log(0.5))
    assert doubled.omega / 0.2 == doubled.alpha / 0.1 == pytest.approx(2 * 0.5**0.03)
    assert budget_violation(1e-9, 1e-9) == 0.0


def test_a_noisy_measurement_of_a_budget_is_averaged_with_the_last_one() -> None:
    """A std of half the budget, twice what is borne, counts a quarter; a KL's variance is twice the budget."""
    assert budget_violation(3.0, 2.0, math.log(1.5), samples=4) == pytest.approx(math.log(1.5))
    assert budget_violation(5.0, 2.0, 0.0, samples=4) == pytest.approx(math.log(0.25 * 2.5 + 0.75))
    assert budget_violation(5.0, 2.0, 0.0, samples=9, variance=9.0) == pytest.approx(math.log(0.25 * 2.5 + 0.75))
    held = multipliers(log_prior_budget=2.0, envs=3, n_steps=3)
    held.budget_violation = 0.0
    moved = held.steer({"below_prior": 5.0, "below_prior_squares": 25.0 + 9.0}, residual(0.2, 0.1))
    assert math.exp(held.budget_violation) == pytest.approx(0.25 * 2.5 + 0.75)
    assert moved.omega == pytest.approx(0.2 * math.exp(1.03 * held.budget_violation))
    assert moved.alpha == 0.1


def test_a_log_prior_budget_is_spent_by_actions_less_likely_than_the_priors_own() -> None:
    """The mode of a Gaussian of two numbers is a nat likelier than its draws; √2 std away in both is a nat less."""
    torch.manual_seed(0)
    prior = frozen(Policy(PolicySpec(3, ActionSpace("continuous", (2,), (-1.0,) * 2, (1.0,) * 2), hidden=(4,))))
    observations = np.zeros((5, 4, 3), np.float32)  # five steps of four environments
    worker: Any = SimpleNamespace(settings=Settings(log_prior_budget=1.0), prior=prior)
    rollout: Any = SimpleNamespace(prior_inputs=[torch.from_numpy(observations)])
    own = prior(torch.from_numpy(observations))
    for away, nats in ((0.0, -1.0), (2**0.5, 1.0)):
        log_prior = own.log_prob(own.mode() + away * prior.std)
        spent = Worker.below_prior(worker, rollout, log_prior)
        assert float(spent["below_prior"]) == pytest.approx(20 * nats, rel=1e-5)
        assert float(spent["below_prior_squares"]) == pytest.approx(20.0, rel=1e-5)


def test_an_end_beyond_the_budget_is_told_from_five_quarters_of_it_on() -> None:
    held = multipliers(kl_budget=2.0)
    for spent, count in ((2.49, 0), (2.51, 1)):
        held.budget_violation = budget_violation(spent, 2.0)
        said = held.warnings({"prior_kl": [spent]})
        assert len(said) == count
    assert said[0].startswith("the run ends beyond its budget: 2.51 nats a step, the budget is 2; the weights follow")


def test_an_end_beyond_a_budget_is_not_told_by_a_last_measurement_within_it() -> None:
    """A small budget's violation is averaged, because a single measurement of it is noise."""
    held = multipliers(kl_budget=0.001)
    held.budget_violation = math.log(1.5)
    [said] = held.warnings({"prior_kl": [0.0007]})
    assert said.startswith(
        "the run ends beyond its budget: 0.0015 nats a step, the budget is 0.001; the weights follow"
    )


def test_a_weight_moves_by_the_same_share_however_small_it_is() -> None:
    """That of a limit on a quantity of large numbers is small; those of the prior can rise again from their floor."""
    assert moved_weight(1e-9, 1.0, 0.5) == pytest.approx(1e-9 * moved_weight(1.0, 1.0, 0.5))
    held = HeldLimit(parse_limits("power<=20000")[0])
    held.begin(1e4, 1e-3)
    before = held.weight
    held.move(Estimate(1e4, 0.0))
    assert held.weight < before == pytest.approx(1e-7)
    fallen = steered_objective(residual(1e-12, 1e-12), 0.0, -2.0)
    assert fallen.omega == fallen.alpha > 0.0
    risen = steered_objective(fallen, 0.0, 2.0)
    assert risen.omega == risen.alpha > fallen.omega


@pytest.mark.parametrize(("violation", "end"), [(2.0, 1e12), (-2.0, 1e-12)])
def test_a_budget_that_cannot_be_held_leaves_weights_that_single_precision_can_hold(
    violation: float, end: float
) -> None:
    """By e^0.06 an iteration they would be infinite after 1,500; the run then ended with a loss that is not finite."""
    weights = residual(0.2, 0.1)
    for _ in range(1_500):
        weights = steered_objective(weights, violation, violation)
    assert weights.omega == weights.alpha == end
    assert steered_objective(residual(0.2, 0.1), violation, violation, omega_alone=True).alpha == 0.1


@pytest.mark.parametrize("zero", [0.0, 1e3, -1e6])
def test_a_limit_is_held_alike_wherever_the_zero_of_its_quantity_lies(zero: float) -> None:
    """Near 0 the weight begins at what the root mean square is worth; far from it at ten stds, and a unit is one."""
    held = HeldLimit(Limit("position", 1, 0.5 + zero))
    held.begin(math.hypot(0.3, zero), 0.6, zero)  # its mean is zero and its std 0.3
    assert (held.weight, held.unit) == pytest.approx((0.2, 0.3) if zero else (2.0, 0.05), rel=1e-3)
    for _ in range(5):
        held.move(Estimate(0.8 + zero, 0.0))  # broken by one std
    assert held.weight > 1.1 * held.initial_weight


def test_what_does_not_vary_has_its_own_size_and_what_never_happened_that_of_its_bound() -> None:
    """The weight would else be a million nats."""
    for bound, begun, weight, unit in (
        (310.0, (300.0, 0.6, 300.0 * (1.0 - 1e-15)), 0.002, 31.0),
        (0.01, (0.0, 0.2), 20.0, 0.001),
        (0.0, (0.0, 0.2), 0.2, 0.1),
    ):
        held = HeldLimit(Limit("position", 1, bound))
        held.begin(*begun)
        assert (held.weight, held.unit) == pytest.approx((weight, unit))


@pytest.mark.parametrize(
    ("budget", "spent", "words"),
    [(0.005, 0.0072, "0.0072"), (0.17, 0.2149, "0.21"), (2.0, -1e-5, "0.00"), (2.0, 0.9, "0.90")],
)
def test_what_is_spent_has_the_digits_of_its_budget(budget: float, spent: float, words: str) -> None:
    found = budget_of({"kl_budget": budget})
    assert found is not None
    assert found.compare(spent) == f"{words} nats a step, the budget is {budget:g}"
