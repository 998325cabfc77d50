"""Priors of every kind for a policy with dials."""

from dataclasses import replace

import torch

from repolicy.policies.distributions import ActionSpace
from repolicy.policies.policy import Policy, PolicySpec

BOX = ActionSpace("continuous", (2,), (-2.0, -2.0), (2.0, 2.0))
PLAIN = PolicySpec(4, BOX, hidden=(8, 6), initial_std=0.35)
SPECS = {
    "tanh": PLAIN,
    "elu": replace(PLAIN, activation="elu"),
    "relu": replace(PLAIN, activation="relu", hidden=(8,)),
    "swish": replace(PLAIN, activation="swish", std="softplus"),
    "norms": replace(PLAIN, norms=("before", "after")),
    "linear": replace(PLAIN, hidden=()),
    "state_gaussian": replace(PLAIN, family="state_gaussian"),
    "squashed": replace(PLAIN, family="squashed"),
    "features": replace(PLAIN, family="features_gaussian"),
    "categorical": PolicySpec(4, ActionSpace("discrete", (3, 2)), "categorical", hidden=(8,)),
}


def shaken(policy: Policy, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in policy.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)


def prior(kind: str) -> Policy:
    made = Policy(SPECS[kind])
    shaken(made)
    generator = torch.Generator().manual_seed(1)
    seen = 2.0 + 3.0 * torch.randn(50, 4, generator=generator).double()
    made.normalizer.update(torch.stack([torch.full((4,), 50.0).double(), seen.sum(0), seen.square().sum(0)]))
    return made
