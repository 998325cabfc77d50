"""What the adapters use of their hosts, name by name: when a new version moves something, this says what."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest


def assert_takes(signatures: dict[Callable[..., Any], str]) -> None:
    """The functions' parameters; after `...` there may be others."""
    for function, expected in signatures.items():
        found, (names, more, _) = " ".join(inspect.signature(function).parameters), expected.partition(" ...")
        assert found.startswith(names) if more else found == names, function.__qualname__


def test_what_the_adapter_uses_of_rsl_rl_is_where_it_was() -> None:
    pytest.importorskip("rsl_rl")
    from rsl_rl.algorithms import PPO
    from rsl_rl.models import CNNModel, MLPModel, RNNModel
    from rsl_rl.modules import EmpiricalNormalization, GaussianDistribution
    from rsl_rl.storage import RolloutStorage
    from runners import runner

    assert_takes(
        {
            PPO.__init__: "self actor critic storage ...",
            PPO.act: "self obs",
            PPO.process_env_step: "self obs rewards dones extras",
            PPO.update: "self",
            PPO.save: "self",
            PPO.load: "self loaded_dict load_cfg strict",
            PPO.get_policy: "self",
            PPO.construct_algorithm: "obs env cfg device",
            MLPModel.get_latent: "self obs masks hidden_state",
            MLPModel.get_output_log_prob: "self outputs",
            RNNModel.reset: "self dones hidden_state",
            EmpiricalNormalization.__init__: "self shape eps until",
        }
    )
    plain = runner().alg
    names = {"mlp.0.weight", "distribution.std_param", "obs_normalizer._mean", "obs_normalizer._std"}
    assert names <= set(plain.actor.state_dict())
    assert {"actions_log_prob", "rewards", "values"} <= vars(RolloutStorage.Transition()).keys()
    assert {"schedule", "is_multi_gpu", "device", "transition", "storage"} <= vars(plain).keys()
    assert issubclass(CNNModel, MLPModel)
    assert hasattr(GaussianDistribution(1), "std_type")
    assert plain.actor.obs_groups == ["policy"]
    assert "if self.obs_normalization:" in inspect.getsource(MLPModel.update_normalization)


def test_what_the_adapter_uses_of_stable_baselines3_is_where_it_was() -> None:
    pytest.importorskip("stable_baselines3")
    from sb3_models import model
    from stable_baselines3 import PPO
    from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
    from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
    from stable_baselines3.common.policies import ActorCriticPolicy
    from stable_baselines3.common.vec_env import VecNormalize

    assert_takes(
        {
            RolloutBuffer.compute_returns_and_advantage: "self last_values dones",
            PPO.__init__: "self policy env ...",
            PPO.load: "path env device ...",
            PPO.train: "self",
            PPO.save: "self path exclude include",
            PPO._setup_model: "self",
            PPO._excluded_save_params: "self",
            ActorCriticPolicy.get_distribution: "self obs",
            ActorCriticPolicy.reset_noise: "self n_envs",
            VecNormalize.unnormalize_obs: "self obs",
        }
    )
    plain = model(PPO)
    names = {f"mlp_extractor.{part}_net.0.weight" for part in ("policy", "value")}
    assert names | {"log_std", "action_net.weight", "value_net.weight"} <= set(plain.policy.state_dict())
    assert {"rewards", "log_probs", "observations", "actions", "values"} <= vars(plain.rollout_buffer).keys()
    assert issubclass(DictRolloutBuffer, RolloutBuffer)
    assert "compute_returns_and_advantage(" in inspect.getsource(OnPolicyAlgorithm.collect_rollouts)
