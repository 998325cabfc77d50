"""Small priors for Residual Q-learning."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from repolicy.policies.distributions import ActionSpace
from repolicy.policies.normalizer import sums
from repolicy.policies.policy import Policy, PolicySpec


def wild_prior(**changes: Any) -> Policy:
    """A prior with weights of its own and a normalizer that has seen something."""
    spec = PolicySpec(3, ActionSpace("discrete", (2,)), "categorical", hidden=(8, 5), activation="relu")
    policy = Policy(replace(spec, **changes))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    policy.normalizer.update(sums(np.random.default_rng(0).normal(0.5, 0.4, (100, 3)).astype(np.float32)))
    return policy


ACTIONS = ActionSpace("continuous", (1,), (-2.0,), (6.0,))


def constant(mean: float, std: float, family: Any = "state_squashed", actions: ActionSpace = ACTIONS) -> Policy:
    """A policy that does the same everywhere."""
    policy = Policy(PolicySpec(1, actions, family, hidden=(4,), activation="relu", min_std=0.0))
    with torch.no_grad():
        policy.network.weights[-1].zero_()
        policy.network.biases[-1].copy_(torch.tensor([mean, math.log(std)]).repeat_interleave(actions.width))
    return policy
