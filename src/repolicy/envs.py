"""Batches of environments: the `Step` contract, with EnvPool and Gymnasium behind it.

    envs = make("HalfCheetah-v4", count=32, seed=0)
    observations = envs.reset()
    step = envs.step(actions)

`step.observations` is always what to act on next: an environment whose episode ended has been reset already. What the
episode ended *in* is in `step.final`. There is no step whose action is ignored.
"""

import json
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Literal, NamedTuple, Protocol, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from repolicy.errors import RepolicyError, UsageError
from repolicy.loading import load_object, nearest
from repolicy.policy import ActionSpace

Backend = Literal["auto", "envpool", "gymnasium"]
Info = dict[str, np.ndarray]


class Step(NamedTuple):
    """What N environments answer to N actions."""

    observations: np.ndarray  # [N, O] float32: to act on next
    rewards: np.ndarray  # [N] float64: the basic reward
    terminated: np.ndarray  # [N] bool: the task ended the episode; nothing follows
    truncated: np.ndarray  # [N] bool: a time limit cut the episode; its value goes on
    final: np.ndarray  # [N, O] float32: true next observations, also where an episode ended
    info: Info  # numeric entries of shape [N], as they were at the end of the step


class Envs(Protocol):
    """N environments of one kind, stepped together."""

    name: str
    backend: str
    count: int
    observation_size: int
    actions: ActionSpace

    def reset(self) -> np.ndarray: ...
    def step(self, actions: np.ndarray) -> Step: ...
    def close(self) -> None: ...


def make(name: str, count: int, seed: int, backend: Backend = "auto") -> Envs:
    """N environments, the i-th seeded with seed + i: EnvPool's where it knows the name, else Gymnasium's.

    `name` is an id that either of them knows, or `module:callable` (or `file.py:callable`) that makes a Gymnasium
    environment. Options of the environment follow it as in an address: `HalfCheetah-v4?reset_noise_scale=0.2`.
    """
    plain, _ = parsed(name)
    if backend == "envpool" and plain not in envpool_names():
        known = "is not installed" if not envpool_names() else f"has no {plain!r}{nearest(plain, envpool_names())}"
        raise UsageError(f"EnvPool {known}; leave out --backend envpool to use Gymnasium")
    if backend == "gymnasium" or plain not in envpool_names():
        return GymnasiumEnvs(name, count, seed)
    return EnvPoolEnvs(name, count, seed)


