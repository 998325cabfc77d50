"""What the adapter uses of rsl_rl, name by name: when a new version moves something, this says what."""

import inspect
from typing import Any

import pytest
from runners import runner

pytest.importorskip("rsl_rl")
from rsl_rl.algorithms import PPO
from rsl_rl.models import CNNModel, MLPModel, RNNModel
from rsl_rl.modules import EmpiricalNormalization, GaussianDistribution
from rsl_rl.storage import RolloutStorage


def test_what_the_adapter_uses_of_rsl_rl_is_where_it_was() -> None:
    """When a new version moves something, this says what; nothing else of rsl_rl is used."""
    signatures: dict[Any, list[str]] = {
        PPO.act: ["self", "obs"],
        PPO.process_env_step: ["self", "obs", "rewards", "dones", "extras"],
        PPO.update: ["self"],
        PPO.save: ["self"],
        PPO.load: ["self", "loaded_dict", "load_cfg", "strict"],
        PPO.get_policy: ["self"],
        PPO.construct_algorithm: ["obs", "env", "cfg", "device"],
        MLPModel.get_latent: ["self", "obs", "masks", "hidden_state"],
        MLPModel.get_output_log_prob: ["self", "outputs"],
        RNNModel.reset: ["self", "dones", "hidden_state"],
        EmpiricalNormalization.__init__: ["self", "shape", "eps", "until"],
    }
    for function, expected in signatures.items():
        assert list(inspect.signature(function).parameters) == expected, function.__qualname__
    assert list(inspect.signature(PPO.__init__).parameters)[:4] == ["self", "actor", "critic", "storage"]
    transition = RolloutStorage.Transition()
    assert {"actions_log_prob", "rewards", "values"} <= vars(transition).keys()
    plain = runner().alg
    assert {"schedule", "is_multi_gpu", "device", "transition", "storage"} <= vars(plain).keys()
    assert {"mlp.0.weight", "distribution.std_param", "obs_normalizer._mean", "obs_normalizer._std"} <= set(
        plain.actor.state_dict()
    )
    assert issubclass(CNNModel, MLPModel)
    assert hasattr(GaussianDistribution(1), "std_type")
    assert plain.actor.obs_groups == ["policy"]
    assert "if self.obs_normalization:" in inspect.getsource(MLPModel.update_normalization)
