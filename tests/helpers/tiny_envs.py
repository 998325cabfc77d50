"""Environments small enough to know everything about, and add-ons for them. Tests name them by `tiny("Name")`."""

import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


def tiny(name: str) -> str:
    """The environment or add-on of this file, in the form in which a user names one of their own."""
    return f"{Path(__file__)}:{name}"


class Tiny(gymnasium.Env[Any, Any]):
    """One number to see and one to choose, unless a child says otherwise."""

    observation_space: Any = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space: Any = spaces.Box(-1.0, 1.0, (1,), np.float32)


class Groups(Tiny):
    """A Dict with a part for a policy and one for a critic; episodes of one step."""

    observation_space = spaces.Dict(
        {"privileged": spaces.Box(-9.0, 9.0, (3,), np.float32), "state": spaces.Box(-9.0, 9.0, (2,), np.float32)}
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return {"privileged": np.full(3, 2.0, np.float32), "state": np.ones(2, np.float32)}, {}

    def step(self, action: Any) -> Any:
        return *self.reset()[:1], 0.0, False, True, {}


# The value of an endless environment ----------------------------------------------------------------------------------
class Endless(Tiny):
    """Reward 1 a step, and nothing else: its value is 1 / (1 − γ)."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return self._look(), 1.0, False, False, {}

    def _look(self) -> np.ndarray:
        return self.np_random.normal(size=1).astype(np.float32)


def endless_with_time_limit() -> Any:
    """The same cut every 5 steps by a time limit, which the value knows nothing of."""
    return gymnasium.wrappers.TimeLimit(Endless(), 5)


class Mortal(Endless):
    """The same, but each step is the last one with probability 0.2: its value is 1 / (1 − 0.8·γ)."""

    def step(self, action: Any) -> Any:
        return self._look(), 1.0, bool(self.np_random.random() < 0.2), False, {}


# Control with a closed form -------------------------------------------------------------------------------------------
DYNAMICS, CONTROL, STATE_COST, CONTROL_COST = 0.9, 0.5, 1.0, 0.5


class LinearQuadratic(Tiny):
    """x′ = 0.9·x + 0.5·u with the reward −(x² + 0.5·u²), from a random x, cut after 8 steps."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._x, self._t = float(self.np_random.uniform(-2.0, 2.0)), 0
        return np.array([self._x], np.float32), {}

    def step(self, action: Any) -> Any:
        u = float(action[0])
        reward = -(STATE_COST * self._x**2 + CONTROL_COST * u**2)
        self._x = DYNAMICS * self._x + CONTROL * u
        self._t += 1
        return np.array([self._x], np.float32), self.reward(reward), False, self._t == 8, {"distance": abs(self._x)}

    def reward(self, reward: float) -> float:
        return reward


class WithoutReward(LinearQuadratic):
    """The same, its reward being nobody's business."""

    def reward(self, reward: float) -> float:
        return float("nan")


class SometimesWithoutReward(LinearQuadratic):
    """The same, where a reward is NaN if the first action is negative: it depends on the policy."""

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward if action[0] >= 0.0 else float("nan"), *rest


def stay_near(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    return -np.square(next_observations[..., 0])


def constant(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    return np.zeros(len(observations))


def badly_told(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    return next_observations[..., 0]


badly_told.metric = lambda observations, actions, next_observations, info: 1.0


def far_away(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    return info["distance"]


# Episodes that one can count ------------------------------------------------------------------------------------------
class Counter(Tiny):
    """Shows (episode, step) and ends its k-th episode after 2 + k steps: odd ones terminate, even ones are cut."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self) -> None:
        self._episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._episode = 1 if seed is not None else self._episode + 1
        self._t = 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        self._t += 1
        last = self._t == 2 + self._episode
        odd = self._episode % 2 == 1
        info = {"clock": float(self._t), "action_seen": float(action[0]), "name": "counter"}
        return self._look(), 10.0 * self._episode + self._t, last and odd, last and not odd, info

    def _look(self) -> np.ndarray:
        return np.array([self._episode, self._t], np.float32)


class Both(Counter):
    """Terminates in the very step in which its time limit cuts it."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        ended = terminated or truncated
        return observation, reward, ended, ended, info


class Rare(Counter):
    """Tells some numbers in some steps only, and whole ones as whole numbers: of two environments, by turns."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._odd = self._odd if seed is None else seed % 2
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        *others, _ = super().step(action)
        cost = 0 if self._t % 2 == self._odd else 0.5
        return *others, {"cost": cost, "fast": bool(cost)} | ({"second": 7} if self._t == 2 else {})


# Spaces ---------------------------------------------------------------------------------------------------------------
class Manifold(Tiny):
    """A Dict to see, with a Dict inside, and two choices to make; pays for choosing what it shows."""

    observation_space = spaces.Dict(
        {
            "place": spaces.Box(-1.0, 1.0, (2, 2), np.float32),
            "inner": spaces.Dict({"speed": spaces.Box(-1.0, 1.0, (3,), np.float32)}),
        }
    )
    action_space = spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return self._look(), float(action[0] + 10 * action[1]), False, False, {}

    def _look(self) -> Any:
        return {
            "place": np.array([[0.1, 0.2], [0.3, 0.4]], np.float32),
            "inner": {"speed": np.array([0.5, 0.6, 0.7], np.float32)},
        }


class OddActions(Endless):
    action_space = spaces.Tuple([spaces.Discrete(2)])


class WholeNumbers(Endless):
    action_space = spaces.Box(0, 3, (2,), np.int64)


class OddObservations(Endless):
    observation_space = spaces.Discrete(4)


class NothingToSee(Endless):
    observation_space = spaces.Dict({})


class NothingToChoose(Endless):
    action_space = spaces.Box(-1.0, 1.0, (0,), np.float32)


class Unbounded(Endless):
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)


class TwoScales(Endless):
    action_space = spaces.Box(np.array([-1.0, -60.0], np.float32), np.array([1.0, 60.0], np.float32))


# Broken ones ----------------------------------------------------------------------------------------------------------
class NanObservation(Endless):
    """Fine for 10 steps of an episode, then NaN."""

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        return (observation * np.nan if self._steps > 10 else observation, *rest)


class NanReset(Endless):
    """Begins with NaN, and is fine from the first step on."""

    def reset(self, **options: Any) -> Any:
        observation, info = super().reset(**options)
        return observation * np.nan, info


class NanReward(Endless):
    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, float("nan"), *rest


class WrongShape(Endless):
    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)


class WrongShapeLater(Endless):
    """The right shape from reset, another one from step."""

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 1.0, False, False, {}


class Raises(Endless):
    """Fails in the 11th step of an episode."""

    def step(self, action: Any) -> Any:
        if self._steps == 10:
            raise ValueError("the motor is on fire")
        return super().step(action)


class CannotBeMade(Endless):
    def __init__(self) -> None:
        raise ValueError("no licence")


not_callable = 3


def first(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    return next_observations[:, 0]


def one_row(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    reward = np.zeros(len(observations))
    for n in range(len(observations)):
        reward[n] = next_observations[n, 0] + info["y_velocity"][n]
    return reward


one_row.metric = first


def wrong_shape_addon(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    return np.zeros(3)


def nan_addon(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    return np.full(observations.shape[:-1], np.nan)


class Quits(Endless):
    """Ends the program in the third step of an episode, as if all were well."""

    def step(self, action: Any) -> Any:
        if self._steps == 2:
            sys.exit(0)
        return super().step(action)


class QuitsAtOnce(Endless):
    def __init__(self) -> None:
        sys.exit(0)


def quitting_addon(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    sys.exit(0)


class OldReset(Endless):
    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0]


class NoInfo(Endless):
    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0], None


class OldStep(Endless):
    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class OddReward(Endless):
    """Pays `reward` from the second step of an episode on."""

    def __init__(self, reward: str) -> None:
        self._reward = {
            "string": "1.0", "complex": 1.0 + 2.0j, "many": np.ones(2), "none": None, "array": np.array(2.0)
        }[reward]  # fmt: skip

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, self._reward if self._steps > 1 else reward, *rest


class EndsInInfinity(Endless):
    def step(self, action: Any) -> Any:
        return np.array([np.inf], np.float32), 1.0, True, False, {}


# What is sent to an environment ---------------------------------------------------------------------------------------
ACTIONS = {
    "matrix": spaces.Box(-3.0, 5.0, (2, 3), np.float32),
    "number": spaces.Box(-3.0, 5.0, (), np.float32),
    "double": spaces.Box(-3.0, 5.0, (2,), np.float64),
    "choice": spaces.Discrete(3, start=7),
    "choices": spaces.MultiDiscrete([2, 3], start=[5, -4]),
    "switches": spaces.MultiBinary([2, 2]),
    "table": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 2], [3, 4]]),
}


class Told(Endless):
    """Takes nothing but actions of its own space in shape and type, and tells their sum; pictures show it."""

    def __init__(self, actions: str, render_mode: str | None = None) -> None:
        self.action_space, self.render_mode, self._sum = ACTIONS[actions], render_mode, 0.0

    def step(self, action: Any) -> Any:
        assert np.shape(action) == self.action_space.shape, np.shape(action)
        assert np.asarray(action).dtype == self.action_space.dtype, np.asarray(action).dtype
        if not isinstance(self.action_space, spaces.Box):
            assert self.action_space.contains(action), action
        observation, reward, terminated, truncated, _ = super().step(action)
        self._sum = float(np.sum(action))
        return observation, reward, terminated, truncated, {"sum": self._sum}

    def render(self) -> np.ndarray:
        return np.array([[[self._sum] * 3, [255] * 3]] * 2, np.uint8)


def was_told(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    """Refuses actions other than those which the environment got."""
    np.testing.assert_allclose(actions.sum(-1), info["sum"], rtol=1e-5, atol=1e-5)
    return next_observations[:, 0]


class HangsInRank(Endless):
    """Hangs in its fifth step where the process is rank 1 of a run."""

    def __init__(self) -> None:
        self._hangs = "run_other_rank()" in " ".join(sys.orig_argv)

    def step(self, action: Any) -> Any:
        if self._steps == 4 and self._hangs:
            time.sleep(600)
        return super().step(action)