class EnvPoolEnvs:
    """EnvPool: physics batches in C++, one thread."""

    backend = "envpool"

    def __init__(self, name: str, count: int, seed: int) -> None:
        import envpool

        self.name, self.count = name, count
        plain, options = parsed(name)
        try:
            self._pool = envpool.make(
                plain, env_type="gymnasium", num_envs=count, num_threads=1, seed=seed % 2**31, **options
            )
        except TypeError:  # its own message is the whole signature
            known = envpool.make_spec(plain).config._asdict()
            wrong = next((key for key in options if key not in known), None)
            raise UsageError(
                f"environment {plain!r} has no option {wrong!r}{nearest(wrong, known)}"
                if wrong
                else f"environment {plain!r} does not take {options}: a value is of the wrong kind"
            ) from None
        with warnings.catch_warnings(action="ignore"):  # EnvPool rounds the bounds of its spaces to float32, loudly
            self.observation_size = _observation_size(self._pool.observation_space, name)
            self.actions = _action_space(self._pool.action_space, name)
        self._dtype = self._pool.action_space.dtype

    def reset(self) -> np.ndarray:
        return _flat(self._pool.reset()[0], self.count)

    def step(self, actions: np.ndarray) -> Step:
        observations, rewards, terminated, truncated, info = self._pool.step(
            _native(actions, self.actions, self._dtype)
        )
        final = observations = _flat(observations, self.count)
        ended = terminated | truncated
        if ended.any():
            # Without this, EnvPool would spend the environment's next step on resetting it.
            fresh, fresh_info = self._pool.reset(np.flatnonzero(ended).astype(np.int32))
            observations = final.copy()
            observations[fresh_info["env_id"]] = _flat(fresh, int(ended.sum()))
        return Step(
            observations,
            rewards.astype(np.float64),
            terminated,
            truncated & ~terminated,
            final,
            _numeric(info, self.count),
        )

    def close(self) -> None:
        self._pool.close()


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
        self.observation_size = _observation_size(space, name)
        self.actions = _action_space(self._envs.single_action_space, name)
        self._dtype = self._envs.single_action_space.dtype
        self._check_one_step(space)

    def reset(self) -> np.ndarray:
        seeds: list[int | None] = [self._seed + index for index in range(self.count)]
        return _flat(self._call(lambda: self._envs.reset(seed=seeds))[0], self.count)

    def step(self, actions: np.ndarray) -> Step:
        native = _native(actions, self.actions, self._dtype)
        observations, rewards, terminated, truncated, info = self._call(lambda: self._envs.step(native))
        final = current = _flat(observations, self.count)
        ended = terminated | truncated
        if ended.any():
            # A reset of some environments hands back the observations of all.
            current = _flat(self._call(lambda: self._envs.reset(options={"reset_mask": ended}))[0], self.count)
        return Step(
            current, rewards.astype(np.float64), terminated, truncated & ~terminated, final, _numeric(info, self.count)
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
            shapes, wanted = _shapes(observation), _space_shapes(space)
            if shapes != wanted:
                raise RepolicyError(
                    f"environment {self.name!r} returns observations of shape {shapes} from {moment}, "
                    f"but its observation space says {wanted}"
                )


def parsed(name: str) -> tuple[str, dict[str, Any]]:
    """`HalfCheetah-v4?reset_noise_scale=0.2` as the name alone, and the options."""
    plain, _, query = name.partition("?")
    options = {}
    for part in query.split("&") if query else []:
        key, equals, value = part.partition("=")
        if not (key.isidentifier() and equals):
            raise UsageError(
                f"environment {name!r}: {part!r} is no option; write them as NAME?option=value&option=value"
            )
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return plain, options


def in_gymnasium(name: str) -> bool:
    """Whether Gymnasium can make it: an id that it knows, or the user's own."""
    plain, _ = parsed(name)
    return ":" in plain or plain in gymnasium.registry


@cache
def envpool_names() -> frozenset[str]:
    try:
        import envpool
    except ImportError:
        return frozenset()
    return frozenset(envpool.list_all_envs())


def maker(name: str) -> Callable[..., gymnasium.Env[Any, Any]]:
    """What makes one such environment of Gymnasium's, or of the user's own; it takes further options."""
    plain, options = parsed(name)
    if ":" in plain:
        try:
            function = load_object(plain, "environment")
        except UsageError:
            registered = plain.rpartition(":")[2]
            if registered not in gymnasium.registry:
                raise
            return partial(gymnasium.make, registered, **options)  # module:id, which importing the module registers
        if not callable(function):
            raise UsageError(f"environment {plain!r} is not something that can be called to make one")
        return cast(Callable[..., gymnasium.Env[Any, Any]], partial(function, **options))
    if not in_gymnasium(name):
        known = set(gymnasium.registry) | envpool_names()
        raise UsageError(f"there is no environment {plain!r}{nearest(plain, known)}")
    return partial(gymnasium.make, plain, **options)


def _observation_size(space: Any, name: str) -> int:
    if isinstance(space, spaces.Box):
        return int(np.prod(space.shape))
    if isinstance(space, spaces.Dict):
        return sum(_observation_size(part, name) for part in space.values())
    raise UsageError(
        f"environment {name!r} has observations of kind {type(space).__name__}; "
        "Repolicy takes Box, and Dict made of Box: wrap it in gymnasium.wrappers.FlattenObservation"
    )


def _action_space(space: Any, name: str) -> ActionSpace:
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        size = int(np.prod(space.shape))
        low, high = np.ravel(space.low), np.ravel(space.high)
        return ActionSpace("continuous", (size,), tuple(map(float, low)), tuple(map(float, high)))
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return ActionSpace("discrete", (int(space.n),))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return ActionSpace("discrete", tuple(map(int, space.nvec)))
    raise UsageError(
        f"environment {name!r} has actions of kind {space}; Repolicy takes Box, Discrete and MultiDiscrete"
    )


def _native(actions: np.ndarray, space: ActionSpace, dtype: Any) -> np.ndarray:
    """`[N, A]` as stored, in the environment's own shape and type. Never clipped."""
    actions = actions.astype(dtype)
    return actions[:, 0] if space.kind == "discrete" and len(space.sizes) == 1 else actions


def _flat(observations: Any, count: int) -> np.ndarray:
    if isinstance(observations, dict):
        return np.concatenate([_flat(part, count) for part in observations.values()], axis=1)
    return np.array(observations, dtype=np.float32).reshape(count, -1)


def _numeric(info: dict[str, Any], count: int) -> Info:
    return {
        key: value
        for key, value in info.items()
        if isinstance(value, np.ndarray) and value.shape == (count,) and value.dtype.kind in "fiu" and key != "env_id"
    }


def _shapes(observation: Any) -> Any:
    return (
        {key: _shapes(part) for key, part in observation.items()}
        if isinstance(observation, dict)
        else np.shape(observation)
    )


def _space_shapes(space: Any) -> Any:
    return {key: _space_shapes(part) for key, part in space.items()} if isinstance(space, spaces.Dict) else space.shape
