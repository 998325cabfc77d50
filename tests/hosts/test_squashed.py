"""Priors whose actions pass through tanh: hosts act before it, and score by the density behind it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rsl_rl.runners import OnPolicyRunner
from runner_envs import Drift as RunnerDrift
from runner_envs import settings
from runners import collected, residual
from sb3_models import Drift, rollout
from sb3_models import residual as sb3
from small import small_policy
from stable_baselines3.common.vec_env import DummyVecEnv
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from repolicy import Policy
from repolicy.errors import UsageError
from repolicy.hosts.kept_prior import as_gaussian
from repolicy.hosts.sb3 import ResidualPPO, Squashed, to_repolicy

OMEGA, ALPHA = 0.3, 0.2


def squashed(family: str = "squashed", hidden: tuple[int, ...] = (8, 8), activation: str = "swish") -> Policy:
    start = small_policy(hidden=hidden)
    policy = Policy(replace(start.spec, family=family, activation=activation))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    policy.normalizer.load_state_dict(start.normalizer.state_dict())
    return policy


def envs(count: int = 4) -> DummyVecEnv:
    return DummyVecEnv([lambda: Squashed(Drift())] * count)


def behind_tanh(mean: torch.Tensor, std: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """torch's own log-density of tanh(u)."""
    gaussian = Independent(Normal(mean.double(), std.double()), 1)
    return TransformedDistribution(gaussian, TanhTransform(cache_size=1)).log_prob(torch.tanh(actions.double()))


class Tanh(RunnerDrift):
    """The runner's environments, whose actions pass through tanh."""

    squashes = True

    def step(self, actions: torch.Tensor) -> Any:
        return super().step(torch.tanh(actions))


@pytest.mark.parametrize("family", ["squashed", "state_squashed"])
def test_stable_baselines3_pays_by_torchs_own_densities(family: str) -> None:
    prior = squashed(family)
    model = sb3(env=envs(), prior=prior)
    task, rewards = rollout(model)
    buffer = model.rollout_buffer
    observations, actions = (
        torch.from_numpy(part).flatten(0, 1).float() for part in (buffer.observations, buffer.actions)
    )
    with torch.no_grad():
        own, host = prior(observations), model.policy.get_distribution(observations).distribution
        log_prior = behind_tanh(own.mean, own.log_std.exp(), actions)  # type: ignore[attr-defined]
        log_policy = behind_tanh(host.mean, host.stddev, actions)
    expected = torch.from_numpy(task).flatten() + OMEGA * log_prior - ALPHA * log_policy
    torch.testing.assert_close(torch.from_numpy(rewards).flatten().double(), expected, rtol=1e-4, atol=1e-4)


def test_rsl_rl_pays_by_torchs_own_densities() -> None:
    prior = squashed(hidden=(16, 16))
    how = settings(algorithm=residual(prior), activation="swish")
    runner = OnPolicyRunner(Tanh(), how, None, "cpu")
    storage = collected(runner)
    observations, actions = storage.observations["policy"], storage.actions
    own = prior(observations)
    log_prob = behind_tanh(own.mean, own.log_std.exp().expand_as(own.mean), actions)  # type: ignore[attr-defined]
    paid = runner.alg._paid + (OMEGA - ALPHA) * log_prob  # the actor begins as the prior
    at_limits = storage.rewards.squeeze(-1) - paid
    cut = at_limits.abs() > 1e-3
    assert int(cut.sum()) < 10  # rsl_rl adds a value where a time limit cut
    torch.testing.assert_close(
        at_limits[~cut].double(), torch.zeros_like(at_limits[~cut]).double(), atol=1e-4, rtol=0.0
    )


def test_the_actor_begins_as_the_prior_and_ends_as_a_squashed_policy(tmp_path: Path) -> None:
    prior = squashed()
    model = sb3(env=envs(), prior=prior)
    began = to_repolicy(model)
    observations, actions = torch.randn(50, 3), torch.randn(50, 2)
    torch.testing.assert_close(began.log_prob(observations, actions), prior.log_prob(observations, actions))
    sent = [each.to_environment(actions.numpy()) for each in (began, prior)]
    np.testing.assert_array_equal(*sent)
    np.testing.assert_allclose(Squashed(Drift()).action(actions.numpy()), sent[0], rtol=1e-6)
    model.learn(1)
    model.save(tmp_path / "model.zip")
    again = ResidualPPO.load(tmp_path / "model.zip", model.env)
    assert again.method.squashes
    torch.testing.assert_close(
        to_repolicy(again).log_prob(observations, actions), to_repolicy(model).log_prob(observations, actions)
    )
    with pytest.raises(UsageError, match="wrap it in repolicy.hosts.sb3.Squashed"):
        again.set_env(DummyVecEnv([Drift] * 4))


def test_of_a_std_for_each_state_the_actor_has_the_geometric_mean() -> None:
    prior = squashed("state_squashed", hidden=(), activation="tanh")
    with torch.no_grad():  # log std is linear in the inputs, which have mean 0: its mean is the bias
        prior.network.biases[-1][2:] = torch.tensor([2.0, 3.0])
        prior.network.weights[-1][2:] *= 0.1
    found = as_gaussian(prior)
    observations = torch.randn(50, 3)
    torch.testing.assert_close(found(observations).mode(), prior(observations).mode())
    assert found.log_std is not None
    expected = prior.distribution(torch.zeros(1, 3)).log_std[0]  # type: ignore[attr-defined]
    torch.testing.assert_close(found.log_std.data, expected, atol=0.02, rtol=0.0)
    assert as_gaussian(found) is found


def test_environments_that_take_actions_as_they_are_are_refused() -> None:
    with pytest.raises(UsageError, match=r"pass through tanh, and the environment's do not; wrap it in .*Squashed"):
        sb3(env=DummyVecEnv([Drift] * 4), prior=squashed())
    how = settings(algorithm=residual(squashed(hidden=(16, 16))), activation="swish")
    with pytest.raises(UsageError, match=r"apply it in the environment's step, and give that .* squashes = True"):
        OnPolicyRunner(RunnerDrift(), how, None, "cpu")
