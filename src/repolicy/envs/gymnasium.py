"""Gymnasium's vector environments behind the `Step` contract."""

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from repolicy.envs.names import maker, observed
from repolicy.envs.spaces import (
    action_space,
    flat,
    group_sizes,
    native,
    numeric,
    observation_size,
    selected,
    shapes,
    space_shapes,
)
from repolicy.envs.step import Step
from repolicy.errors import RepolicyError, UsageError


class GymnasiumEnvs:
    """Gymnasium's vector environments: any id, or the user's own."""

    backend = "gymnasium"

    def __init__(
        self, name: str, count: int, seed: int, make_one: Callable[[], gymnasium.Env[Any, Any]] | None = None
    ) -> None:
        self.name, self.count, self._seed = name, count, seed
        make_one = make_one or maker(name)
        try:
            with warnings.catch_warnings(action="ignore"):  # "out of date": a task's version is part of the task
                self._envs = gymnasium.vector.SyncVectorEnv(
                    [make_one] * count, autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED
                )
        except RepolicyError:
            raise
        except Exception as error:
            raise UsageError(f"environment {name!r} cannot be made: {type(error).__name__}: {error}") from error
        space = self._envs.single_observation_space
        self._keys, self.groups = observed(name), group_sizes(space, name)
        self.observation_size = observation_size(selected(space, self._keys, name), name)
        self.actions = action_space(self._envs.single_action_space, name)
        self._dtype = self._envs.single_action_space.dtype
        self._check_one_step(space)

    def reset(self) -> np.ndarray:
        seeds: list[int | None] = [self._seed + index for index in range(self.count)]
        return flat(self._call(lambda: self._envs.reset(seed=seeds))[0], self.count, self._keys)

    def step(self, actions: np.ndarray) -> Step:
        sent = native(actions, self.actions, self._dtype)
        observations, rewards, terminated, truncated, info = self._call(lambda: self._envs.step(sent))
        final = current = flat(observations, self.count, self._keys)
        ended = terminated | truncated
        if ended.any():
            # A reset of some environments hands back the observations of all.
            current = flat(
                self._call(lambda: self._envs.reset(options={"reset_mask": ended}))[0], self.count, self._keys
            )
        return Step(
            current, rewards.astype(np.float64), terminated, truncated & ~terminated, final, numeric(info, self.count)
        )

    def close(self) -> None:
        self._envs.close()

    def _call(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except RepolicyError:
            raise
        except Exception as error:
            raise RepolicyError(f"environment {self.name!r} failed: {type(error).__name__}: {error}") from error

    def _check_one_step(self, space: spaces.Space[Any]) -> None:
        """A vector environment would broadcast an observation of the wrong shape; so look at one before it can."""
        env = self._envs.envs[0]
        env.action_space.seed(0)
        observation, _ = self._call(lambda: env.reset(seed=0))
        for moment in ("reset", "step"):
            if moment == "step":
                observation, reward, *_ = self._call(lambda: env.step(env.action_space.sample()))
                if np.shape(reward) != ():
                    raise RepolicyError(
                        f"environment {self.name!r} returns a reward of shape {np.shape(reward)}, not one number"
                    )
            found, wanted = shapes(observation), space_shapes(space)
            if found != wanted:
                raise RepolicyError(
                    f"environment {self.name!r} returns observations of shape {found} from {moment}, "
                    f"but its observation space says {wanted}"
                )
