"""What is wrong is said in one sentence, before anything is computed."""

import numpy as np
import pytest
import torch

from repolicy.errors import NumericError, UsageError
from repolicy.exact import (
    MDP,
    LinearGaussian,
    LinearQuadratic,
    enumerate_trajectories,
    estimator_gradient,
    evaluate,
    exact_gradient,
    expected_return,
    linear_quadratic_augmented,
    linear_quadratic_optimal,
    quadratic_cost,
    score_gradient,
    soft_optimal,
    solve_augmented,
    solve_residual,
    state_distributions,
)
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
        (
            {"transitions": [[[0.5, 0.4], [1, 0]], [[0, 1], [0, 1]]]},
            r"transitions at \[0, 0\] sum to 0.9; they must sum to 1",
        ),
        ({"transitions": [[[1.5, -0.5], [1, 0]], [[0, 1], [0, 1]]]}, "transitions has a probability below 0: -0.5"),
        ({"transitions": [[0.5, 0.5], [1, 0]]}, r"transitions has shape \[2, 2\]; it must be \[S, A, S\]"),
        ({"transitions": [[[1.0, 0.0]], [[1.0]]]}, "transitions is not a rectangular array of numbers"),
        ({"transitions": np.zeros((0, 2, 0))}, "no S or A of 0"),
        ({"start": [0.5, 0.6]}, "start sum to 1.1"),
        ({"start": [1.0]}, r"start has shape \[1\]; the other arrays ask for \[2\]"),
        ({"reward": [1.0, 0.0]}, r"reward has shape \[2\]; the other arrays ask for \[2, 2\]"),
        ({"reward": [[1.0, 0.0], [0.0, float("nan")]]}, "reward has an entry that is infinite or no number"),
        ({"reward": "high"}, "reward is not a rectangular array of numbers"),
        ({"addon": [[1.0, 0.0]]}, r"addon has shape \[1, 2\]"),
        ({"discount": 1.1}, "discount is 1.1; it must be a number from 0 to 1"),
        ({"discount": -0.1}, "discount is -0.1"),
        ({"discount": float("nan")}, "discount is nan"),
        ({"discount": "high"}, "discount is 'high'"),
        ({"discount": 1.0}, "an infinite horizon needs a discount below 1"),
        ({"horizon": 0}, "horizon is 0; it must be a whole number, 1 or more, or None for no end"),
        ({"horizon": 2.5}, "horizon is 2.5"),
    ],
)
def test_a_process_that_is_none(changes, sentence):
    with pytest.raises(UsageError, match=sentence):
        mdp(**changes)


def test_a_discount_may_be_a_number_of_numpy():
    assert mdp(discount=np.float32(0.5)).discount == mdp(discount=0.5).discount


def test_a_finite_horizon_may_have_no_discount():
    assert mdp(discount=1.0, horizon=3).horizon == 3


@pytest.mark.parametrize("alpha", [0, 0.0, -1.0, float("inf"), float("nan"), True, "hot"])
def test_a_temperature_that_is_none(alpha):
    with pytest.raises(UsageError, match="a temperature must be a finite number greater than 0"):
        soft_optimal(mdp(), alpha)
    with pytest.raises(UsageError, match="a temperature must be a finite number greater than 0"):
        linear_quadratic_optimal(LinearQuadratic(1, 1, quadratic_cost(1, 1), 0.9), alpha)


@pytest.mark.parametrize("solve", [solve_residual, solve_augmented])
@pytest.mark.parametrize(
    ("objective", "log_prior", "sentence"),
    [
        (no_entropy(), None, "alpha is 0.0; a temperature must be"),
        (end_entropy(0.1), None, "alpha is 0.0; a temperature must be"),
        (kl(0.1), None, "omega is 0.1 needs a prior; give log_prior"),
        (residual(0.1, 0.2), torch.full((2, 2), 0.5), r"exp\(log_prior\) at \[0\] sum to 3.29744; they must sum to 1"),
        (residual(0.1, 0.2), torch.zeros(2, 3), r"log_prior has shape \[2, 3\]; it must be \[S, A\] = \[2, 2\]$"),
        (residual(0.1, 0.2), torch.tensor([[0.0, -torch.inf], [0.0, -torch.inf]]), "every action needs a finite one"),
        (residual(0.1, 0.2), [[0.0, 0.0], [0.0]], "log_prior is not a rectangular array"),
    ],
)
def test_an_objective_or_prior_that_does_not_fit(solve, objective, log_prior, sentence):
    with pytest.raises(UsageError, match=sentence):
        solve(mdp(addon=GOOD["reward"]), objective, log_prior)


