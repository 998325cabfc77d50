"""What the tests of formats share: copies of policies against the host library's own numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repolicy.policies.distributions import ActionSpace
from repolicy.priors.kinds import MeanPrior
from repolicy.priors.opening import open_policy
from repolicy.readers.copying import policy_from
from repolicy.readers.description import PolicyDescription, Std
from repolicy.readers.reading import Options
from repolicy.readers.recognize import PolicyFile

COUNT = 256
TOLERANCE = 1e-5
STD = Options(std=0.2)


def describe(path: str | Path, options: Options | None = None) -> PolicyDescription:
    return PolicyFile(path).describe(options or Options())


def placed(path: Path, size: int, width: int, trust: bool = False) -> MeanPrior:
    """Open a file that runs as it is, for observations and actions of these sizes."""
    found = open_policy(path, STD, trust).agent
    assert isinstance(found, MeanPrior)
    return found.for_spaces(size, ActionSpace("continuous", (width,)))


def recognized(path: Path) -> str | None:
    return PolicyFile(path).format


def observations(size: int, spread: float = 1.0) -> Tensor:
    """As many as every comparison is made on, in single precision, as the libraries take them."""
    return spread * torch.randn(COUNT, size, generator=torch.Generator().manual_seed(1))


def stirred(module: torch.nn.Module) -> torch.nn.Module:
    """With random numbers added to all parameters, as fresh policies have zeros where a mistake would not be seen."""
    generator = torch.Generator().manual_seed(2)
    for parameter in module.parameters():
        parameter += 0.1 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
    return module


def log_prob(described: PolicyDescription, obs: Tensor, actions: Any) -> np.ndarray:
    """Of our copy of the policy, in double precision."""
    return policy_from(described).double().log_prob(obs.double(), torch.as_tensor(actions).double()).numpy()


def assert_scored(described: PolicyDescription, obs: Tensor, dist: Any) -> None:
    """Our copy's log-probabilities of actions that the host's distribution gives are the host's own."""
    actions = dist.sample()
    wanted = dist.log_prob(actions)
    assert_equal(
        log_prob(described, obs, actions.reshape(len(obs), -1)), wanted.sum(-1) if wanted.dim() > 1 else wanted
    )


def mean(described: PolicyDescription, obs: Tensor) -> np.ndarray:
    """The mode of our copy in double precision; as it acts, in NumPy and single precision, it must be near."""
    if described.std is None and described.actions.kind == "continuous":
        described = replace(described, std=Std("vector", np.ones(described.actions.width, np.float32)))
    policy = policy_from(described).requires_grad_(False)
    acted = policy.to_environment(policy.actor(1, len(obs))(obs.float().numpy()))
    found = policy.to_environment(policy.double()(obs.double()).mode().numpy())
    assert float((np.abs(acted - found) / np.maximum(1.0, np.abs(found))).max()) < 1e-4
    return found


def assert_equal(found: Any, wanted: Any) -> None:
    """Everywhere equal to 1e-5 (relative, where the numbers are above 1), and no trivial constant."""
    found, wanted = (np.asarray(torch.as_tensor(x).detach()).squeeze() for x in (found, wanted))
    assert found.shape == wanted.shape
    assert len(wanted) == COUNT
    assert np.all(np.std(wanted, axis=0) > 1e-4)
    worst = float((np.abs(found - wanted) / np.maximum(1.0, np.abs(wanted))).max())
    assert worst <= TOLERANCE, f"off by {worst:.3g}"


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)
