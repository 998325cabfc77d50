"""What the adapter uses of Stable-Baselines3, name by name: when a new version moves something, this says what."""

import inspect
from typing import Any

import pytest
from sb3_models import model

pytest.importorskip("stable_baselines3")
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecNormalize


def test_what_the_adapter_uses_of_stable_baselines3_is_where_it_was() -> None:
    """When a new version moves something, this says what; nothing else of it is used."""
    signatures: dict[Any, list[str]] = {
        RolloutBuffer.compute_returns_and_advantage: ["self", "last_values", "dones"],
        PPO.train: ["self"],
        PPO.save: ["self", "path", "exclude", "include"],
        PPO._setup_model: ["self"],
        PPO._excluded_save_params: ["self"],
        ActorCriticPolicy.get_distribution: ["self", "obs"],
        ActorCriticPolicy.reset_noise: ["self", "n_envs"],
        VecNormalize.unnormalize_obs: ["self", "obs"],
    }
    for function, expected in signatures.items():
        assert list(inspect.signature(function).parameters) == expected, function.__qualname__
    assert list(inspect.signature(PPO.load).parameters)[:3] == ["path", "env", "device"]
    assert list(inspect.signature(PPO.__init__).parameters)[:3] == ["self", "policy", "env"]
    assert "compute_returns_and_advantage(" in inspect.getsource(OnPolicyAlgorithm.collect_rollouts)
    assert issubclass(DictRolloutBuffer, RolloutBuffer)
    plain = model(PPO)
    assert {"rewards", "log_probs", "observations", "actions", "values"} <= vars(plain.rollout_buffer).keys()
    names = set(plain.policy.state_dict())
    assert {"log_std", "mlp_extractor.policy_net.0.weight", "mlp_extractor.value_net.0.weight"} <= names
    assert {"action_net.weight", "value_net.weight"} <= names
