"""Policies of ours and of Stable-Baselines3, turned into each other."""

import copy
import errno
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_models import Drift, envs, kl_of, model, residual, rollout, trained
from small import same, small_policy
from stable_baselines3 import PPO
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

from repolicy import Policy, save_policy
from repolicy.errors import FileError, UsageError
from repolicy.hosts.sb3 import HeadPolicy, ResidualPPO, Unclipped, from_repolicy, like, to_repolicy
from repolicy.hosts.sb3_policies import actor_layers
from repolicy.hosts.sb3_vec_envs import default_settings, flat_observations, raw_observations
from repolicy.prepare.defaults import settings_for_shape
from repolicy.priors.opening import load_policy
from repolicy.rql.wrapping import PlainObservations

pytestmark = pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")


@pytest.mark.parametrize("family", ["gaussian", "categorical"])
def test_a_policy_of_ours_becomes_theirs_and_comes_back(family: str) -> None:
    policy = small_policy(family=family)
    acts = "numbers" if family == "gaussian" else "choice"
    theirs = model(PPO, DummyVecEnv([lambda: Drift(acts=acts)]), policy_kwargs=like(policy))
    from_repolicy(policy, theirs)
    observations = torch.randn(30, 3)
    actions = torch.randn(30, 2) if family == "gaussian" else torch.randint(0, 3, (30, 1))
    with torch.no_grad():
        chosen = actions.squeeze(-1) if family == "categorical" else actions
        found = theirs.policy.get_distribution(observations).log_prob(chosen)
    torch.testing.assert_close(found, policy.log_prob(observations, actions), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(to_repolicy(theirs).log_prob(observations, actions), found, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bound", [10.0, None])
def test_a_zip_of_a_model_that_began_as_ours_is_a_policy_s_file(bound: float | None, tmp_path: Path) -> None:
    """Its observations are normalized by a class of ours, which no other zip may name."""
    policy = small_policy()
    prior = Policy(replace(policy.spec, observation_bound=bound))
    prior.load_state_dict(policy.state_dict())
    saved = residual(prior=prior)
    saved.learn(64)
    saved.save(tmp_path / "model.zip")
    found, observations, actions = load_policy(tmp_path / "model.zip"), 50.0 * torch.randn(30, 3), torch.randn(30, 2)
    expected = to_repolicy(saved).log_prob(observations, actions)
    torch.testing.assert_close(found.log_prob(observations, actions), expected, rtol=1e-5, atol=1e-5)
    np.savez(tmp_path / "other.npz", mean=np.zeros(3), var=np.ones(3))
    for given in (str(tmp_path / "other.npz"), "none"):
        with pytest.raises(UsageError, match=r"normalizes observations itself: leave vecnormalize out"):
            load_policy(tmp_path / "model.zip", vecnormalize=given)


def test_what_their_network_cannot_be_is_refused_or_kept() -> None:
    """A LayerNorm, means that are cut, and the bound of normalized observations."""
    policy = small_policy()
    for changed in ({"norms": ("before", "")}, {"mean_clip": 0.001}):
        other = Policy(replace(policy.spec, **changed))
        with pytest.raises(UsageError, match=r"the prior has (LayerNorms 1, and the model has 0|means cut at 0.001)"):
            from_repolicy(other, model(PPO, DummyVecEnv([Drift]), policy_kwargs=like(other)))
    free = Policy(replace(policy.spec, observation_bound=None))
    free.load_state_dict(policy.state_dict())
    theirs = model(PPO, DummyVecEnv([Drift]), policy_kwargs=like(free))
    from_repolicy(free, theirs)
    far = 100.0 * torch.randn(30, 3)
    with torch.no_grad():
        found = theirs.policy.get_distribution(far).distribution.mean
    torch.testing.assert_close(found, free(far).mode(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(to_repolicy(theirs)(far).mode(), found, rtol=1e-5, atol=1e-5)
    with pytest.raises(UsageError, match="the model clips its observations elsewhere than the prior"):
        from_repolicy(policy, theirs)


def test_a_vec_normalize_goes_along() -> None:
    env = VecNormalize(envs(), norm_reward=False, clip_obs=2.0)
    theirs = trained(env)
    raw = 5.0 * np.random.default_rng(0).normal(size=(30, 3))
    actions = torch.randn(30, 2)
    with torch.no_grad():
        seen = torch.as_tensor(env.normalize_obs(raw)).float()
        expected = theirs.policy.get_distribution(seen).log_prob(actions)
    found = to_repolicy(theirs).log_prob(torch.as_tensor(raw).float(), actions)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_prior_of_ours_sees_raw_observations() -> None:
    env = VecNormalize(envs(), norm_reward=False)
    theirs = trained(env)
    prior, env.training = to_repolicy(theirs), False
    ours = residual(env=env, prior=prior, copy_prior=False)
    with torch.no_grad():
        ours.policy.load_state_dict(theirs.policy.state_dict())
    rollout(ours)
    assert kl_of(ours) == pytest.approx(0.0, abs=1e-3)


def test_a_policy_of_theirs_sends_the_actions_that_their_model_sends(tmp_path: Path) -> None:
    """Clipped to the bounds, as by the policy of its zip; `Unclipped` has bounds that no action reaches."""
    stored = np.array([[7.0, -0.5]], np.float32)
    for wrapped, sent in ((Drift, [[1.0, -0.5]]), (lambda: Unclipped(Drift()), [[7.0, -0.5]])):
        theirs = model(PPO, DummyVecEnv([wrapped]))
        with torch.no_grad():
            theirs.policy.action_net.weight.zero_()
            theirs.policy.action_net.bias.copy_(torch.from_numpy(stored[0]))
        theirs.save(tmp_path / "model.zip")
        assert theirs.predict(np.zeros((1, 3)), deterministic=True)[0].tolist() == sent
        for policy in (to_repolicy(theirs), load_policy(tmp_path / "model.zip")):
            assert policy.to_environment(stored).tolist() == sent


def test_a_model_that_bounds_no_observation_becomes_a_policy_that_bounds_none() -> None:
    theirs, far = model(PPO, DummyVecEnv([Drift])), 100.0 * torch.randn(30, 3)
    with torch.no_grad():
        expected = theirs.policy.get_distribution(far).distribution.mean
    torch.testing.assert_close(to_repolicy(theirs)(far).mode(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kind", "policy"), [("RecurrentPPO", "MlpLstmPolicy"), ("MaskablePPO", "MlpPolicy")])
def test_a_model_with_a_memory_or_masks_is_no_prior(kind: str, policy: str) -> None:
    env = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")])
    found = getattr(pytest.importorskip("sb3_contrib"), kind)(policy, env, n_steps=8, batch_size=8, device="cpu")
    with pytest.raises(UsageError, match="it has no log_prob"):
        residual(env=env, prior=found)


def test_images_that_the_host_would_divide_are_refused_and_plain_ones_are_seen_as_they_are() -> None:
    prior = small_policy(observations=36 * 36)
    with pytest.raises(UsageError, match="observations are images, .*: wrap the environment in repolicy.rql.wrapping"):
        residual(env=DummyVecEnv([lambda: Drift("images")] * 4), prior=prior)
    with pytest.raises(UsageError, match="observations are images"):
        to_repolicy(model(PPO, DummyVecEnv([lambda: Drift("images")])))
    ours = residual(env=DummyVecEnv([lambda: PlainObservations(Drift("images"))] * 4), prior=prior)
    rollout(ours)
    assert kl_of(ours) == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize(
    ("sees", "acts", "policy", "expected"),
    [("images", "numbers", "CnnPolicy", torch.float32), ("numbers", "switches", "MlpPolicy", torch.int64)],
)
def test_an_object_gets_numbers_of_the_types_that_the_engine_s_have(
    sees: str, acts: str, policy: str, expected: torch.dtype
) -> None:
    class Own:
        def log_prob(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
            assert observations.dtype == torch.float32
            assert actions.dtype == expected
            return -observations.mean(-1)

    rollout(residual(env=DummyVecEnv([lambda: Drift(sees, acts)] * 4), policy=policy, prior=Own()))


def told_apart(prior: Any, ours: Any) -> float:
    """How far log-probabilities of the prior that is held, and of the actor, are from the given model's, at most."""
    observations, actions = torch.randn(30, 3), torch.randn(30, 2)
    with torch.no_grad():
        given, held, begun = (
            each.get_distribution(observations).log_prob(actions)
            for each in (prior.policy, ours.prior.policy, ours.policy)
        )
    return float(max((held - given).abs().max(), (begun - given).abs().max()))


def test_a_model_as_a_prior_is_built_as_it_was() -> None:
    """Its tensors alone would fit another activation. The critic is nobody's affair."""
    prior = trained(policy_kwargs={"activation_fn": torch.nn.ReLU})
    assert told_apart(prior, residual(prior=prior)) == 0.0
    kwargs = {"activation_fn": torch.nn.ReLU, "net_arch": {"pi": [64, 64], "vf": [8]}}
    assert told_apart(prior, residual(prior=prior, policy_kwargs=kwargs)) == 0.0
    with pytest.raises(UsageError, match="the prior's policy has activation_fn ReLU, and the model's Tanh: leave"):
        residual(prior=prior, policy_kwargs={})
    with pytest.raises(UsageError, match="has use_sde True, and the model's False"):
        residual(prior=trained(use_sde=True))
    with pytest.raises(UsageError, match=r"the model has switches: its prior is prior=PPO.load\(FILE\)"):
        to_repolicy(model(PPO, DummyVecEnv([lambda: Drift(acts="switches")])))
    assert told_apart(prior, residual(prior=residual(prior=prior))) == 0.0
    own = residual(prior=small_policy(family="state_gaussian"))
    assert isinstance(residual(prior=own).policy, HeadPolicy)


def test_a_model_as_a_prior_sees_what_it_saw_in_training(tmp_path: Path) -> None:
    def normalized(steps: int) -> VecNormalize:
        env = VecNormalize(envs(), norm_reward=False)
        trained(env) if steps else None
        env.training = False
        return env

    env = normalized(1)
    prior = model(PPO, env).learn(32)
    prior.save(tmp_path / "mine.zip")
    plain, loaded = trained(), PPO.load(tmp_path / "mine.zip")
    for given, alike, others in (
        (prior, [env], [envs(), normalized(0)]),
        (loaded, [env, normalized(0)], [envs()]),  # it does not tell its statistics
        (plain, [envs(), VecNormalize(envs(), norm_obs=False, norm_reward=False)], [env]),
    ):
        for each in alike:
            residual(env=each, prior=given)
        for each in others:
            with pytest.raises(UsageError, match="normalizes observations otherwise than the prior's training did"):
                residual(env=each, prior=given)


def test_a_save_that_fails_leaves_the_model_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = residual(prior=small_policy())
    ours.save(tmp_path / "model")
    before = (tmp_path / "model.zip").read_bytes()

    def full_disk(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(FileError, match="No space left"):
        ours.learn(32).save(tmp_path / "model")
    assert (tmp_path / "model.zip").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model.zip"]


def test_frames_that_were_normalized_before_they_were_stacked_become_raw_ones() -> None:
    """RL Zoo wraps so. A stack of raw frames has zeros before an episode's first, too."""
    inside = VecNormalize(envs(), training=False)
    inside.obs_rms.mean[:], inside.obs_rms.var[:] = (1.0, -1.0, 0.5), (4.0, 0.25, 1.0)
    normalized, raw = VecFrameStack(inside, 3), VecFrameStack(envs(), 3)
    for env in (normalized, raw):
        env.seed(5)
    seen, wanted = normalized.reset(), raw.reset()
    for _ in range(9):
        np.testing.assert_allclose(raw_observations(normalized, seen[None])[0], wanted, atol=1e-6)
        np.testing.assert_allclose(flat_observations(normalized, seen[None])[0], wanted[:, -3:], atol=1e-6)
        (seen, *_), (wanted, *_) = (env.step(np.zeros((4, 2))) for env in (normalized, raw))


def test_the_critic_of_parameters_predicts_plain_rewards_whoever_takes_them() -> None:
    theirs, ours = trained(), residual(prior=trained()).learn(64)
    observations = torch.randn(7, 3)

    def values(of: Any) -> torch.Tensor:
        with torch.no_grad():
            return of.policy.predict_values(observations)

    for source, other in ((ours, model(PPO)), (ours, residual(prior=trained())), (theirs, ours)):
        other.set_parameters(source.get_parameters())
        torch.testing.assert_close(values(other), values(source))


def test_a_bonus_for_entropy_in_a_model_s_file_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(ent_coef=0.05).save(tmp_path / "theirs.zip")
    ResidualPPO.load(tmp_path / "theirs.zip", env=envs(), prior=trained(), omega=0.3, alpha=0.2)
    assert "ent_coef is 0.05, and alpha pays for the entropy already" in capsys.readouterr().out


class Standardizing(FlattenExtractor):
    """Features that a BatchNorm standardizes, which learns in training mode."""

    def __init__(self, space: Any) -> None:
        super().__init__(space)
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.norm(super().forward(observations))


@pytest.mark.usefixtures("_few_episodes")
def test_a_verdict_changes_nothing_in_the_policy() -> None:
    kwargs = {"features_extractor_class": Standardizing}
    ours = residual(prior=trained(policy_kwargs=kwargs)).learn(32)
    before = [tensor.clone() for tensor in ours.policy.state_dict().values()]
    ours.verdict()
    assert same(before, ours.policy.state_dict().values())


def test_beside_a_model_as_beside_a_file_the_settings_go_by_the_priors_width(tmp_path: Path) -> None:
    """Whether the policy is named by its word or by its class."""
    wide = trained(policy_kwargs={"net_arch": [128, 128]})
    save_policy(tmp_path / "wide.safetensors", to_repolicy(wide))
    built = [
        ResidualPPO(policy, envs(), prior=prior, omega=0.3, alpha=0.2, device="cpu")
        for prior, policy in product((wide, tmp_path / "wide.safetensors"), ("MlpPolicy", ActorCriticPolicy))
    ]
    assert {model.learning_rate for model in built} == {settings_for_shape(128, 2).learning_rate}
    assert all([layer.out_features for layer in actor_layers(model.policy)] == [128, 128, 2] for model in built)


def test_a_model_of_plain_ppo_goes_on_with_a_prior_and_waits_for_its_critic(tmp_path: Path) -> None:
    """Its critic is of the reward of before."""
    plain = trained()
    plain.save(tmp_path / "ppo.zip")
    for named, waits in (({}, True), ({"critic_warmup": 0}, False)):
        ours = ResidualPPO.load(tmp_path / "ppo.zip", envs(), prior=plain, omega=0.3, alpha=0.2, **named)
        assert ours.steering.trains_actor != waits
        assert told_apart(plain, ours) == 0.0
    ours.save(tmp_path / "ours.zip")
    assert ResidualPPO.load(tmp_path / "ours.zip", envs()).steering.trains_actor


@pytest.mark.parametrize("count", [1, 4096, 10_000])
def test_a_rollout_is_long_enough_to_learn_from_however_many_environments_there_are(count: int) -> None:
    class Many:
        num_envs, action_space = count, spaces.Box(-1.0, 1.0, (8,))

    assert default_settings(Many, 64, {})["n_steps"] >= 16


@pytest.mark.parametrize(
    ("count", "n_steps", "batch_size"),
    [(1, 2048, 1024), (3, 500, 750), (1, 101, 101), (1, 2053, 1027), (1, 3089, 1030)],
)
def test_minibatches_are_of_about_the_usual_size_also_where_that_divides_no_rollout(
    count: int, n_steps: int, batch_size: int
) -> None:
    class Many:
        num_envs, action_space = count, spaces.Box(-1.0, 1.0, (8,))

    assert default_settings(Many, 64, {"n_steps": n_steps})["batch_size"] == batch_size


def test_a_copy_of_a_model_learns_as_the_model_does() -> None:
    first = residual(prior=trained(), kl_budget=0.1, omega=0.3, alpha=0.3).learn(64)
    first.predict(np.zeros(3))  # after an update Stable-Baselines3's own models cannot be copied
    found = []
    for each in (copy.deepcopy(first), first):
        torch.manual_seed(3)
        np.random.seed(3)
        found.append(each.learn(64, reset_num_timesteps=False))
    assert same(*(each.policy.parameters() for each in found))
    assert found[0].steering == first.steering
