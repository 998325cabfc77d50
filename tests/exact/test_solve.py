"""Residual soft Q-iteration finds the optimum of a reward that it has never seen."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from random_problems import any_mdps, examples, largest, policies, temperatures, weights

from repolicy.exact import MDP, exact_gradient, soft_optimal, solve_augmented, solve_residual
from repolicy.exact.solve import expected_return
from repolicy.objective import residual, soft

TIGHT = 1e-10


@examples
@given(st.data(), any_mdps(), weights, temperatures)
def test_the_two_forms_agree_for_any_prior(data, mdp, omega, alpha):
    """Eq. 3 and Eq. 4, whether or not the prior is optimal for anything."""
    prior = data.draw(policies(mdp))
    objective = residual(omega, alpha)
    by_residual, by_augmented = solve_residual(mdp, objective, prior), solve_augmented(mdp, objective, prior)
    assert largest(by_residual.policy - by_augmented.policy) < TIGHT
    assert largest(by_residual.v - by_augmented.v) < TIGHT
    assert largest(by_residual.q + omega * prior - by_augmented.q) < TIGHT


@examples
@given(any_mdps(), weights, temperatures, temperatures)
def test_the_residual_optimum_is_the_optimum_of_the_weighted_sum(mdp, omega, alpha, alpha_hat):
    """The prior is all that is known of r; the paper's claim, for any ω, α and α̂."""
    prior = soft_optimal(mdp, alpha)
    wanted = soft_optimal(mdp.with_reward(omega * mdp.reward + mdp.addon), alpha_hat)
    blind = mdp.with_reward(torch.zeros_like(mdp.reward))
    objective = residual(omega * alpha, alpha_hat)
    for solve in (solve_residual, solve_augmented):
        found = solve(blind, objective, prior.log_policy)
        assert largest(found.policy - wanted.policy) < TIGHT
        assert largest(found.v - (wanted.v - omega * prior.v)) < TIGHT
    q_residual = solve_residual(blind, objective, prior.log_policy).q
    assert largest(q_residual - (wanted.q - omega * prior.q)) < TIGHT  # Q_R = Q̂ − ω·Q


def test_the_optimum_keeps_its_digits_where_values_are_large():
    """Chances add up to 1 where a value is a million temperatures."""
    torch.manual_seed(0)
    reward = 1.0 + 1e-3 * torch.randn(4, 3, dtype=torch.float64)  # no action is much better than another
    mdp = MDP(torch.full((4, 3, 4), 0.25, dtype=torch.float64), reward, [0.25] * 4, 0.999)
    best = soft_optimal(mdp, 1e-3)
    assert largest(best.v) > 1e3
    assert largest(best.policy.sum(-1) - 1.0) < 1e-14


@examples
@given(st.data(), any_mdps(), temperatures)
def test_the_optimum_is_optimal(data, mdp, alpha):
    """Judged by J, which is computed without a soft maximum: its gradient is zero there and no policy has more."""
    best = soft_optimal(mdp, alpha)
    reached = expected_return(mdp, soft(alpha), best.log_policy)
    assert abs(reached - mdp.start @ (best.v if mdp.horizon is None else best.v[0])) < TIGHT
    assert largest(exact_gradient(mdp, soft(alpha), best.log_policy)) < TIGHT
    assert expected_return(mdp, soft(alpha), data.draw(policies(mdp))) <= reached + TIGHT


def test_news_from_afar_arrives() -> None:
    """A chain whose far end pays: policy iteration carries the news by one state a step, through all 150 of them."""
    count, discount, alpha = 150, 0.99, 1e-3
    states = torch.arange(count)
    moves = torch.stack([states, (states + 1).clamp(max=count - 1)], -1)  # stay, for a little; or go on
    reward = torch.tensor([[0.1, 0.0]] * (count - 1) + [[0.1, 10.0]], dtype=torch.float64)
    mdp = MDP(torch.nn.functional.one_hot(moves), reward, torch.ones(count) / count, discount)
    v = torch.zeros(count, dtype=torch.float64)
    for _ in range(4_000):  # value iteration, which needs no policy
        v = alpha * torch.logsumexp((reward + discount * v[moves]) / alpha, -1)
    assert largest(soft_optimal(mdp, alpha).v - v) < TIGHT


def test_two_steps_by_hand():
    """Rewards 0 and log 3 at temperature 1, then again: V = log 4 at the last step and log 4 + γ·log 4 before it."""
    log_3, log_4 = 1.0986122886681098, 1.3862943611198906
    solution = soft_optimal(MDP(torch.ones(1, 2, 1), [[0.0, log_3]], [1.0], discount=0.5, horizon=2), 1.0)
    assert largest(solution.policy - torch.tensor([0.25, 0.75], dtype=torch.float64)) < TIGHT
    assert largest(solution.v - torch.tensor([[1.5 * log_4], [log_4]], dtype=torch.float64)) < TIGHT
