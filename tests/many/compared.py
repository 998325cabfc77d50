"""Policies that are compared."""

from pathlib import Path

import torch
from tiny_envs import tiny

from repolicy.policies.distributions import ActionSpace
from repolicy.policies.file import save_policy
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.priors.kinds import MeanPrior

GOOD, BAD = (MeanPrior(lambda seen, gain=gain: gain * seen, 0.1) for gain in (-0.9, 0.9))
QUADRATIC = tiny("LinearQuadratic")


def a_file(place: Path, env: str | None = QUADRATIC, size: int = 1, seed: int = 0) -> str:
    """Save a policy, and return its path."""
    torch.manual_seed(seed)
    policy = Policy(PolicySpec(size, ActionSpace("continuous", (1,), (-1.0,), (1.0,)), hidden=(4,)))
    save_policy(place, policy, {} if env is None else {"request": {"env": env}})
    return str(place)
