"""J and its exact gradient: the truth that the estimators are judged by, judged itself."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_problems import (
    any_mdps,
    examples,
    largest,
    mdps,
    objectives,
    policies,
    short_mdps,
    state_distributions,
    tables,
    temperatures,
)

from repolicy.exact import MDP, enumerate_trajectories, evaluate, exact_gradient, soft_optimal, solve_augmented
from repolicy.exact.solve import expected_return
from repolicy.objective import no_entropy, residual, soft

TIGHT = 1e-10


@examples
@given(st.data(), any_mdps(), objectives())
def test_the_exact_gradient_is_the_slope_of_j(data, mdp, objective):
    """Against a central difference, in some direction."""
    logits, prior = data.draw(tables(mdp)), data.draw(policies(mdp))
    direction = torch.sin(torch.arange(1.0, logits.numel() + 1, dtype=torch.float64)).reshape(logits.shape)

    def j(step):
        return expected_return(mdp, objective, torch.log_softmax(logits + step * direction, -1), prior).item()

    slope = (j(1e-4) - j(-1e-4)) / 2e-4
    assert abs((exact_gradient(mdp, objective, logits, prior) * direction).sum().item() - slope) < 1e-5


@examples
@given(st.data(), any_mdps(), objectives())
def test_v_is_the_mean_of_q_and_the_entropy_of_its_own_step(data, mdp, objective):
    policy, prior = data.draw(policies(mdp)), data.draw(policies(mdp))
    q, v = evaluate(mdp, objective, policy, prior)
    assert largest((policy.exp() * (q - objective.alpha * policy)).sum(-1) - v) < TIGHT


@examples
@given(any_mdps(), temperatures)
def test_at_the_optimum_the_values_are_the_solution_s(mdp, alpha):
    best = soft_optimal(mdp, alpha)
    q, v = evaluate(mdp, soft(alpha), best.log_policy)
    assert largest(q - best.q) < TIGHT
    assert largest(v - best.v) < TIGHT


@pytest.mark.parametrize("horizon", [None, 3])
def test_what_is_never_done_pays_nothing(horizon):
    """Nor does it cost without end, where the prior never does it either."""
    mdp = MDP(torch.full((2, 2, 2), 0.5), [[1.0, 0.0], [0.2, 0.4]], [0.5, 0.5], 0.9, horizon, [[0.0, 9.0], [0.3, 0.1]])
    prior = torch.tensor([[1.0, 0.0], [0.5, 0.5]]).log()
    best = solve_augmented(mdp, residual(0.4, 0.3), prior)
    q, v = evaluate(mdp, residual(0.4, 0.3), best.log_policy, prior)
    assert largest(v - best.v) < TIGHT
    assert largest((q - best.q)[best.policy > 0]) < TIGHT
    assert bool((q[best.policy == 0] == -torch.inf).all())


@examples
@given(st.data(), mdps(horizon=st.none()), objectives())
def test_a_long_horizon_approaches_the_infinite_one(data, mdp, objective):
    """Backwards through the horizon, and a linear system solved at once."""
    policy, prior = data.draw(policies(mdp)), data.draw(policies(mdp))
    long, infinite = (
        evaluate(replace(mdp, horizon=400), objective, policy, prior),
        evaluate(mdp, objective, policy, prior),
    )
    assert largest(long.v[0] - infinite.v) < TIGHT
    assert largest(long.q[0] - infinite.q) < TIGHT


@examples
@given(st.data(), mdps(horizon=st.integers(1, 6)))
def test_j_is_the_reward_where_the_policy_goes(data, mdp):
    """The plain return once more, from the distribution of states at each step: forwards rather than backwards."""
    policy = data.draw(policies(mdp))
    visits = state_distributions(mdp, policy)
    assert largest(visits.sum(-1) - 1) < TIGHT
    each_step = (visits * (policy.exp() * mdp.reward).sum(-1)).sum(-1)
    discounted = (mdp.discount ** torch.arange(mdp.horizon, dtype=torch.float64) * each_step).sum()
    assert abs(discounted - expected_return(mdp, no_entropy(), policy)) < TIGHT


@examples
@given(st.data(), short_mdps())
def test_trajectories_share_all_probability_and_are_distinct(data, mdp):
    trajectories = enumerate_trajectories(mdp)
    policy = mdp.log_probs("policy", data.draw(policies(mdp)))
    probability = trajectories.probability(policy)
    assert abs(probability.sum() - 1) < 1e-10
    together = torch.cat([trajectories.states, trajectories.actions], -1)
    assert len(torch.unique(together, dim=0)) == len(together)
    for t, visits in enumerate(state_distributions(mdp, policy)):
        seen = torch.zeros_like(visits).index_add(0, trajectories.states[:, t], probability)
        assert largest(seen - visits) < 1e-10
