"""The price on states is an occupancy term, and a soft-optimal prior needs none."""

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import any_mdps, examples, largest, mdps, numbers, policies, short_mdps, tables, temperatures

from repolicy.exact import (
    estimator_gradient,
    exact_gradient,
    expected_return,
    soft_optimal,
    solve_augmented,
    solve_residual,
    state_distributions,
)
from repolicy.objective import full, residual

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
    other = expected_return(mdp, objective, data.draw(policies(mdp)), prior)
    assert other <= best + TIGHT


@examples
@given(st.data(), mdps(horizon=st.none()), temperatures, heavy)
def test_a_soft_optimal_prior_needs_none(data, mdp, alpha, weight):
    """By the soft return of both rewards, ω′ = α̂ = α without states is the best; any price can only take from it."""
    prior = soft_optimal(mdp, alpha).log_policy
    mdp = replace(mdp, familiarity=-data.draw(numbers(mdp.states)).abs())
    found, held = (solve_augmented(mdp, residual(alpha, alpha, states=w), prior).log_policy for w in (0.0, weight))
    assert expected_return(mdp, full(alpha), held) <= expected_return(mdp, full(alpha), found) + 1e-8


@settings(examples, max_examples=20)
@given(st.data(), short_mdps(discount=st.just(1.0)), heavy)
def test_its_policy_gradient_is_that_of_j(data, mdp, weight):
    mdp = replace(mdp, familiarity=data.draw(numbers(mdp.states)))
    logits, prior = data.draw(tables(mdp)), data.draw(policies(mdp))
    objective = residual(0.4, 0.3, states=weight)
    difference = estimator_gradient(mdp, objective, logits, prior) - exact_gradient(mdp, objective, logits, prior)
    assert largest(difference) < TIGHT
