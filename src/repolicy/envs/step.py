"""The `Step` contract: what a batch of environments returns.

`step.observations` is always what to act on next: an environment whose episode ended has been reset already. The last
observation of that episode is in `step.final`. No action is ever ignored.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from gymnasium import spaces

from repolicy.envs.names import parse_env_name
from repolicy.envs.watchdog import ENV_CALL
from repolicy.errors import NumericError, RepolicyError, UsageError
from repolicy.policies import ActionSpace
from repolicy.text import suggest

Backend = Literal["auto", "envpool", "gymnasium"]
Info = dict[str, np.ndarray]


class PartialInfo(Info):
    """A model's info. It has the entries `unknown`, which only its environment knows: to read one raises KeyError."""

    def __init__(self, entries: Info, unknown: frozenset[str]) -> None:
        super().__init__(entries)
        self.unknown = unknown

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self.unknown

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self.unknown else super().get(key, default)


class Chunk(NamedTuple):
    """The C steps that N environments take by one decision; `counts` is false after an episode's end."""

    observations: np.ndarray  # [C, N, O]
    actions: np.ndarray  # [C, N, A]
    final: np.ndarray  # [C, N, O]
    info: Info  # entries [C, N]
    counts: np.ndarray  # [C, N] bool


class Step(NamedTuple):
    """The result of N actions in N environments."""

    observations: np.ndarray  # [N, O] float32: to act on next; the critic's own numbers, where there are any, follow
    rewards: np.ndarray  # [N] float64: the basic reward
    terminated: np.ndarray  # [N] bool: the task ended the episode; nothing follows
    truncated: np.ndarray  # [N] bool: a time limit cut the episode; its value goes on. EnvPool's, also an end just then
    final: np.ndarray  # [N, O] float32: true next observations, also where an episode ended
    info: Info  # numeric entries of shape [N], from before any reset
    chunk: Chunk | None = None  # the steps of a decision, where an action is one


class HasSpaces(Protocol):
    """An environment's name, observation size and action space."""

    @property
    def name(self) -> str: ...
    @property
    def observation_size(self) -> int:
        """The number of values in the policy's observation."""

    @property
    def actions(self) -> ActionSpace: ...
    @property
    def groups(self) -> dict[str, int]:
        """The size of each part of a Dict observation; empty for a Box."""


class Envs(HasSpaces, Protocol):
    """N environments of one kind, stepped together."""

    backend: str
    count: int

    @property
    def limit(self) -> int | None:
        """The number of steps after which an episode is truncated; None if the environment does not say."""

    def reset(self) -> np.ndarray: ...
    def renew(self, which: np.ndarray, observations: np.ndarray) -> np.ndarray:
        """Reset the environments where `which` `[N]` is true; return `observations` with their new ones in place."""

    def step(self, actions: np.ndarray) -> Step: ...
    def close(self) -> None: ...


NUMBERS = (float, int, np.floating, np.integer)


def check_reward(reward: Any, name: str) -> None:
    """Raise if an environment's reward is not a real number."""
    if not isinstance(reward, NUMBERS) and (np.shape(reward) != () or np.asarray(reward).dtype.kind not in "fiub"):
        raise RepolicyError(f"environment {name!r} returns the reward {reward!r}, which is no real number")


