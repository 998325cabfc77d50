"""Priors whose actions pass through tanh: hosts act before it, and score by the density behind it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runner_envs import Drift as RunnerDrift
from runners import POLICY_ACTOR, collected, log_prob_of, residual, runner
from sb3_models import Drift, rollout
from sb3_models import residual as sb3
from shaken import shaken
from small import small_policy
from stable_baselines3.common.vec_env import DummyVecEnv
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from repolicy import Policy
from repolicy.errors import UsageError
from repolicy.hosts.priors import as_gaussian, with_one_std
from repolicy.hosts.sb3 import ResidualPPO, Squashed, to_repolicy
from repolicy.priors import read_policy
from repolicy.readers.description import CannotCopyError

OMEGA, ALPHA = 0.3, 0.2


def squashed(family: str = "squashed", hidden: tuple[int, ...] = (8, 8), activation: str = "swish") -> Policy:
    start = small_policy(hidden=hidden)
    policy = shaken(Policy(replace(start.spec, family=family, activation=activation)))
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
        log_prior = behind_tanh(own.mean, own.log_std.exp(), actions)
        log_policy = behind_tanh(host.mean, host.stddev, actions)
    expected = torch.from_numpy(task).flatten() + OMEGA * log_prior - ALPHA * log_policy
    torch.testing.assert_close(torch.from_numpy(rewards).flatten().double(), expected, rtol=1e-4, atol=1e-4)


def test_rsl_rl_pays_by_torchs_own_densities() -> None:
    prior = squashed(hidden=(16, 16))
    started = runner(algorithm=residual(prior), env=Tanh(), actor={"activation": "swish"})
    storage = collected(started)
    observations, actions = storage.observations["policy"], storage.actions
    own = prior(observations)
    log_prob = behind_tanh(own.mean, own.log_std.exp().expand_as(own.mean), actions)
    paid = started.alg._task_rewards + (OMEGA - ALPHA) * log_prob  # the actor begins as the prior
    at_limits = storage.rewards.squeeze(-1) - paid
    cut = at_limits.abs() > 1e-3
    assert int(cut.sum()) < 10  # rsl_rl adds a value where a time limit cut
    assert float(at_limits[~cut].detach().abs().max()) < 1e-4
    started.alg.update()
    assert torch.equal(started.alg.actor.obs_normalizer._mean.flatten(), prior.normalizer.mean.float())


def test_of_a_std_for_each_state_an_actor_with_one_has_the_nearest_in_kl() -> None:
    start = squashed("state_squashed", hidden=(), activation="tanh")
    prior = Policy(replace(start.spec, std="exp", min_std=0.0, initial_std=1.0))
    with torch.no_grad():
        prior.network.weights[-1].copy_(0.1 * torch.randn(4, 3))
        prior.network.biases[-1].copy_(torch.tensor([0.0, 0.0, -1.0, 0.5]))
    found = with_one_std(as_gaussian(prior))
    observations = torch.randn(50, 3)
    torch.testing.assert_close(found(observations).mode(), prior(observations).mode())
    weights, biases = prior.network.weights[-1][2:], prior.network.biases[-1][2:]
    assert found.log_std is not None  # log σ = b + w·x with x normal, so E[1/σ²] = exp(2|w|² − 2b)
    torch.testing.assert_close(found.log_std, biases - weights.square().sum(-1), atol=0.01, rtol=0.0)
    assert with_one_std(found) is found


@pytest.mark.parametrize(
    ("family", "std"), [("squashed", "softplus"), ("state_squashed", "exp_tanh"), ("state_gaussian", "softplus")]
)
def test_stable_baselines3_begins_as_its_prior_and_ends_as_a_policy_of_its_kind(
    tmp_path: Path, family: str, std: str
) -> None:
    prior, squashes = made_of(squashed(family), std), "squashed" in family
    observations, actions = torch.randn(50, 3), torch.randn(50, 2)
    model = sb3(env=envs() if squashes else DummyVecEnv([Drift] * 4), prior=prior)
    began = to_repolicy(model)
    assert_densities(began, prior)
    if squashes:
        sent = prior.to_environment(actions.numpy())
        np.testing.assert_array_equal(began.to_environment(actions.numpy()), sent)
        np.testing.assert_allclose(Squashed(Drift()).action(actions.numpy()), sent, rtol=1e-6)
    with torch.no_grad():
        drawn = model.policy.get_distribution(observations).distribution
        torch.testing.assert_close(drawn.stddev, prior(observations).log_std.exp().expand_as(drawn.mean))
    model.learn(1)
    model.save(tmp_path / "model.zip")
    again = ResidualPPO.load(tmp_path / "model.zip", model.env)
    assert again.method.squashes == squashes
    assert_alike(again.policy.state_dict(), model.policy.state_dict())
    assert_densities(to_repolicy(again), to_repolicy(model))
    assert not torch.equal(to_repolicy(model).log_prob(observations, actions), prior.log_prob(observations, actions))


def made_of(start: Policy, std: str) -> Policy:
    """The same numbers, with a std that is made of them in another way."""
    bounds = (-2.0, 1.0) if std == "exp_tanh" else (-float("inf"), float("inf"))
    policy = Policy(replace(start.spec, std=std, std_bounds=bounds, min_std=0.01))
    policy.load_state_dict(start.state_dict())
    return policy


def assert_alike(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("family", ["gaussian", "squashed", "state_gaussian", "features_squashed"])
def test_an_actor_of_rsl_rl_made_of_our_policy_is_that_policy(tmp_path: Path, family: str) -> None:
    prior = made_of(squashed(family), "softplus")
    env = Tanh() if prior.family.squashes else RunnerDrift()
    started = runner(algorithm=residual(prior), env=env, actor=POLICY_ACTOR)
    actor, gaussian = started.alg.get_policy(), as_gaussian(prior)
    observations, actions = torch.randn(50, 3), torch.randn(50, 2)
    wanted = gaussian.log_prob(observations, actions)
    torch.testing.assert_close(log_prob_of(actor, observations, actions), wanted)
    with torch.no_grad():
        started.export_policy_to_jit(str(tmp_path))
        graph = torch.jit.load(tmp_path / "policy.pt")
        graph.reset()
        torch.testing.assert_close(graph(observations), prior(observations).mode())
    started.learn(1)
    moved = actor.to_repolicy()
    assert moved.spec.family == prior.spec.family
    assert not torch.equal(moved.log_prob(observations, actions), prior.log_prob(observations, actions))
    with torch.no_grad():
        torch.testing.assert_close(moved(observations).mode(), actor({"policy": observations}))
    started.save(str(tmp_path / "model.pt"))
    again = runner(algorithm=residual(prior), seed=1, env=env, actor=POLICY_ACTOR)
    again.load(str(tmp_path / "model.pt"))
    assert_alike(again.alg.get_policy().state_dict(), actor.state_dict())
    assert_whole(tmp_path / "model.pt", moved, prior)
    begun = runner(algorithm=residual(str(tmp_path / "model.pt")), env=env, actor=POLICY_ACTOR).alg
    torch.testing.assert_close(begun.prior.prior.log_prob(observations, actions), moved.log_prob(observations, actions))
    assert_alike(begun.get_policy().state_dict(), actor.state_dict())


def assert_whole(checkpoint: Path, policy: Policy, prior: Policy) -> None:
    """A checkpoint holds the policy as it acts in the environment, and its prior, while its weights are unchanged."""
    observations, actions = torch.randn(50, 3), torch.randn(50, 2)
    saved = read_policy(checkpoint)
    for found, wanted in ((saved.policy, policy), (saved.prior, prior)):
        assert found.spec == wanted.spec
        assert torch.equal(found.log_prob(observations, actions), wanted.log_prob(observations, actions))
    for change in ("less", "other weights"):
        loaded = torch.load(checkpoint, weights_only=True)
        if change == "less":
            del loaded["policy.safetensors"]
        else:
            loaded["actor_state_dict"]["mlp.biases.0"][0] += 1.0
        torch.save(loaded, changed := checkpoint.with_name(f"{change}.pt"))
        with pytest.raises(CannotCopyError, match=r"no policy of these weights .*to_repolicy\(runner.alg.get_policy"):
            read_policy(changed)


def test_environments_that_take_actions_as_they_are_are_refused() -> None:
    with pytest.raises(UsageError, match=r"pass through tanh, and the environment's do not; wrap it in .*Squashed"):
        sb3(env=DummyVecEnv([Drift] * 4), prior=squashed())
    with pytest.raises(UsageError, match=r"wrap it in repolicy.hosts.sb3.Squashed"):
        sb3(env=envs(), prior=squashed()).set_env(DummyVecEnv([Drift] * 4))
    with pytest.raises(UsageError, match=r"apply it in the environment's step, and give that .* squashes = True"):
        runner(algorithm=residual(squashed(hidden=(16, 16))), actor={"activation": "swish"})


def assert_densities(found: Policy, expected: Policy) -> None:
    observations, actions = torch.randn(50, 3), torch.randn(50, 2)
    torch.testing.assert_close(found.log_prob(observations, actions), expected.log_prob(observations, actions))
