"""Policies of every family, as training leaves them."""

import numpy as np
from shaken import shaken

from repolicy.policies.distributions import ActionSpace
from repolicy.policies.normalizer import moment_sums
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.runs.settings import Settings

BOX = ActionSpace("continuous", (2,), (-1.0, -1.0), (1.0, 1.0))
SPECS = {
    "gaussian": PolicySpec(3, BOX, hidden=(8,)),
    "state_gaussian": PolicySpec(3, BOX, "state_gaussian", hidden=(8,)),
    "squashed": PolicySpec(3, BOX, "squashed", hidden=(8,)),
    "categorical": PolicySpec(3, ActionSpace("discrete", (2, 3)), "categorical", hidden=(8,)),
}


def trained(family: str = "gaussian", seed: int = 0) -> Policy:
    """A policy as training leaves it: weights of its own, and a normalizer that has seen something."""
    policy = shaken(Policy(SPECS[family]), seed=seed)
    seen = np.random.default_rng(seed).normal(5.0, 3.0, (100, 3))
    policy.normalizer.update(moment_sums(seen.astype(np.float32)))
    return policy


SMALL = Settings(
    steps=256, envs=4, n_steps=16, minibatch=32, checkpoint_every=2, ranks=1, evaluation_episodes=1, hidden=(8,)
)
