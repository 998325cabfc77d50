"""Zips as older versions of Stable-Baselines3 and sb3-contrib wrote them.

A model of today is saved, and its tensors and settings are put into the old layout.
"""

import base64
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparing import assert_equal, assert_scored, describe, mean, observations
from gymnasium import spaces
from made_sb3 import SMALL, contrib, made, rewritten, sb3, with_statistics

from repolicy.cli.inspection import inspect
from repolicy.errors import UsageError
from repolicy.readers.described import CannotCopyError
from repolicy.readers.reading import Options


def aged(path: Path, name: str, renamed: dict[str, str], **data: Any) -> Path:
    """The zip with other names of tensors and other entries of its data; an entry that is None is left out."""
    with zipfile.ZipFile(path) as archive:
        state = torch.load(io.BytesIO(archive.read("policy.pth")), weights_only=True)
        kept = {key: value for key, value in (json.loads(archive.read("data")) | data).items() if value is not None}
    buffer = io.BytesIO()
    torch.save({renamed.get(key, key): tensor for key, tensor in state.items()}, buffer)
    return rewritten(path, path.with_name(name), data=json.dumps(kept).encode(), policy=buffer.getvalue())


def pickled(thing: Any) -> dict[str, str]:
    return {":serialized:": base64.b64encode(pickle.dumps(thing)).decode()}


ONE_LAYER = {"action_net.0.weight": "action_net.weight", "action_net.0.bias": "action_net.bias"}


@pytest.mark.parametrize("with_bias", [False, True])
def test_the_linear_policy_of_ars_in_sb3_contrib_1_has_a_layer_without_a_number(
    with_bias: bool, tmp_path: Path
) -> None:
    settings = {"policy": "LinearPolicy", "policy_kwargs": {"with_bias": with_bias}}
    model, path = made(contrib("ARS"), tmp_path, **settings)
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
    with torch.no_grad():
        boltzmann = torch.distributions.Categorical(logits=model.policy.action_net(obs) / 0.5)
    assert_scored(describe(old, Options(temperature=0.5)), obs, boltzmann)


@pytest.mark.parametrize("actions", ["box", "choice"])
def test_an_actor_critic_without_hidden_layers_is_none_of_ars(actions: str, tmp_path: Path) -> None:
    model, path = made(sb3.PPO, tmp_path, actions, policy_kwargs={"net_arch": []})
    described = describe(path)
    assert described.kind == "PPO"
    obs = observations(5)
    with torch.no_grad():
        assert_scored(described, obs, model.policy.get_distribution(obs))


# HER before 1.1 -------------------------------------------------------------------------------------------------------


def of_goals(folder: Path) -> Path:
    """A SAC on five numbers beside statistics of a Dict, as HER left them when it was an algorithm of its own."""
    parts = {"achieved_goal": 2, "desired_goal": 2, "observation": 3}
    seen = spaces.Dict({key: spaces.Box(-9, 9, (size,)) for key, size in parts.items()})
    with_statistics(folder, "vecnormalize.pkl", seen)
    _, path = made(sb3.SAC, folder, **SMALL)
    return aged(path, "old.zip", {}, goal_selection_strategy=pickled("future"))


def test_hers_statistics_of_a_dict_are_those_of_observation_and_desired_goal(tmp_path: Path) -> None:
    old = of_goals(tmp_path)
    described = describe(old)
    statistics = pickle.loads((tmp_path / "vecnormalize.pkl").read_bytes()).obs_rms
    wanted = np.concatenate([statistics[key].mean for key in ("observation", "desired_goal")])
    assert described.normalizer is not None
    assert np.array_equal(described.normalizer.shift, wanted)
    assert "?observe=observation,desired_goal" in inspect(old)["notes"]


def test_other_statistics_of_a_dict_do_not_fit_a_row_of_numbers(tmp_path: Path) -> None:
    of_goals(tmp_path)
    with pytest.raises(UsageError, match=r"normalizes a Dict \(achieved_goal, desired_goal, observation\), and the "):
        describe(tmp_path / "model.zip")


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


@pytest.mark.parametrize("place", ["model", ".", "Still-v0"])
def test_the_zoos_settings_name_the_wrapper_that_adds_the_time(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "Still-v0_1"
    (folder / place).mkdir(parents=True)
    _, path = made(sb3.PPO, folder)
    assert "TimeFeatureWrapper" not in inspect(path)["notes"]
    (folder / place / "config.yml").write_text("- - env_wrapper\n  - sb3_contrib.common.wrappers.TimeFeatureWrapper\n")
    assert "the time that is left, must be the last one" in inspect(path)["notes"]
