"""Copies of a Gymnasium environment as a planner's model: of any that can be copied, and slow.

A copy is made of the very environment that is acted in. Its random stream is its own, so that luck is not foreseen.
"""

import copy
import warnings
from typing import Any

import gymnasium
import numpy as np

from repolicy.envs.names import maker
from repolicy.envs.step import Backend, Info, action_space, flat, native, shown
from repolicy.errors import UsageError, in_one_sentence
from repolicy.planning.model import Simulated

TRIED = 10  # steps by which a copy is compared with its environment
SHARED = ("MjModel", "EnvSpec")  # what no step changes, and is large


class CopyModel:
    """Simulates in copies of the environments that `watch` was given."""

    backend: Backend = "gymnasium"

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name, self._seed, self._live = name, seed, list[Any]()
        self._random = np.random.default_rng(seed)
        with (
            in_one_sentence(f"environment {name!r} cannot be made", UsageError),
            warnings.catch_warnings(action="ignore"),  # "out of date": a task's version is part of the task
        ):
            made = maker(name)()
        self._space, self._own = action_space(made.action_space, name), made.action_space
        self._keys, _ = shown(made.observation_space, name, False)
        self.seconds = float(getattr(made.unwrapped, "dt", 1.0 / made.metadata.get("render_fps", 1.0)))
        with in_one_sentence(f"environment {name!r} cannot be copied", UsageError):
            self._check(made)

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

    def advance(self, env: Any, actions: np.ndarray) -> Simulated:
        """Step one environment by an action `[1, A]`, in place."""
        return self._stepped(env, native(actions, self._space, self._own)[0])

    def _stepped(self, env: Any, action: Any) -> Simulated:
        observation, _, terminated, _, told = env.step(action)
        info: Info = {key: np.array([value]) for key, value in told.items() if np.isscalar(value)}
        seen = flat(batched(observation), 1, self._keys)
        return Simulated(env, seen, info, np.array([bool(terminated)]), ~np.isfinite(seen).all(1))

    def copied(self, env: Any) -> Any:
        """Return a copy of an environment, with a random stream of its own."""
        stream = getattr(env.unwrapped, "np_random", None)  # which several parts of an environment may hold
        own = np.random.default_rng(self._random.integers(2**63))
        return twin(env, {} if stream is None else {id(stream): own})

    def _check(self, made: Any) -> None:
        """Raise where a copy goes elsewhere than its environment, or takes it along."""
        made.action_space.seed(0)
        made.reset(seed=0)
        for _ in range(TRIED):
            action, elsewhere = made.action_space.sample(), made.action_space.sample()
            one, other = twin(made, {}), twin(made, {})
            self._stepped(one, elsewhere)
            found, wanted = self._stepped(other, action), self._stepped(made, action)
            if not np.array_equal(found.observations, wanted.observations, equal_nan=True):
                raise UsageError(f"environment {self.name!r} cannot be copied: a copy goes elsewhere than it does")
            if wanted.ended[0]:
                made.reset()


def twin(env: Any, memo: dict[int, Any]) -> Any:
    """Return a copy that stands where an environment stands. (Many classes would begin anew where they are copied.)"""
    other = memo[id(env)] = object.__new__(type(env))
    for name, value in vars(env).items():
        if isinstance(value, gymnasium.Env):
            part = memo[id(value)] if id(value) in memo else twin(value, memo)
        elif isinstance(value, gymnasium.Space) or type(value).__name__ in SHARED:
            part = value
        else:
            try:
                part = copy.deepcopy(value, memo)
            except Exception:  # such as a window: the check finds out whether it matters
                part = value
        vars(other)[name] = part
    return other


def batched(observation: Any) -> Any:
    """Return one observation as a row, a Dict part by part."""
    if isinstance(observation, dict):
        return {key: batched(part) for key, part in observation.items()}
    return np.asarray(observation)[None]


def as_array(things: list[Any]) -> np.ndarray:
    """Return an array `[B]` of objects."""
    array = np.empty(len(things), object)
    array[:] = things
    return array