class Batch:
    """Base of EnvPool's and Gymnasium's batches: spaces as a policy sees them, and conversion to a `Step`."""

    name: str
    count: int
    _step: Callable[[np.ndarray], Any]  # takes the environments' own actions; returns Gymnasium's five values

    def note_spaces(self, space: Any, actions: Any, critic: bool) -> None:
        """Store sizes and keys of the observation space and the action space; with `critic`, of its parts too."""
        self.groups = group_sizes(space, self.name)
        self._keys, self.observation_size = observed_parts(space, self.name, critic)
        self._env_space, self.actions = actions, action_space(actions, self.name)
        if not (self.observation_size and self.actions.width):
            raise UsageError(f"environment {self.name!r} has an observation or an action without a number in it")

    def renew(self, which: np.ndarray, observations: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the environments, watched by the watchdog."""
        with ENV_CALL.calling(self.name):
            return function(*arguments)

    def flat(self, observations: Any, count: int | None = None) -> np.ndarray:
        return flatten_observations(observations, self.count if count is None else count, self._keys)

    def step(self, actions: np.ndarray) -> Step:
        """Act in all environments, and reset those whose episode ended."""
        sent = to_env_actions(actions, self.actions, self._env_space)
        observations, rewards, terminated, truncated, info = self.call(self._step, sent)
        final = current = self.flat(observations)
        ended = terminated | truncated
        if ended.any():
            if len(wrong := np.flatnonzero(ended & ~np.isfinite(final).all(-1))):
                last = f"environment {wrong[0]} of {self.name!r} ended an episode in an observation"
                raise NumericError(f"{last} that is not finite")
            current = self.renew(ended, final)
        entries = numeric_entries(info, self.count)
        return Step(current, rewards.astype(np.float64), terminated, truncated & ~terminated, final, entries)


def observed_parts(space: Any, name: str, critic: bool) -> tuple[tuple[str, ...], int]:
    """Return the keys of a Dict observation to concatenate, and the size of the policy's part.

    The policy's keys come first. With `critic`, the keys of the name's `observe_critic` follow.
    """
    own = _parts(space, parse_env_name(name).observed_keys, name, "observe")
    extra = _parts(space, parse_env_name(name).critic_keys, name, "observe_critic") if critic else ()
    size = sum(observation_size(space[key], name) for key in own) if own else observation_size(space, name)
    return (own or tuple(space)) + extra if extra else own, size


def _parts(space: Any, keys: tuple[str, ...], name: str, option: str) -> tuple[str, ...]:
    """Return the keys; raise if one is not a part of the observation space."""
    known = list(space) if isinstance(space, spaces.Dict) else []
    missing = [key for key in keys if key not in known]
    if missing:
        raise UsageError(
            f"environment {name!r} has no observation {missing[0]!r}{suggest(missing[0], known)}; "
            + (f"it has {', '.join(known)}" if known else f"its observation is no Dict: leave {option} out")
        )
    return keys


def group_sizes(space: Any, name: str) -> dict[str, int]:
    """Return the size of each part of a Dict that a policy can see; empty for other spaces."""
    parts = space.items() if isinstance(space, spaces.Dict) else ()
    return {key: observation_size(part, name) for key, part in parts if isinstance(part, spaces.Box | spaces.Dict)}


def observation_size(space: Any, name: str) -> int:
    """Return the number of values in an observation."""
    if isinstance(space, spaces.Dict):
        return sum(observation_size(part, name) for part in space.values())
    if isinstance(space, spaces.Box):
        return int(np.prod(space.shape))
    raise UsageError(
        f"environment {name!r} has observations of kind {type(space).__name__}; "
        "Repolicy takes Box, and Dict made of Box: wrap it in gymnasium.wrappers.FlattenObservation"
    )


def action_space(space: Any, name: str) -> ActionSpace:
    """Return the space flattened. For choices, `low` is the first value of each, or empty if all start at 0."""
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return ActionSpace("continuous", (space.low.size,), _floats(space.low), _floats(space.high))
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        sizes = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec)
        first = np.ravel(getattr(space, "start", 0))
        return ActionSpace("discrete", tuple(map(int, sizes)), _floats(first) if first.any() else ())
    if isinstance(space, spaces.MultiBinary):  # each switch is a choice of two
        return ActionSpace("discrete", (2,) * int(np.prod(space.shape)))
    raise UsageError(
        f"environment {name!r} has actions of kind {space}; "
        "Repolicy takes Box of floats, Discrete, MultiDiscrete and MultiBinary"
    )


def _floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(map(float, np.ravel(values)))


def to_env_numbers(actions: np.ndarray, space: ActionSpace) -> np.ndarray:
    """Return actions `[..., A]` in the environment's numbers: its choices may not start at 0. Add-ons read these."""
    return actions + np.array(space.low, np.int64) if space.kind == "discrete" and space.low else actions


def to_env_actions(actions: np.ndarray, space: ActionSpace, env_space: Any) -> np.ndarray:
    """Return actions `[N, A]` in the numbers, shape and type of the environment's own space. They are never clipped."""
    return to_env_numbers(actions, space).astype(env_space.dtype).reshape(len(actions), *env_space.shape)


def flatten_observations(observations: Any, count: int, keys: tuple[str, ...] = ()) -> np.ndarray:
    """Return observations as float32 rows `[count, O]`; of a Dict, the parts `keys`, or all."""
    if isinstance(observations, dict):
        parts = [observations[key] for key in keys] if keys else observations.values()
        return np.concatenate([flatten_observations(part, count) for part in parts], axis=1)
    with np.errstate(over="ignore"):  # overflow gives inf, which the collector refuses
        return np.array(observations, dtype=np.float32).reshape(count, -1)


def numeric_entries(info: dict[str, Any], count: int) -> Info:
    return {
        key: value.astype(np.float64) if value.dtype.kind == "b" else value
        for key, value in info.items()
        if isinstance(value, np.ndarray) and value.shape == (count,) and value.dtype.kind in "fiub" and key != "env_id"
    }


def shapes(thing: Any) -> Any:
    """Return the shape of an observation, or of a space of them; of a Dict, that of each part."""
    if isinstance(thing, dict | spaces.Dict):
        return {key: shapes(part) for key, part in thing.items()}
    return np.shape(thing)


def stack_infos(infos: list[Info]) -> Info:
    """Return infos as arrays `[T, ...]`, with 0 in steps that lack an entry."""
    zeros = {key: np.zeros_like(value) for info in infos for key, value in info.items()}
    return {key: np.stack([info.get(key, zeros[key]) for info in infos]) for key in sorted(zeros, key=str)}
