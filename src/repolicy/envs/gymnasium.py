"""Gymnasium's vector environments behind the `Step` contract."""

import copy
import math
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from repolicy.envs.names import maker
from repolicy.envs.step import NUMBERS, Batch, Step, check_reward, flat, native, shapes, space_shapes
from repolicy.envs.watchdog import NOTE
from repolicy.errors import RepolicyError, UsageError, in_one_sentence

TRIED = 10  # steps by which a copy is compared with its environment
SHARED = ("MjModel", "EnvSpec")  # what no step changes, and is large


class GymnasiumEnvs(Batch):
    """Gymnasium's vector environments: any id, or the user's own."""

    backend = "gymnasium"

    def __init__(
        self,
        name: str,
        count: int,
        seed: int,
        make_one: Callable[[], gymnasium.Env[Any, Any]] | None = None,
        *,
        critic: bool = False,
    ) -> None:
        self.name, self.count, self._seed = name, count, seed
        make = make_one or maker(name)  # once for all: it runs the user's file
        makers: list[Callable[[], Any]] = [partial(_One, name, n, make) for n in range(count)]
        with (
            in_one_sentence(f"environment {name!r} cannot be made", UsageError),
            warnings.catch_warnings(action="ignore"),  # "out of date": a task's version is part of the task
        ):
            self._envs = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED)
        space = self._envs.single_observation_space
        self.note_spaces(space, self._envs.single_action_space, critic)
        self._check_one_step(space)

    @property
    def each(self) -> list[Any]:
        return [one.env for one in self._envs.envs]  # type: ignore[attr-defined]

    def copies(self, times: int, random: np.random.Generator) -> "GymnasiumEnvs":
        """Return so many copies of each environment, side by side: each stands where it stands, with other luck."""
        other = copy.copy(self)
        other.count = self.count * times
        each = [partial(_One, self.name, n, partial(copied, one, random)) for n, one in enumerate(self.each)]
        makers: list[Callable[[], Any]] = [make for make in each for _ in range(times)]
        other._envs = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED)
        return other

    @property
    def limit(self) -> int | None:
        env, name = self._envs.envs[0], "_max_episode_steps"  # of Gymnasium's TimeLimit
        known = hasattr(env, "has_wrapper_attr") and env.has_wrapper_attr(name)  # a class like Gymnasium's may lack it
        steps = env.get_wrapper_attr(name) if known else None
        return None if steps is None or not math.isfinite(steps) else int(steps)

    def reset(self) -> np.ndarray:
        seeds: list[int | None] = [self._seed + index for index in range(self.count)]
        return self.flat(self.call(self._envs.reset, seed=seeds)[0])

    def renew(self, which: np.ndarray, observations: np.ndarray) -> np.ndarray:
        # A reset of some environments hands back the observations of all.
        return self.flat(self.call(self._envs.reset, options={"reset_mask": which})[0])

    def step(self, actions: np.ndarray) -> Step:
        sent = native(actions, self.actions, self._own)
        ones: Any = self._envs.envs
        return self.answered(*self.call(lambda: (*self._envs.step(sent)[:4], together([one.info for one in ones]))))

    def close(self) -> None:
        failed = sys.exception()
        try:
            self.call(self._envs.close)
        except RepolicyError:
            if failed is None:  # else that is what is said
                raise

    def _check_one_step(self, space: spaces.Space[Any]) -> None:
        """Look at one observation: a vector environment would broadcast one of the wrong shape."""
        env = self._envs.envs[0]
        env.action_space.seed(0)
        observation, _ = self.call(env.reset, seed=0)
        for moment in ("reset", "step"):
            if moment == "step":
                observation, *_ = self.call(env.step, env.action_space.sample())
            returned, declared = shapes(observation), space_shapes(space)
            if returned != declared:
                raise RepolicyError(
                    f"environment {self.name!r} returns observations of shape {returned} from {moment}, "
                    f"but its observation space says {declared}"
                )


class _One:
    """One environment of a batch, whose answers are looked at before NumPy makes numbers of whatever they are."""

    def __init__(self, name: str, index: int, make: Callable[[], Any]) -> None:
        self.name, self.index, self.env = name, index, make()

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.env, attribute)

    def reset(self, **options: Any) -> Any:
        NOTE.index = self.index
        answer = self.env.reset(**options)
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
            raise RepolicyError(
                f"environment {self.name!r} returns {_kind(answer)} from reset, not (observation, info): "
                "old environments do; wrap it in shimmy.GymV21CompatibilityV0, or return both"
            )
        return answer

    def step(self, action: Any) -> Any:
        NOTE.index = self.index
        answer = self.env.step(action)
        if not (isinstance(answer, tuple) and len(answer) == 5):
            raise RepolicyError(
                f"environment {self.name!r} returns {_kind(answer)} from step, not "
                "(observation, reward, terminated, truncated, info): old environments do; "
                "wrap it in shimmy.GymV21CompatibilityV0, or return all five"
            )
        observation, reward, terminated, truncated, info = answer
        check_reward(reward, self.name)
        self.info = info
        return observation, reward, terminated, truncated, {} if isinstance(info, dict) else info


def together(infos: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return the numbers that environments tell, 0 for those that do not: Gymnasium takes longer than many a step."""
    told: dict[str, Any] = {}
    for info in reversed(infos):
        told |= info
    found = {}
    for key, first in told.items():
        if isinstance(first, (*NUMBERS, np.ndarray)) and np.ndim(first) == 0:
            values = np.array([info.get(key, 0) for info in infos])
            found[key] = values.astype(np.float64) if values.dtype.kind in "iu" else values
    return found


def _kind(answer: Any) -> str:
    return f"{len(answer)} things" if isinstance(answer, tuple) else f"one {type(answer).__name__}"


# Copies ---------------------------------------------------------------------------------------------------------------


def copied(env: Any, random: np.random.Generator) -> Any:
    """Return a copy of an environment, with a random stream of its own, so that luck is not foreseen."""
    stream = getattr(env.unwrapped, "np_random", None)  # which several parts of an environment may hold
    return twin(env, {} if stream is None else {id(stream): np.random.default_rng(random.integers(2**63))})


def check_copied(made: Any, name: str) -> None:
    """Raise where a copy goes elsewhere than its environment, or takes it along."""
    made.action_space.seed(0)
    made.reset(seed=0)
    for _ in range(TRIED):
        action, elsewhere = made.action_space.sample(), made.action_space.sample()
        one, other = twin(made, {}), twin(made, {})
        one.step(elsewhere)
        (found, *_), (wanted, _, terminated, truncated, _) = other.step(action), made.step(action)
        if not np.array_equal(flat(found, 1), flat(wanted, 1), equal_nan=True):
            raise UsageError(f"environment {name!r} cannot be copied: a copy goes elsewhere than it does")
        if terminated or truncated:
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
