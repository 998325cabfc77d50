"""Copies of a Gymnasium environment as a planner's model: of any that can be copied, and slow.

A copy is made of the very environment that is acted in. Its random stream is its own, so that luck is not foreseen.
"""

from typing import Any

import numpy as np

from repolicy.envs import Backend, Info, action_space, check_copied, copied, flat, native, one_env, shown
from repolicy.errors import UsageError, in_one_sentence
from repolicy.planning.model import Simulated


class CopyModel:
    """Simulates in copies of the environments that `watch` was given."""

    backend: Backend = "gymnasium"

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name, self._seed, self._live = name, seed, list[Any]()
        self._random = np.random.default_rng(seed)
        made = one_env(name)
        self._space, self._own = action_space(made.action_space, name), made.action_space
        self._keys, _ = shown(made.observation_space, name, False)
        rate = made.metadata.get("render_fps")
        self.seconds = float(getattr(made.unwrapped, "dt", 1.0 / rate if rate else 0.0))  # 0: it does not say
        with in_one_sentence(f"environment {name!r} cannot be copied", UsageError):
            check_copied(made, name)

    def watch(self, envs: Any) -> None:
        """Copy these environments from now on."""
        if not hasattr(envs, "each"):
            raise UsageError(f"{self.name} runs where its state cannot be had: take Gymnasium's (backend='gymnasium')")
        self._live, self._random = envs.each, np.random.default_rng(self._seed)

    def states(self, observations: np.ndarray) -> np.ndarray:
        """Return the environments themselves `[N]`, which are not stepped, but copied."""
        if len(self._live) != len(observations):
            raise UsageError(f"a planner copies {self.name} and was not told which: call its watch(envs) first")
        return as_array(self._live)

    def step(self, states: np.ndarray, actions: np.ndarray) -> Simulated:
        """Return what states become. One that came out of a step is used up by this one."""
        live = {id(env) for env in self._live}
        rows = [
            self.advance(self.copied(env) if id(env) in live else env, action)
            for env, action in zip(states, actions[:, None], strict=True)
        ]
        told = {key for row in rows for key in row.info}
        return Simulated(
            as_array([row.states for row in rows]),
            np.concatenate([row.observations for row in rows]),
            {key: np.concatenate([row.info.get(key, np.zeros(1)) for row in rows]) for key in told},
            np.concatenate([row.ended for row in rows]),
            np.concatenate([row.failed for row in rows]),
        )

    def trunks(self, states: np.ndarray) -> np.ndarray:
        robots = [env.unwrapped for env in states]
        return np.array([each.data.xpos[1] if hasattr(each, "data") else np.zeros(3) for each in robots])

    def advance(self, env: Any, actions: np.ndarray) -> Simulated:
        """Step one environment by an action `[1, A]`, in place."""
        observation, _, terminated, _, told = env.step(native(actions, self._space, self._own)[0])
        info: Info = {key: np.array([value]) for key, value in told.items() if np.isscalar(value)}
        seen = flat(observation, 1, self._keys)
        return Simulated(env, seen, info, np.array([bool(terminated)]), ~np.isfinite(seen).all(1))

    def copied(self, env: Any) -> Any:
        """Return a copy of an environment, with a random stream of its own."""
        return copied(env, self._random)


def as_array(things: list[Any]) -> np.ndarray:
    """Return an array `[B]` of objects."""
    array = np.empty(len(things), object)
    array[:] = things
    return array
