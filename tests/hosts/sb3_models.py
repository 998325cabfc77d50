"""A small environment, and models of Stable-Baselines3 that train in it in a moment."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

from repolicy.hosts.sb3 import ResidualPPO


class Drift(gymnasium.Env[Any, Any]):
    """A state that drifts and is pushed; numbers, images or both; numbers or choices as actions."""

    def __init__(self, sees: str = "numbers", acts: str = "numbers", nan_after: int = 10**9) -> None:
        numbers, image = spaces.Box(-9.0, 9.0, (3,), np.float64), spaces.Box(0, 255, (1, 36, 36), np.uint8)
        self.observation_space = {
            "numbers": numbers,
            "images": image,
            "both": spaces.Dict({"numbers": numbers, "image": image}),
        }[sees]
        self.action_space = {
            "numbers": spaces.Box(-1.0, 1.0, (2,), np.float32),
            "choice": spaces.Discrete(3),
            "from 1": spaces.Discrete(3, start=1),
            "choices": spaces.MultiDiscrete([2, 3]),
            "switches": spaces.MultiBinary(2),
        }[acts]
        self.sees = sees

    def seen(self) -> Any:
        image = np.full((1, 36, 36), int(40 + 5 * self.state[0]), np.uint8)
        return {"numbers": self.state, "images": image, "both": {"numbers": self.state, "image": image}}[self.sees]

    def reset(self, **options: Any) -> Any:
        super().reset(seed=options.get("seed"))
        self.state, self.time = self.np_random.normal(size=3), 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        push = float(np.sum(action)) if np.ndim(action) else float(action)
        self.state = np.clip(0.9 * self.state + 0.1 * push + 0.1 * self.np_random.normal(size=3), -9, 9)
        self.time += 1
        ended = bool(np.abs(self.state).max() > 2.5)
        return self.seen(), -float(np.square(self.state).sum()), ended, self.time >= 9 and not ended, {}


def envs() -> DummyVecEnv:
    return DummyVecEnv([Drift] * 4)


def model(algorithm: type[PPO] = ResidualPPO, env: Any = None, policy: str = "MlpPolicy", **options: Any) -> Any:
    small = {"n_steps": 8, "batch_size": 16, "n_epochs": 2, "seed": 0, "device": "cpu"}
    made = env if env is not None else envs()
    return algorithm(policy, made, **small | options)


def trained(env: Any = None, policy: str = "MlpPolicy", **options: Any) -> Any:
    """A model of Stable-Baselines3's own that has moved from where it began."""
    return model(PPO, env, policy, seed=1, **options).learn(64)


def residual(**options: Any) -> Any:
    return model(**{"omega": 0.3, "alpha": 0.2, "critic_warmup": 0, "learning_rate": 3e-4} | options)


def rollout(of: Any) -> tuple[np.ndarray, np.ndarray]:
    """One rollout, as `learn` makes it: its rewards before they changed, and after."""
    _, callback = of._setup_learn(32)
    before: list[np.ndarray] = []
    change = of._reformulated

    def noted(buffer: Any) -> np.ndarray:
        before.append(buffer.rewards.copy())
        return change(buffer)

    of._reformulated = noted
    of.collect_rollouts(of.env, callback, of.rollout_buffer, of.n_steps)
    return before[0], of.rollout_buffer.rewards


def kl_of(of: Any) -> float:
    """KL(policy ‖ prior) of the last rollout."""
    return float(of.method.spending[0]["prior_kl"])
