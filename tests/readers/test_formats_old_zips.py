"""Zips as older versions of Stable-Baselines3 and sb3-contrib wrote them.

A model of today is saved, and its tensors and settings are put into the old layout.
"""

import base64
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparing import COUNT, assert_equal, assert_scored, describe, log_prob, mean, observations
from gymnasium import spaces
from made_sb3 import SMALL, Still, check_soft, contrib, made, rewritten, sb3, with_statistics
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.sac.policies import SACPolicy

from repolicy.cli.inspection import inspect
from repolicy.errors import UsageError
from repolicy.readers.description import CannotCopyError
from repolicy.readers.pickles import read_pickle
from repolicy.readers.reading import Options


def aged(path: Path, name: str, renamed: dict[str, str], **data: Any) -> Path:
    """The zip with other names of tensors and other entries of its data; an entry that is None is left out."""
    with zipfile.ZipFile(path) as archive:
        state = torch.load(io.BytesIO(archive.read("policy.pth")), weights_only=True)
        kept = {key: value for key, value in (json.loads(archive.read("data")) | data).items() if value is not None}
    buffer = io.BytesIO()
    torch.save({renamed.get(key, key): tensor for key, tensor in state.items()}, buffer)
    return rewritten(path, path.with_name(name), data=json.dumps(kept).encode(), policy=buffer.getvalue())


ONE_LAYER = {"action_net.0.weight": "action_net.weight", "action_net.0.bias": "action_net.bias"}


@pytest.mark.parametrize("with_bias", [False, True])
def test_the_linear_policy_of_ars_in_sb3_contrib_1_has_no_number(with_bias: bool, tmp_path: Path) -> None:
    bias = {"with_bias": with_bias}
    model, path = made(contrib("ARS"), tmp_path, policy="LinearPolicy", policy_kwargs=bias)
    described = describe(aged(path, "old.zip", ONE_LAYER))
    assert (described.kind, described.family, described.std) == ("ARS", "gaussian", None)
    assert (described.squashed, described.clips, described.actor.hidden) == (False, True, ())
    obs = observations(5)
    assert_equal(mean(described, obs), model.predict(obs.numpy())[0])
    assert inspect(path.with_name("old.zip"))["network"] == "one linear layer"


def test_its_choices_need_a_temperature(tmp_path: Path) -> None:
    model, path = made(contrib("ARS"), tmp_path, "choice", policy="LinearPolicy")
    old = aged(path, "old.zip", ONE_LAYER)
    with pytest.raises(UsageError, match="--temperature"):
        describe(old)
    obs = observations(5)
    boltzmann = torch.distributions.Categorical(logits=model.policy.action_net(obs) / 0.5)
    assert_scored(describe(old, Options(temperature=0.5)), obs, boltzmann)


@pytest.mark.parametrize("actions", ["box", "choice"])
def test_an_actor_critic_without_hidden_layers_is_none_of_ars(actions: str, tmp_path: Path) -> None:
    model, path = made(sb3.PPO, tmp_path, actions, policy_kwargs={"net_arch": []})
    described, obs = describe(path), observations(5)
    assert described.kind == "PPO"
    assert_scored(described, obs, model.policy.get_distribution(obs))


def test_statistics_of_a_dict_do_not_fit_a_row_of_numbers(tmp_path: Path) -> None:
    parts = {"achieved_goal": 2, "desired_goal": 2, "observation": 3}
    seen = spaces.Dict({key: spaces.Box(-9, 9, (size,)) for key, size in parts.items()})
    with_statistics(tmp_path, "vecnormalize.pkl", seen)
    _, path = made(sb3.SAC, tmp_path, **SMALL)
    with pytest.raises(UsageError, match=r"normalizes a Dict \(achieved_goal, desired_goal, observation\), and the "):
        describe(path)


# What is not theirs, and what stands beside ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name", ["stable_baselines3.pdqn.policies.PDQNPolicy", "stable_baselines3.common.policies.TransformerPolicy"]
)
def test_a_forks_class_in_the_librarys_own_module_is_not_theirs(name: str, tmp_path: Path) -> None:
    _, path = made(sb3.PPO, tmp_path)
    module, _, last = name.rpartition(".")
    forked = {":serialized:": base64.b64encode(f"c{module}\n{last}\n.".encode()).decode()}
    with pytest.raises(CannotCopyError, match=f"its policy is {name}, and what that computes is not in the file"):
        describe(aged(path, "fork.zip", {}, policy_class=forked))


def normalized(path: Path, obs: np.ndarray) -> np.ndarray:
    """By VecNormalize's own code, with the statistics of a file."""
    kept = read_pickle(path.read_bytes(), "statistics").state
    envs = VecNormalize(DummyVecEnv([Still]), clip_obs=kept["clip_obs"], epsilon=kept["epsilon"])
    vars(envs.obs_rms).update(kept["obs_rms"].state)
    return envs._normalize_obs(obs.astype(np.float64), envs.obs_rms)  # not in single precision


def weights(path: Path) -> dict[str, torch.Tensor]:
    content = io.BytesIO(zipfile.ZipFile(path).read("policy.pth"))
    return torch.load(content, map_location="cpu", weights_only=True)


WIDE = {"pi": [256, 256], "vf": [256, 256]}
ZOO = {
    "ppo_HalfCheetah-v3": (17, spaces.Box(-1, 1, (6,)), {"activation_fn": torch.nn.ReLU, "net_arch": WIDE}),
    "trpo_Hopper-v3": (11, spaces.Box(-1, 1, (3,)), {}),
    "a2c_Pendulum-v1": (3, spaces.Box(-2, 2, (1,)), {"use_sde": True}),
    "ppo_CartPole-v1": (4, spaces.Discrete(2), {}),
}


@pytest.fixture
def _in_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stable-Baselines3 casts what a policy sees to single precision. Here it does not: what is left is no rounding."""
    monkeypatch.setattr("stable_baselines3.common.policies.preprocess_obs", lambda seen, *_, **__: seen)


@pytest.mark.usefixtures("_in_double")
@pytest.mark.parametrize("name", ZOO)
def test_the_zoos_policies(name: str, real: Callable[[str], Path]) -> None:
    path = real(f"rl_trained_agents/{name}.zip")
    size, actions, settings = ZOO[name]
    host = ActorCriticPolicy(spaces.Box(-np.inf, np.inf, (size,)), actions, lambda _: 1e-3, **settings)
    host.load_state_dict(weights(path))
    described, obs = describe(path), observations(size, 2.0)
    statistics = path.with_name(f"{name}.vecnormalize.pkl")
    assert (described.normalizer is not None) == statistics.exists()
    inputs = torch.as_tensor(normalized(statistics, obs.numpy())) if statistics.exists() else obs
    dist = host.double().get_distribution(inputs.double())
    taken = dist.distribution.sample()
    assert_equal(log_prob(described, obs, taken.reshape(COUNT, -1)), dist.log_prob(taken))


@pytest.mark.usefixtures("_in_double")
def test_the_zoos_sac(real: Callable[[str], Path]) -> None:
    path = real("rl_trained_agents/sac_Hopper-v3.zip")
    host = SACPolicy(spaces.Box(-np.inf, np.inf, (11,)), spaces.Box(-1, 1, (3,)), lambda _: 1e-3)
    host.load_state_dict(weights(path))
    described, obs = describe(path), observations(11)
    assert_equal(mean(described, obs), host.double()._predict(obs.double(), deterministic=True))
    check_soft(host, described, obs)
