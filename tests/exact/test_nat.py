"""What a nat is worth to a soft optimum, its temperature, exactly; such a prior needs no price on states."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from random_problems import (
    any_mdps,
    examples,
    largest,
    mdps,
    numbers,
    policies,
    probabilities,
    short_mdps,
    state_distributions,
    tables,
    temperatures,
)
from torch import Tensor
from worth_known import episodes

from repolicy.exact import MDP, estimator_gradient, exact_gradient, soft_optimal, solve_augmented, solve_residual
from repolicy.exact.solve import Trajectories, enumerate_trajectories, expected_return
from repolicy.objective import full, residual
from repolicy.prepare.worth import worth_of

END = 0  # the state of an episode that is over: it pays nothing and has no nats


@st.composite
def mortal(draw: st.DrawFn) -> tuple[MDP, float]:
    """A process whose steps can end an episode, and a temperature at which being over is worth 0."""
    states, actions, alpha = draw(st.integers(2, 3)), draw(st.integers(2, 3)), draw(temperatures)
    transitions, reward = draw(probabilities(states, actions, states)), draw(numbers(states, actions))
    transitions[END] = torch.eye(states, dtype=torch.float64)[END]
    reward[END] = -alpha * torch.log(torch.tensor(actions, dtype=torch.float64))  # what the entropy of being over pays
    start = draw(probabilities(states - 1))
    start = torch.cat([torch.zeros(1, dtype=torch.float64), start])
    return MDP(transitions, reward, start, discount=1.0, horizon=draw(st.integers(1, 4 if states == 2 else 3))), alpha


def expected(each: Trajectories, probability: Tensor, reward: Tensor, nats: Tensor) -> dict[str, np.ndarray]:
    """Sums over the steps before the end whose plain mean, over all trajectories, is their expectation."""
    alive, weights = (each.states != END).double(), len(each.states) * probability
    returns, told = ((each.along(table) * alive).sum(-1) * weights for table in (reward, nats))
    return episodes(returns.numpy(), told.numpy())


@examples
@given(mortal())
def test_a_nat_is_worth_the_temperature_exactly_whoever_falls(process: tuple[MDP, float]) -> None:
    mdp, alpha = process
    log_policy = soft_optimal(mdp, alpha).log_policy
    each, reward = enumerate_trajectories(mdp), mdp.per_step("reward", mdp.reward)
    mode = torch.nn.functional.one_hot(log_policy.argmax(-1), mdp.actions).double()
    entropy = -(log_policy.exp() * log_policy).sum(-1, keepdim=True).expand_as(log_policy)
    by_mode = expected(each, each.chance * each.along(mode).prod(-1), reward, log_policy)
    sampled = expected(each, each.probability(log_policy), reward, entropy)
    nats = by_mode["nats"].mean() + sampled["nats"].mean()
    assume(nats > 0.01)  # else both act alike
    assert abs(worth_of(by_mode, sampled).value - alpha) < 1e-11 / nats


TIGHT = 1e-10
heavy = st.floats(0.1, 3.0)


@examples
@given(st.data(), mdps(horizon=st.integers(1, 6)), heavy)
def test_it_adds_its_weight_times_the_mean_over_the_states_visited(data, mdp, weight):
    """Against the distribution of states at each step, which comes forwards and knows no rewards."""
    mdp = replace(mdp, familiarity=data.draw(numbers(mdp.states)))
    policy, prior = data.draw(policies(mdp)), data.draw(policies(mdp))
    without, with_it = residual(0.4, 0.3), residual(0.4, 0.3, states=weight)
    found = expected_return(mdp, with_it, policy, prior) - expected_return(mdp, without, policy, prior)
    here = state_distributions(mdp, policy)
    moves = torch.einsum("tsa,sap->tsp", mdp.log_probs("policy", policy).exp(), mdp.transitions)
    reached = torch.einsum("ts,tsp->tp", here, moves)  # by each step
    discounts = mdp.discount ** torch.arange(mdp.horizon, dtype=torch.float64)
    assert abs(found - weight * (discounts @ reached @ mdp.familiarity)) < TIGHT


@examples
@given(st.data(), any_mdps(), temperatures, heavy)
def test_both_forms_find_its_optimum(data, mdp, alpha, weight):
    """The soft optimum of a process whose reward it is a part of, in either form."""
    mdp = replace(mdp, familiarity=data.draw(numbers(mdp.states)))
    prior, objective = data.draw(policies(mdp)), residual(0.4, alpha, states=weight)
    augmented = solve_augmented(mdp, objective, prior)
    assert largest(augmented.log_policy - solve_residual(mdp, objective, prior).log_policy) < 1e-8
    here = mdp.start
    best = expected_return(mdp, objective, augmented.log_policy, prior)
    assert abs(best - here @ (augmented.v if mdp.horizon is None else augmented.v[0])) < 1e-8
    assert expected_return(mdp, objective, data.draw(policies(mdp)), prior) <= best + TIGHT


@examples
@given(st.data(), mdps(horizon=st.none()), temperatures, heavy)
def test_a_soft_optimal_prior_needs_none(data, mdp, alpha, weight):
    """By the soft return of both rewards, ω′ = α̂ = α without states is the best; any price can only take from it."""
    prior = soft_optimal(mdp, alpha).log_policy
    mdp = replace(mdp, familiarity=-data.draw(numbers(mdp.states)).abs())
    found, held = (solve_augmented(mdp, residual(alpha, alpha, states=w), prior).log_policy for w in (0.0, weight))
    assert expected_return(mdp, full(alpha), held) <= expected_return(mdp, full(alpha), found) + 1e-8


@examples
@given(st.data(), short_mdps(discount=st.just(1.0)), heavy)
def test_its_policy_gradient_is_that_of_j(data, mdp, weight):
    mdp = replace(mdp, familiarity=data.draw(numbers(mdp.states)))
    logits, prior = data.draw(tables(mdp)), data.draw(policies(mdp))
    objective = residual(0.4, 0.3, states=weight)
    difference = estimator_gradient(mdp, objective, logits, prior) - exact_gradient(mdp, objective, logits, prior)
    assert largest(difference) < TIGHT
