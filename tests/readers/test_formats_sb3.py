"""Stable-Baselines3's and sb3-contrib's zips: made here by the libraries, and found in their zoo."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparing import assert_equal, assert_scored, describe, log_prob, mean, observations, recognized
from gymnasium import spaces
from made_sb3 import SMALL, DummyVecEnv, Still, VecNormalize, check_soft, contrib, made, rewritten, with_statistics

from repolicy.cli.inspection import inspect
from repolicy.errors import FileError, UsageError
from repolicy.priors.opening import read_policy
from repolicy.readers.reading import Options

sb3 = pytest.importorskip("stable_baselines3")


def library(kind: str) -> Any:
    return getattr(sb3, kind) if hasattr(sb3, kind) else contrib(kind)


# On-policy ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "actions"),
    [
        *[(kind, actions) for kind in ("PPO", "A2C") for actions in ("box", "choice", "choices", "switches")],
        ("TRPO", "box"), ("TRPO", "choice"), ("MaskablePPO", "choices"), ("MaskablePPO", "switches"),
    ],
)  # fmt: skip
def test_on_policy_log_probabilities_are_the_librarys_own(kind: str, actions: str, tmp_path: Path) -> None:
    model, path = made(library(kind), tmp_path, actions)
    described = describe(path)
    assert recognized(path) == "sb3"
    assert described.kind == kind.removeprefix("Maskable")
    assert described.version == sb3.__version__
    assert described.family == ("gaussian" if actions == "box" else "categorical")
    assert_scored(described, obs := observations(5), model.policy.get_distribution(obs))


@pytest.mark.parametrize("activation", ["ReLU", "ELU", "SiLU", "GELU", "LeakyReLU", "Tanh"])
def test_activations_and_unequal_networks(activation: str, tmp_path: Path) -> None:
    layers = {"activation_fn": getattr(torch.nn, activation), "net_arch": {"pi": [7], "vf": [9, 8, 6]}}
    model, path = made(sb3.PPO, tmp_path, policy_kwargs=layers)
    described = describe(path)
    assert [layer.linear.weight.shape for layer in described.actor.hidden] == [(7, 5)]
    assert_scored(described, obs := observations(5), model.policy.get_distribution(obs))


@pytest.mark.parametrize(
    "settings",
    [{}, {"full_std": False}, {"use_expln": True, "log_std_init": 0.3}, {"squash_output": True, "log_std_init": -2.0}],
)
def test_generalized_state_dependent_exploration(settings: dict[str, Any], tmp_path: Path) -> None:
    model, path = made(sb3.PPO, tmp_path, use_sde=True, policy_kwargs=settings)
    described, obs = describe(path), observations(5)
    assert described.std.source == "features"
    dist = model.policy.get_distribution(obs)
    before = dist.distribution.sample()  # the noise matrix of gSDE is of a batch; this is its marginal
    squashed = settings.get("squash_output", False)
    if squashed:
        dist.bijector.epsilon = 0.0
    wanted = dist.log_prob(torch.tanh(before) if squashed else before)
    assert described.family == ("features_squashed" if squashed else "features_gaussian")
    assert_equal(log_prob(described, obs, before), wanted)


# Off-policy -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["SAC", "TQC"])
@pytest.mark.parametrize("sde", [False, True])
def test_squashed_policies(kind: str, sde: bool, tmp_path: Path) -> None:
    model, path = made(library(kind), tmp_path, use_sde=sde, **SMALL)
    described = describe(path)
    assert described.kind == kind
    assert described.family == ("features_squashed" if sde else "state_squashed")
    assert_equal(mean(described, obs := observations(5)), predicted(model, obs))
    check_soft(model.policy, described, obs, sde)


def predicted(model: Any, obs: torch.Tensor) -> np.ndarray:
    """The library's own mean action, scaled to the environment's bounds."""
    return model.policy.unscale_action(model.policy._predict(obs, deterministic=True).numpy())


@pytest.mark.parametrize("kind", ["TD3", "DDPG"])
def test_deterministic_policies_take_the_users_std(kind: str, tmp_path: Path) -> None:
    model, path = made(getattr(sb3, kind), tmp_path, **SMALL)
    described = describe(path)
    assert described.std is None
    assert described.family == "squashed"
    assert "--std" in " ".join(described.notes)
    assert_equal(mean(described, obs := observations(5)), predicted(model, obs))
    given = describe(path, Options(std=0.2)).std
    assert given.link == "identity"
    assert np.allclose(given.raw, 0.2)


def test_an_option_that_a_file_has_no_use_for_is_refused(tmp_path: Path) -> None:
    _, path = made(sb3.PPO, tmp_path, n_steps=8, batch_size=8)
    for word, value in (("std", 0.2), ("temperature", 0.1), ("file_activation", "tanh")):
        with pytest.raises(UsageError, match=f"or needs none: leave --{word.replace('_', '-')} out"):
            read_policy(path, Options(**{word: value}))


@pytest.mark.parametrize("kind", ["DQN", "QRDQN"])
def test_values_become_a_boltzmann_policy(kind: str, tmp_path: Path) -> None:
    model, path = made(library(kind), tmp_path, "choice", **SMALL)
    with pytest.raises(UsageError, match="--temperature"):
        describe(path)
    assert inspect(path)["missing"] == "the environment (--env), a temperature (--temperature)"
    assert inspect(path, Options(temperature=0.05))["missing"] == "the environment (--env)"
    described, obs = describe(path, Options(temperature=0.05)), observations(5)
    q = model.q_net(obs) if kind == "DQN" else model.quantile_net(obs).mean(1)
    assert_scored(described, obs, torch.distributions.Categorical(logits=q / 0.05))


@pytest.mark.parametrize("policy", ["MlpPolicy", "LinearPolicy"])
def test_searched_policies_have_no_std(policy: str, tmp_path: Path) -> None:
    model, path = made(contrib("ARS"), tmp_path, policy=policy)
    described, obs = describe(path), observations(5)
    assert (described.kind, described.std) == ("ARS", None)
    assert described.squashed == bool(described.actor.hidden) == (policy == "MlpPolicy")
    wanted, _ = model.predict(obs.numpy())  # unscaled where the policy squashes, else cut to the bounds
    assert_equal(mean(described, obs), wanted)


# VecNormalize ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "file", ["model.vecnormalize.pkl", "vec_normalize.pkl", "model/vecnormalize.pkl", "elsewhere/statistics.pkl"]
)
def test_vecnormalize_is_found_beside_the_zip_or_named(file: str, tmp_path: Path) -> None:
    model, path, envs = with_statistics(tmp_path, file)
    elsewhere = file.startswith("elsewhere")
    if elsewhere:
        with pytest.raises(UsageError, match=r"trained with VecNormalize.*--vecnormalize.*, where rewards alone"):
            describe(path)
        assert describe(path, Options(vecnormalize="none")).normalizer is None
    described = describe(path, Options(vecnormalize=str(tmp_path / file)) if elsewhere else Options())
    obs = observations(5, 4.0)
    normalized = torch.as_tensor(envs.normalize_obs(obs.numpy()))
    assert float(normalized.abs().max()) == 2.5
    assert_scored(described, obs, model.policy.get_distribution(normalized))


def test_statistics_of_one_frame_hold_for_each_that_is_stacked(tmp_path: Path) -> None:
    """As the zoo wraps them: VecFrameStack around VecNormalize."""
    (tmp_path / "one").mkdir()
    _, _, envs = with_statistics(tmp_path / "one", "seen.pkl")
    model, path = made(sb3.PPO, tmp_path, seen=spaces.Box(-np.inf, np.inf, (15,)))
    described, obs = describe(path, Options(vecnormalize=str(tmp_path / "one" / "seen.pkl"))), observations(15, 4.0)
    assert "seen.pkl has statistics of one frame, which are taken for all that the policy takes" in described.notes
    frames = [torch.as_tensor(envs.normalize_obs(frame.numpy())) for frame in obs.split(5, 1)]
    assert_scored(described, obs, model.policy.get_distribution(torch.cat(frames, 1)).distribution)


def test_a_dict_of_observations_is_its_groups_side_by_side_and_normalized(tmp_path: Path) -> None:
    seen = spaces.Dict({"b": spaces.Box(-9, 9, (2,)), "a": spaces.Box(-1, 1, (3,))})
    model, path, envs = with_statistics(tmp_path, "vecnormalize.pkl", seen)
    described, obs = describe(path), observations(5, 4.0)
    assert described.groups == (("a", 3), ("b", 2))
    split = {"a": obs[:, :3].numpy(), "b": obs[:, 3:].numpy()}
    groups = {key: torch.as_tensor(x) for key, x in envs.normalize_obs(split).items()}
    assert_scored(described, obs, model.policy.get_distribution(groups))


def test_of_a_dict_some_parts_may_be_normalized_where_nothing_is_clipped(tmp_path: Path) -> None:
    seen = spaces.Dict({"a": spaces.Box(-9, 9, (3,)), "b": spaces.Box(-9, 9, (2,)), "c": spaces.Box(-9, 9, (1,))})
    keys, file = {"norm_obs_keys": ["b"]}, "vecnormalize.pkl"
    model, path, envs = with_statistics(tmp_path, file, seen, clip_obs=np.inf, **keys)
    described, obs = describe(path), observations(6, 4.0)
    assert described.notes == (f"observations are normalized by {file}",)
    split = dict(zip("abc", (part.numpy() for part in obs.split([3, 2, 1], 1)), strict=True))
    groups = {key: torch.as_tensor(x) for key, x in envs.normalize_obs(split).items()}
    assert_scored(described, obs, model.policy.get_distribution(groups))
    _, path, _ = with_statistics(tmp_path, file, seen, **keys)
    with pytest.raises(UsageError, match="does not normalize a, c, and a copy would clip it to 2.5, too: export"):
        describe(path)


def test_rewards_alone_may_be_normalized(tmp_path: Path) -> None:
    _, path, _ = with_statistics(tmp_path, "vecnormalize.pkl", norm_obs=False)
    assert describe(path).normalizer is None
    assert describe(path).notes == ("observations are not normalized, as it says in vecnormalize.pkl",)


def test_statistics_in_place_of_a_policy_and_of_another_size_are_told_as_such(tmp_path: Path) -> None:
    _, path, _ = with_statistics(tmp_path, "vecnormalize.pkl")
    with pytest.raises(FileError, match="holds no policy, but VecNormalize's statistics: .* by --vecnormalize"):
        describe(tmp_path / "vecnormalize.pkl")
    np.savez(tmp_path / "other.npz", mean=np.zeros(4), var=np.ones(4))
    with pytest.raises(FileError, match="other.npz has statistics of 4 numbers, and the policy takes 5"):
        describe(path, Options(vecnormalize=str(tmp_path / "other.npz")))


@pytest.mark.parametrize("normalizes", [True, False])
def test_statistics_of_another_training_beside_an_off_policy_zip_are_refused(normalizes: bool, tmp_path: Path) -> None:
    """On the last observation that a zip keeps raw and as seen, its own statistics agree."""

    class Far(Still):
        """Shows what no standardizing leaves as it is."""

        def step(self, action: Any) -> Any:
            return self.np_random.normal(5.0, 2.0, 5).astype(np.float32), 0.0, False, False, {}

    envs = VecNormalize(DummyVecEnv([Far])) if normalizes else DummyVecEnv([Far])
    model = sb3.SAC("MlpPolicy", envs, device="cpu", seed=0, **SMALL)
    with torch.enable_grad():
        model.learn(8)
    model.save(tmp_path / "sac.zip")
    if normalizes:
        envs.save(str(tmp_path / "vecnormalize.pkl"))
        assert np.array_equal(describe(tmp_path / "sac.zip").normalizer.shift, envs.obs_rms.mean)
    other = VecNormalize(DummyVecEnv([Far]))
    other.obs_rms.mean[:] = 1.0
    other.save(str(tmp_path / "vecnormalize.pkl"))
    with pytest.raises(UsageError, match="is of another training"):
        describe(tmp_path / "sac.zip")
    assert describe(tmp_path / "sac.zip", Options(vecnormalize="none")).normalizer is None
    assert describe(tmp_path / "sac.zip", Options(vecnormalize=str(tmp_path / "vecnormalize.pkl"))).normalizer.shift[0]


# Bad input ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["data", "policy"])
def test_damaged_entries_are_one_sentence(name: str, tmp_path: Path) -> None:
    _, path = made(sb3.PPO, tmp_path)
    with pytest.raises(FileError, match="damaged|no file that PyTorch wrote"):
        describe(rewritten(path, tmp_path / "bad.zip", **{name: b"\x80\x04nonsense"}))
