"""A walk, and decoders that turn noise into its actions."""

import gymnasium
import numpy as np

from repolicy.runs.settings import Settings

HERE = "noise_worlds"
MATRIX = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)
FEW = Settings(
    steps=256, envs=8, n_steps=16, minibatch=64, epochs=1, checkpoint_every=1, ranks=1, evaluation_episodes=2
)


class Walk(gymnasium.Env):
    """x ← x + a. An episode ends where |x| is above 3, and is cut after 7 steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.normal(size=2), 0
        return self.place.astype(np.float32), {}

    def step(self, action):
        self.place, self.steps = self.place + action, self.steps + 1
        fallen = bool(np.abs(self.place).max() > 3.0)
        return self.place.astype(np.float32), float(self.place.sum()), fallen, self.steps >= 7, {"first": self.place[0]}


def same(observations, noise):
    return noise


def one(observations, noise):
    return 0.1 * observations.sum(1, keepdims=True) + noise


def three(observations, noise):
    return 0.3 * observations.repeat(3, 1) + noise @ MATRIX


class Telling:
    """A decoder that tells its sizes itself."""

    noise_size, chunk = 2, 3

    @staticmethod
    def decode(observations, noise):
        return three(observations, noise)


def at_random(observations, noise):
    return noise + np.random.default_rng().standard_normal(noise.shape)


def turned(observations, noise):
    return np.concatenate([noise, noise]).T


def deaf(observations, noise):
    return observations


def broken(observations, noise):
    return noise * np.nan


def right(observations, actions, next_observations, info):
    return actions[:, 0] + info["first"]


right.metric = lambda observations, actions, next_observations, info: actions[:, 1]
WALK, RIGHT = f"{HERE}:Walk", f"{HERE}:right"


def named(decoder: str, noise: int = 2, chunk: int = 1) -> str:
    return f"{WALK}?decoder={HERE}:{decoder}&noise={noise}&chunk={chunk}"


class Falling(Walk):
    """Episodes of four steps, the last of which is a fall."""

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        fell = self.steps == 4
        return np.zeros(2, np.float32), 0.0, fell, False, {"fell": float(fell)}


class Spot(Walk):
    """Nothing is seen, and every step is an episode."""

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, True, False, {}

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}


SKEWED, AIM, COST = np.array([[1.0, 0.5], [0.0, 2.0]], np.float32), np.array([1.5, -1.0]), np.diag([2.0, 0.5])


def skewed(observations, noise):
    return noise @ SKEWED.T


def near(observations, actions, next_observations, info):
    return -0.5 * np.einsum("bi,ij,bj->b", actions - AIM, COST, actions - AIM)


def first(observations, actions, next_observations, info):
    return actions[:, 0]
