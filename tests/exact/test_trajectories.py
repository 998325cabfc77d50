"""Nothing that can happen is left out, nothing counted twice."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_problems import examples, largest, policies, short_mdps

from repolicy.errors import UsageError
from repolicy.exact import MDP, enumerate_trajectories, state_distributions


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


def test_too_many_are_refused_whatever_kind_of_number_the_horizon_is():
    """As one of NumPy's, it would count past the end of 64 bits, and begin anew."""
    for horizon in (64, np.int64(64)):
        mdp = MDP(np.full((2, 2, 2), 0.5), np.zeros((2, 2)), [1.0, 0.0], 0.9, horizon)
        with pytest.raises(UsageError, match="shorten the horizon"):
            enumerate_trajectories(mdp)
