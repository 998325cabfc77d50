"""Robots that do not do what their MuJoCo model alone would do, and one that does."""

import gymnasium
import numpy as np
from gymnasium.envs.mujoco.hopper_v4 import HopperEnv


class Weak(gymnasium.ActionWrapper):
    def action(self, action):
        return np.clip(action, -0.3, 0.3)


class WeakHopper(HopperEnv):
    def step(self, action):
        return super().step(np.clip(action, -0.3, 0.3))


class DeadHopper(HopperEnv):
    """Its motors do not notice little."""

    def step(self, action):
        return super().step(np.where(np.abs(action) > 0.09, action, 0.0))


class StoppingHopper(HopperEnv):
    """It ends far from where it began, which it does not show."""

    def step(self, action):
        seen, reward, terminated, truncated, info = super().step(action)
        return seen, reward, bool(terminated or abs(self.data.qpos[0]) > 0.1), truncated, info


class Paid(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 2.0 * reward


def wrapped(**options):
    return Weak(gymnasium.make("HalfCheetah-v4", **options))


def paid(**options):
    return Paid(gymnasium.make("HalfCheetah-v4", **options))
