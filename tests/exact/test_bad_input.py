"""What is wrong is said in one sentence, before anything is computed."""

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


def mdp(**changes):
    return MDP(**{**GOOD, **changes})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"transitions": [[[0.5, 0.4], [1, 0]], [[0, 1], [0, 1]]]}, "a row of transitions is no distribution"),
        ({"transitions": [[[1.5, -0.5], [1, 0]], [[0, 1], [0, 1]]]}, "a row of transitions is no distribution"),
        (
            {"transitions": [[0.5, 0.5], [1, 0]]},
            r"transitions has shape \[2, 2\]; the other arrays ask for \[2, 2, 2\]",
        ),
        ({"start": [0.5, float("nan")]}, "a row of start is no distribution"),
        ({"discount": 1.1}, "discount is 1.1; it lies between 0 and 1"),
        ({"discount": 1.0}, "below 1 where the horizon is infinite"),
    ],
)
def test_a_process_that_is_none(changes, sentence):
    with pytest.raises(UsageError, match=sentence):
        mdp(**changes)


def test_a_finite_horizon_may_have_no_discount():
    assert mdp(discount=1.0, horizon=3).horizon == 3


@pytest.mark.parametrize("alpha", [0.0, float("inf"), float("nan")])
def test_a_temperature_that_is_none(alpha):
    with pytest.raises(UsageError, match="a temperature must be a finite number greater than 0"):
        soft_optimal(mdp(), alpha)


@pytest.mark.parametrize(
    ("objective", "log_prior", "sentence"),
    [
        (no_entropy(), None, "alpha is 0.0; a temperature must be"),
        (residual(0.1), UNIFORM, "alpha=None.*; nothing is measured here: each weight must be a number"),
        (residual((0.1, 3.0), 0.1), UNIFORM, "nothing is measured here: each weight must be a number"),
        (kl(0.1), None, "omega is 0.1 needs a prior; give log_prior"),
        (residual(0.1, 0.2), torch.full((2, 2), 0.5), r"a row of exp\(log_prior\) is no distribution"),
        (residual(0.1, 0.2), torch.zeros(2, 3), r"log_prior has shape \[2, 3\]; it must be \[S, A\] = \[2, 2\]$"),
        (repeat_entropy(0.1), None, r"bonus is 0\.1; it stands in the loss and in no return"),
    ],
)
def test_an_objective_or_prior_that_does_not_fit(objective, log_prior, sentence):
    with pytest.raises(UsageError, match=sentence):
        solve_residual(mdp(addon=GOOD["reward"]), objective, log_prior)


def test_a_policy_or_an_objective_that_has_no_value():
    with pytest.raises(UsageError, match="needs an add-on reward, and none was given"):
        evaluate(mdp(), greedy(0.1), UNIFORM)
    with pytest.raises(UsageError, match=r"bonus is 0\.1; it stands in the loss and in no return"):
        evaluate(mdp(), end_entropy(0.1), UNIFORM)
    with pytest.raises(UsageError, match=r"a row of exp\(log_policy\) is no distribution"):
        evaluate(mdp(), soft(0.1), torch.full((2, 2), 0.5))


@pytest.mark.parametrize("horizon", [None, 400])
def test_a_horizon_that_cannot_be_enumerated(horizon):
    with pytest.raises(UsageError, match="more than 1,000,000 trajectories cannot be enumerated"):
        enumerate_trajectories(mdp(horizon=horizon))


def test_a_linear_quadratic_problem_without_an_optimum():
    adrift = LinearQuadratic(2, 0, quadratic_cost(1, 1), 0.9)
    with pytest.raises(NumericError, match="the Riccati iteration did not settle"):
        linear_quadratic_optimal(adrift, 0.1)
