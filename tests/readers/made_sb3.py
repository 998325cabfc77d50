"""Models of Stable-Baselines3 to read."""

import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from comparing import assert_equal, log_prob, stirred
from gymnasium import spaces

from repolicy.readers.description import PolicyDescription

sb3 = pytest.importorskip("stable_baselines3")
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize  # noqa: E402

LOW, HIGH = np.array([-2.0, -1.0, 0.5], np.float32), np.array([1.0, 3.0, 2.5], np.float32)
SPACES = {
    "box": spaces.Box(LOW, HIGH),
    "choice": spaces.Discrete(4),
    "choices": spaces.MultiDiscrete([2, 3, 4]),
    "switches": spaces.MultiBinary(3),
}
SMALL: dict[str, Any] = {"learning_starts": 1, "buffer_size": 10}


class Still(gymnasium.Env[Any, Any]):
    """Nothing ever happens; only its spaces matter."""

    def __init__(self, actions: str = "box", seen: spaces.Space[Any] | None = None) -> None:
        self.observation_space: Any = seen or spaces.Box(-np.inf, np.inf, (5,), np.float64)
        self.action_space = SPACES[actions]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


def made(kind: Any, path: Path, actions: str = "box", seen: Any = None, **settings: Any) -> tuple[Any, Path]:
    """A model with random parameters, and its zip."""
    model = kind(settings.pop("policy", "MlpPolicy"), Still(actions, seen), device="cpu", seed=0, **settings)
    stirred(model.policy)
    model.save(path / "model.zip")
    model.policy.set_training_mode(False)
    return model, path / "model.zip"


def contrib(name: str) -> Any:
    return getattr(pytest.importorskip("sb3_contrib"), name)


def check_soft(policy: Any, described: PolicyDescription, obs: torch.Tensor, sde: bool = False) -> None:
    """Stable-Baselines3 adds 1e-6 inside of the Jacobian's logarithm, which is no probability: it is taken out here.

    Its stds go down to e⁻²⁰, where single precision has no digits left, so its actor computes in double precision.
    """
    actor = policy.actor.double()
    actor.extract_features = lambda obs, _: obs
    mu, log_std, extra = actor.get_action_dist_params(obs.double())
    dist = actor.action_dist.proba_distribution(mu, log_std, **extra)
    before = dist.distribution.sample().clamp(-5.0, 5.0)  # beyond, 1 − tanh² of theirs has no digits left
    if sde:
        dist.bijector.epsilon = 0.0
        wanted = dist.log_prob(torch.tanh(before))
    else:
        dist.epsilon = 0.0
        wanted = dist.log_prob(torch.tanh(before), before)
    assert_equal(log_prob(described, obs, before), wanted)


def with_statistics(folder: Path, file: str, seen: Any = None, **settings: Any) -> tuple[Any, Path, VecNormalize]:
    """A PPO that learned a little under VecNormalize, whose statistics lie in `file`."""
    inner = DummyVecEnv([lambda: Still(seen=seen)])
    envs = VecNormalize(inner, **{"clip_obs": 2.5, "epsilon": 0.1} | settings)
    policy = "MultiInputPolicy" if isinstance(seen, spaces.Dict) else "MlpPolicy"
    model = sb3.PPO(policy, envs, n_steps=8, batch_size=8, n_epochs=1, device="cpu", seed=0)
    with torch.enable_grad():
        model.learn(8)
    model.save(folder / "model.zip")
    (folder / file).parent.mkdir(exist_ok=True)
    envs.save(str(folder / file))
    return model, folder / "model.zip", envs


def rewritten(path: Path, to: Path, **entries: bytes) -> Path:
    """The same zip with some of its entries replaced."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(to, "w") as new:
        for name in old.namelist():
            new.writestr(name, entries.get(name.split(".")[0], old.read(name)))
    return to
