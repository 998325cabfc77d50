"""The paper's Section 3.1: what each estimator is in expectation, against the exact gradient of J."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st
from random_problems import (
    entropy_gradient,
    examples,
    largest,
    objectives,
    policies,
    short_mdps,
    tables,
    temperatures,
    weights,
)

from repolicy.exact import estimator_gradient, evaluate, exact_gradient, soft_optimal
from repolicy.exact.estimators import advantage_gradient, constant_gradient, delta_gradient, score_gradient
from repolicy.objective import end_entropy, residual, soft

TIGHT = 1e-10


def problems():
    """A process, logits for it and a prior."""
    return short_mdps().flatmap(lambda mdp: st.tuples(st.just(mdp), tables(mdp), policies(mdp)))


# Soft Policy Gradient -------------------------------------------------------------------------------------------------
@examples
@given(problems(), objectives())
def test_it_is_the_exact_gradient_with_the_discount_restored(problem, objective):
    """Eq. 6 with the γ^t that the paper drops, at any γ."""
    mdp, logits, prior = problem
    found = estimator_gradient(mdp, objective, logits, prior, restore_discount=True)
    assert largest(found - exact_gradient(mdp, objective, logits, prior)) < TIGHT


@examples
@given(st.data(), short_mdps(), objectives())
def test_what_the_paper_drops_is_a_discount_at_each_step_and_nothing_else(data, mdp, objective):
    """With parameters of their own for each step, the parts of the gradient stand apart: step t is short of γ^t."""
    logits, prior = data.draw(tables(mdp, timed=True)), data.draw(policies(mdp))
    kept = mdp.discount ** torch.arange(mdp.horizon, dtype=torch.float64)
    found = estimator_gradient(mdp, objective, logits, prior)
    assert largest(kept[:, None, None] * found - exact_gradient(mdp, objective, logits, prior)) < TIGHT


@examples
@given(problems(), objectives(), st.booleans())
def test_advantages_change_nothing(problem, objective, restore):
    """Eq. 11."""
    mdp, logits, prior = problem
    found = advantage_gradient(mdp, objective, logits, prior, restore_discount=restore)
    wanted = estimator_gradient(mdp, objective, logits, prior, restore_discount=restore)
    assert largest(found - wanted) < TIGHT


@examples
@given(short_mdps().flatmap(lambda mdp: st.tuples(st.just(mdp), tables(mdp))), temperatures, weights, temperatures)
def test_the_residual_estimator_vanishes_at_the_customized_optimum(problem, alpha, omega, alpha_hat):
    """At the optimum of ω·r + r_R, with r known through the prior alone, even with γ^t dropped; elsewhere it is that
    of the full task, where γ^t is kept."""
    mdp, logits = problem
    prior = soft_optimal(mdp, alpha).log_policy
    objective = residual(omega * alpha, alpha_hat)
    wanted = mdp.with_reward(omega * mdp.reward + mdp.addon)
    blind = mdp.with_reward(torch.zeros_like(mdp.reward))
    optimum = soft_optimal(wanted, alpha_hat).log_policy
    assert largest(estimator_gradient(blind, objective, optimum, prior)) < TIGHT
    by_residual = estimator_gradient(blind, objective, logits, prior, restore_discount=True)
    by_full = estimator_gradient(wanted, soft(alpha_hat), logits, restore_discount=True)
    assert largest(by_residual - by_full) < TIGHT


# The estimators that the paper compares -------------------------------------------------------------------------------
@examples
@given(problems(), objectives(), st.floats(-3.0, 3.0), st.booleans())
def test_shi_s_constant_changes_nothing(problem, objective, constant, restore):
    """Eq. 10: the −1, or any other constant, and the exact Q in place of the sampled return."""
    mdp, logits, prior = problem
    wanted = estimator_gradient(mdp, objective, logits, prior, restore_discount=restore)
    with_one = constant_gradient(mdp, objective, logits, prior, restore_discount=restore)
    with_any = constant_gradient(mdp, objective, logits, prior, constant=constant, restore_discount=restore)
    assert largest(with_one - wanted) < TIGHT
    assert largest(with_any - wanted) < TIGHT


@examples
@given(problems(), st.booleans())
def test_the_gradient_of_the_entropy_has_a_minus(problem, restore):
    """E[∇H] = −E[∇log π · log π]; in print the minus is missing."""
    mdp, logits, _ = problem
    of_entropy = entropy_gradient(mdp, logits, restore_discount=restore)
    assert (
        largest(of_entropy - score_gradient(mdp, logits, -torch.log_softmax(logits, -1), restore_discount=restore))
        < TIGHT
    )


@examples
@given(problems(), objectives(bonus=weights), st.booleans())
def test_a_bonus_in_the_loss_is_a_first_step_in_the_return(problem, objective, restore):
    """Eq. 7 is Eq. 8 and Schulman's is Eq. 9, with + alpha·∇H in the loss; in print it has a minus."""
    mdp, logits, prior = problem
    in_loss = estimator_gradient(mdp, objective, logits, prior, restore_discount=restore)
    in_return = delta_gradient(mdp, objective, logits, prior, restore_discount=restore)
    assert largest(in_loss - in_return) < TIGHT


@examples
@given(problems(), objectives(bonus=weights), st.booleans())
def test_a_bonus_adds_the_gradient_of_the_entropy_that_one_sees(problem, objective, restore):
    mdp, logits, prior = problem
    with_bonus = estimator_gradient(mdp, objective, logits, prior, restore_discount=restore)
    without = estimator_gradient(mdp, replace(objective, bonus=0.0), logits, prior, restore_discount=restore)
    added = objective.bonus * entropy_gradient(mdp, logits, restore_discount=restore)
    assert largest(with_bonus - without - added) < TIGHT


@examples
@given(problems(), weights)
def test_end_entropy_lacks_the_entropy_of_later_steps(problem, alpha):
    """What it lacks is the policy gradient of α times the entropy still to come, and nothing else."""
    mdp, logits, _ = problem
    truth = exact_gradient(mdp, soft(alpha), logits)
    found = estimator_gradient(mdp, end_entropy(alpha), logits, restore_discount=True)
    entropy_alone = mdp.with_reward(torch.zeros_like(mdp.reward))
    to_come = evaluate(entropy_alone, soft(alpha), torch.log_softmax(logits, -1)).q  # Q leaves out its own step
    assert largest(truth - found - score_gradient(mdp, logits, to_come, restore_discount=True)) < TIGHT
