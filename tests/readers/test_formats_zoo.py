"""The zoo's files, written by Stable-Baselines3 1.0 to 2.4 with old gym."""

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparing import COUNT, assert_equal, describe, log_prob, mean, observations
from gymnasium import spaces
from made_sb3 import Still, check_soft

sb3 = pytest.importorskip("stable_baselines3")
from stable_baselines3.common.policies import ActorCriticPolicy  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize  # noqa: E402
from stable_baselines3.sac.policies import SACPolicy  # noqa: E402


class _Bare(pickle.Unpickler):
    """The test's own reading of a file of known contents: NumPy's names as they are, all others empty."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy":
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        return type(name, (), {})


def normalized(path: Path, obs: np.ndarray) -> np.ndarray:
    """By VecNormalize's own code, with the statistics of a file."""
    kept = _Bare(io.BytesIO(path.read_bytes())).load()
    envs = VecNormalize(DummyVecEnv([Still]), clip_obs=kept.clip_obs, epsilon=kept.epsilon)
    envs.obs_rms.mean, envs.obs_rms.var = kept.obs_rms.mean, kept.obs_rms.var
    return envs._normalize_obs(obs.astype(np.float64), envs.obs_rms)  # not in single precision


def weights(path: Path) -> dict[str, torch.Tensor]:
    content = io.BytesIO(zipfile.ZipFile(path).read("policy.pth"))
    return torch.load(content, map_location="cpu", weights_only=True)


ZOO = {
    "ppo_HalfCheetah-v3": (17, spaces.Box(-1, 1, (6,)), {"activation_fn": torch.nn.ReLU, "net_arch": [256, 256]}),
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
    if isinstance(settings.get("net_arch"), list):
        settings = settings | {"net_arch": {"pi": settings["net_arch"], "vf": settings["net_arch"]}}
    host = ActorCriticPolicy(spaces.Box(-np.inf, np.inf, (size,)), actions, lambda _: 1e-3, **settings)
    host.load_state_dict(weights(path))
    described = describe(path)
    obs = observations(size, 2.0)
    statistics = path.with_name(f"{name}.vecnormalize.pkl")
    assert (described.normalizer is not None) == statistics.exists()
    inputs = torch.as_tensor(normalized(statistics, obs.numpy())) if statistics.exists() else obs
    with torch.no_grad():
        dist = host.double().get_distribution(inputs.double())
        taken = dist.distribution.sample()
        assert_equal(log_prob(described, obs, taken.reshape(COUNT, -1)), dist.log_prob(taken))


@pytest.mark.usefixtures("_in_double")
def test_the_zoos_sac(real: Callable[[str], Path]) -> None:
    path = real("rl_trained_agents/sac_Hopper-v3.zip")
    host = SACPolicy(spaces.Box(-np.inf, np.inf, (11,)), spaces.Box(-1, 1, (3,)), lambda _: 1e-3)
    host.load_state_dict(weights(path))
    described = describe(path)
    obs = observations(11)
    with torch.no_grad():
        assert_equal(mean(described, obs), host.double()._predict(obs.double(), deterministic=True))
    check_soft(host, described, obs)
