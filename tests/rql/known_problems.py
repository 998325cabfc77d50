"""What the tests of Residual Q-learning share: problems whose answers are known, and small priors."""

import math
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from shaken import shaken

pytest.importorskip("stable_baselines3")

from repolicy.exact import MDP
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.normalizer import moment_sums
from repolicy.policies.policy import Policy, PolicySpec


class Walk(gymnasium.Env[Any, Any]):
    """An endless process of three states, seen one-hot: where one goes and what one gets are certain."""

    observation_space: Any = spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space: Any = spaces.Discrete(2)
    goes = np.array([[1, 2], [2, 0], [0, 1]])
    basic = np.array([[1.0, 0.0], [0.2, 0.5], [-0.3, 0.4]])
    addon = np.array([[0.0, 0.6], [0.3, -0.4], [0.5, 0.1]])
    discount = 0.6

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state = int(self.np_random.integers(3))
        return np.eye(3, dtype=np.float32)[self.state], {}

    def step(self, action: Any) -> Any:
        at = self.state, int(action)
        self.state = int(self.goes[at])
        cut = bool(self.np_random.random() < 0.1)  # a time limit, of which the value knows nothing
        seen = np.eye(3, dtype=np.float32)[self.state]
        return seen, float(self.basic[at]), False, cut, {"addon_reward": float(self.addon[at])}

    @classmethod
    def process(cls) -> MDP:
        goes = np.eye(3)[cls.goes].tolist()
        return MDP(goes, cls.basic.tolist(), [1 / 3] * 3, cls.discount, addon=cls.addon.tolist())


def add_on(observations: Any, actions: Any, next_observations: Any, info: Any) -> Any:
    """The add-on of `Walk`, as a function of batches instead of what the environment tells."""
    at = observations.argmax(-1), actions[..., 0]  # whole numbers
    assert (next_observations.argmax(-1) == Walk.goes[at]).all()
    assert info["addon_reward"].shape == observations.shape[:-1]
    return Walk.addon[at]


def upright(observations: Any, actions: Any, next_observations: Any, info: Any) -> Any:
    """A wish for `Pendulum-v1`."""
    return next_observations[..., 0]


class WithoutReward(Walk):
    """The same, its basic reward being nobody's business."""

    basic = np.full((3, 2), np.nan)


class Bounded(gymnasium.Env[Any, Any]):
    """One number to see and one to choose between −2 and 6."""

    observation_space: Any = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space: Any = spaces.Box(-2.0, 6.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 1).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        seen = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return seen, 0.0, False, bool(self.np_random.random() < 0.1), {"addon_reward": float(action[0])}


class Picture(gymnasium.ObservationWrapper[Any, Any, Any]):
    """The same as an image, whose lighter corner tells the state."""

    observation_space: Any = spaces.Box(0, 255, (3, 4, 2), np.uint8)

    def observation(self, observation: Any) -> Any:
        image = np.zeros((3, 4, 2), np.uint8)
        image[:, 1, 0] = 200 * observation
        return image


class Table:
    """Log-probabilities `[S, A]` of one-hot states: anything with `log_prob` is a prior."""

    def __init__(self, log_probs: torch.Tensor) -> None:
        self.log_probs = log_probs.float()

    def log_prob(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return self.log_probs[observations.argmax(-1), actions[..., 0].long()]


def wild_prior(**changes: Any) -> Policy:
    """A prior with weights of its own and a normalizer that has seen something."""
    spec = PolicySpec(3, ActionSpace("discrete", (2,)), "categorical", hidden=(8, 5), activation="relu")
    policy = shaken(Policy(replace(spec, **changes)), by=0.5)
    policy.normalizer.update(moment_sums(np.random.default_rng(0).normal(0.5, 0.4, (100, 3)).astype(np.float32)))
    return policy


ACTIONS = ActionSpace("continuous", (1,), (-2.0,), (6.0,))


def constant(mean: float, std: float, family: Any = "state_squashed", actions: ActionSpace = ACTIONS) -> Policy:
    """A policy that does the same everywhere."""
    policy = Policy(PolicySpec(1, actions, family, hidden=(4,), activation="relu", min_std=0.0))
    with torch.no_grad():
        policy.network.weights[-1].zero_()
        policy.network.biases[-1].copy_(torch.tensor([mean, math.log(std)]).repeat_interleave(actions.width))
    return policy
