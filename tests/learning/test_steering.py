"""Weights that a budget moves: what was measured steers them, and a small budget does not make them jump."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from repolicy.learning.multipliers import Multipliers, broken, off_budget, steered
from repolicy.learning.worker import Worker
from repolicy.objective import residual
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.policy import Policy, PolicySpec, frozen
from repolicy.runs.request import Request
from repolicy.runs.settings import Settings


def test_a_small_budget_does_not_make_the_steering_jump() -> None:
    """A KL of 0.001 from 4,096 samples comes out between −0.0005 and 0.0025, which is not what the policy did."""
    budget, weights, before = 0.001, residual(0.2, 0.1), 0.0
    for measured in (-0.0005, 0.0025, 0.001, -0.0005, 0.0025) * 4:
        now = off_budget(measured, budget, before, 4096)
        after = steered(weights, before, now)
        assert 2 / 3 < after.omega / weights.omega < 3 / 2
        weights, before = after, now
    assert 0.1 < weights.omega < 0.4
    for _ in range(100):  # a drift that lasts is followed
        before = off_budget(0.01, budget, before, 4096)
    assert before == 2.0


def test_a_budget_that_can_be_measured_is_steered_by_what_was_measured() -> None:
    for measured in (-1.0, 0.5, 3.0):
        assert off_budget(measured, 2.0, -2.0, 4096) == off_budget(measured, 2.0)
    assert off_budget(1e-9, 1e-9) == 0.0


def test_a_kl_budget_moves_both_weights_alike_and_a_log_prior_budget_omega_alone() -> None:
    weights = residual(0.2, 0.1)
    both, alone = steered(weights, 0.0, 1.0), steered(weights, 0.0, 1.0, omega_alone=True)
    assert both.omega > 0.2
    assert both.alpha / both.omega == pytest.approx(0.5)
    assert alone == residual(both.omega, 0.1)


def test_a_log_prior_budget_is_spent_by_actions_less_likely_than_the_priors_own() -> None:
    """The mode of a Gaussian of two numbers is a nat likelier than its draws; √2 std away in both is a nat less."""
    torch.manual_seed(0)
    prior = frozen(Policy(PolicySpec(3, ActionSpace("continuous", (2,), (-1.0,) * 2, (1.0,) * 2), hidden=(4,))))
    observations = np.zeros((6, 4, 3), np.float32)  # five steps of four environments, and what came after them
    worker: Any = SimpleNamespace(
        settings=Settings(log_prior_budget=1.0), prior=prior, bare=lambda observations: observations
    )
    own = prior(torch.from_numpy(observations[:-1]))
    for away, nats in ((0.0, -1.0), (2**0.5, 1.0)):
        log_prior = own.log_prob(own.mode() + away * prior.std)
        spent = Worker.below_prior(worker, SimpleNamespace(observations=observations), log_prior)  # type: ignore[arg-type]
        assert float(spent["below_prior"]) == pytest.approx(20 * nats, rel=1e-5)
        assert float(spent["below_prior_squares"]) == pytest.approx(20.0, rel=1e-5)


def test_an_end_beyond_the_budget_is_told_from_five_quarters_of_it_on() -> None:
    request = Request("CartPole-v1", residual(0.2, 0.1), Settings(kl_budget=2.0), prior="a checksum")
    held = Multipliers(request, 4)
    for spent, count in ((2.49, 0), (2.51, 1)):
        held.off_budget = off_budget(spent, 2.0)
        said = broken(held, {"prior_kl": [spent]})
        assert len(said) == count
    assert said[0].startswith("the run ends beyond its budget: 2.51 nats a step, the budget is 2; the weights follow")
