"""What is wrong is said in one sentence, before anything is computed."""

import re

import pytest
import torch
from linear_quadratic import LinearQuadratic, linear_quadratic_optimal, quadratic_cost

from repolicy.errors import NumericError, UsageError
from repolicy.exact import MDP, enumerate_trajectories, evaluate, soft_optimal, solve_residual
from repolicy.objective import end_entropy, greedy, kl, no_entropy, repeat_entropy, residual, soft

GOOD = {
    "transitions": [[[0.5, 0.5], [1.0, 0.0]], [[0.0, 1.0], [0.25, 0.75]]],
    "reward": [[1.0, 0.0], [0.0, 2.0]],
    "start": [1.0, 0.0],
    "discount": 0.9,
}
UNIFORM = torch.full((2, 2), 0.5).log()
HALVES = torch.full((2, 2), 0.5)
TOO_LITTLE = [[[0.5, 0.4], [1, 0]], [[0, 1], [0, 1]]]
BELOW_ZERO = [[[1.5, -0.5], [1, 0]], [[0, 1], [0, 1]]]
TEMPERATURE = "a temperature must be a finite number greater than 0"
UNMEASURED = "nothing is measured here: each weight must be a number"
BONUS = "bonus is 0.1; it stands in the loss and in no return"


def mdp(**changes):
    return MDP(**{**GOOD, **changes})


def solved(objective, log_prior=None):
    return solve_residual(mdp(addon=GOOD["reward"]), objective, log_prior)


@pytest.mark.parametrize(
    ("sentence", "call"),
    [
        ("a row of transitions is no distribution", lambda: mdp(transitions=TOO_LITTLE)),
        ("a row of transitions is no distribution", lambda: mdp(transitions=BELOW_ZERO)),
        ("transitions has shape [2, 2]; the other arrays ask for [2, 2, 2]", lambda: mdp(transitions=HALVES)),
        ("a row of start is no distribution", lambda: mdp(start=[0.5, float("nan")])),
        ("discount is 1.1; it lies between 0 and 1", lambda: mdp(discount=1.1)),
        ("below 1 where the horizon is infinite", lambda: mdp(discount=1.0)),
        (TEMPERATURE, lambda: soft_optimal(mdp(), 0.0)),
        (TEMPERATURE, lambda: soft_optimal(mdp(), float("inf"))),
        (TEMPERATURE, lambda: soft_optimal(mdp(), float("nan"))),
        ("alpha is 0.0; a temperature must be", lambda: solved(no_entropy())),
        (UNMEASURED, lambda: solved(residual(0.1), UNIFORM)),
        (UNMEASURED, lambda: solved(residual((0.1, 3.0), 0.1), UNIFORM)),
        ("omega is 0.1 needs a prior; give log_prior", lambda: solved(kl(0.1))),
        ("a row of exp(log_prior) is no distribution", lambda: solved(residual(0.1, 0.2), HALVES)),
        ("log_prior has shape [2, 3]; it must be [S, A] = [2, 2]", lambda: solved(kl(0.1), torch.zeros(2, 3))),
        (BONUS, lambda: solved(repeat_entropy(0.1))),
        (BONUS, lambda: evaluate(mdp(), end_entropy(0.1), UNIFORM)),
        ("needs an add-on reward, and none was given", lambda: evaluate(mdp(), greedy(0.1), UNIFORM)),
        ("a row of exp(log_policy) is no distribution", lambda: evaluate(mdp(), soft(0.1), HALVES)),
        ("more than 1,000,000 trajectories cannot be enumerated", lambda: enumerate_trajectories(mdp())),
        ("more than 1,000,000 trajectories cannot be enumerated", lambda: enumerate_trajectories(mdp(horizon=400))),
    ],
)
def test_what_is_none_or_does_not_fit(sentence, call):
    with pytest.raises(UsageError, match=re.escape(sentence)):
        call()


def test_a_finite_horizon_may_have_no_discount():
    assert mdp(discount=1.0, horizon=3).horizon == 3


def test_a_linear_quadratic_problem_without_an_optimum():
    adrift = LinearQuadratic(2, 0, quadratic_cost(1, 1), 0.9)
    with pytest.raises(NumericError, match="the Riccati iteration did not settle"):
        linear_quadratic_optimal(adrift, 0.1)