def test_a_task_without_its_addon():
    for ask in (solve_residual, solve_augmented):
        with pytest.raises(UsageError, match="needs an add-on reward, and none was given"):
            ask(mdp(), greedy(0.1))
    with pytest.raises(UsageError, match="needs an add-on reward, and none was given"):
        expected_return(mdp(), greedy(0.1), UNIFORM)


def test_a_bonus_where_only_a_return_makes_sense():
    for solve in (solve_residual, solve_augmented):
        with pytest.raises(UsageError, match=r"bonus is 0\.1; it stands in the loss and in no return"):
            solve(mdp(), repeat_entropy(0.1))
    for ask in (evaluate, expected_return, exact_gradient):
        with pytest.raises(UsageError, match=r"bonus is 0\.1; it stands in the loss and in no return"):
            ask(mdp(), end_entropy(0.1), UNIFORM)


def test_a_policy_that_is_none():
    with pytest.raises(UsageError, match=r"exp\(log_policy\) at \[0\] sum to 3.2"):
        expected_return(mdp(), soft(0.1), torch.full((2, 2), 0.5))
    with pytest.raises(
        UsageError, match=r"logits has shape \[3\]; it must be \[S, A\] = \[2, 2\] or \[T, S, A\] = \[4, 2, 2\]"
    ):
        estimator_gradient(mdp(horizon=4), soft(0.1), torch.zeros(3))
    with pytest.raises(UsageError, match="logits is not a rectangular array of numbers"):
        exact_gradient(mdp(), soft(0.1), [[0.0], [0.0, 1.0]])
    with pytest.raises(UsageError, match="weight has shape"):
        score_gradient(mdp(horizon=2), UNIFORM, torch.zeros(5))


def test_a_horizon_that_cannot_be_enumerated():
    with pytest.raises(
        UsageError, match="trajectories can be enumerated for a finite horizon only; this one is infinite"
    ):
        estimator_gradient(mdp(), soft(0.1), UNIFORM)
    with pytest.raises(
        UsageError, match=r"2 states, 2 actions and 400 steps make 4\^400 trajectories, more than 1,000,000; shorten"
    ):
        enumerate_trajectories(mdp(horizon=400))
    with pytest.raises(UsageError, match="needs a finite horizon"):
        state_distributions(mdp(), UNIFORM)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LinearQuadratic(1, 1, quadratic_cost(1, 1), 1.0), "an infinite horizon needs a discount below 1"),
        (lambda: LinearQuadratic(1, [[1, 0]], quadratic_cost(1, 1), 0.9), r"cost has shape \[2, 2\]; the other"),
        (lambda: LinearQuadratic([[1, 0]], 1, quadratic_cost(1, 1), 0.9), r"they must be \[n, n\] and \[n, m\]"),
        (lambda: LinearQuadratic([1, 0], 1, quadratic_cost(1, 1), 0.9), "dynamics has shape .*; it must be a matrix"),
        (lambda: LinearQuadratic(1, 1, [[1, 1], [0, 1]], 0.9), "cost is not symmetric"),
        (lambda: LinearGaussian(1, [[1, 0], [0, 1]]), r"they must be \[m, n\] and \[m, m\]"),
        (lambda: LinearGaussian(1, -1), "covariance is not positive definite"),
        (lambda: LinearGaussian([[1], [1]], [[2, 1], [0, 2]]), "covariance is not symmetric"),
    ],
)
def test_a_linear_quadratic_problem_that_is_none(make, sentence):
    with pytest.raises(UsageError, match=sentence):
        make()


def test_a_linear_quadratic_problem_without_an_optimum():
    free = LinearQuadratic(1, 1, quadratic_cost(1, 0), 0.9)
    with pytest.raises(UsageError, match="its control part must be positive definite"):
        linear_quadratic_optimal(free, 0.1)
    adrift = LinearQuadratic(2, 0, quadratic_cost(1, 1), 0.9)
    with pytest.raises(NumericError, match="the Riccati iteration did not settle"):
        linear_quadratic_optimal(adrift, 0.1)


def test_a_prior_for_another_system():
    system = LinearQuadratic(1, 1, quadratic_cost(1, 1), 0.9)
    with pytest.raises(UsageError, match=r"the prior's gain has shape \[1, 2\]; the system asks for \[1, 1\]"):
        linear_quadratic_augmented(system, LinearGaussian([[1, 1]], 1), 0.1)
    with pytest.raises(UsageError, match="omega is -1; it must be"):
        linear_quadratic_augmented(system, LinearGaussian(1, 1), -1)
