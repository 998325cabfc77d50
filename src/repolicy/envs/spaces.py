"""From an environment's spaces to flat observations and to actions, and back to the environment's own shapes."""

from typing import Any

import numpy as np
from gymnasium import spaces

from repolicy.envs.step import Info
from repolicy.errors import UsageError
from repolicy.loading import nearest
from repolicy.policies.spaces import ActionSpace


def selected(space: Any, keys: tuple[str, ...], name: str) -> Any:
    """The parts of a Dict that the name asks for, in that order; all of the space, where it asks for none."""
    if not keys:
        return space
    known = list(space) if isinstance(space, spaces.Dict) else []
    missing = [key for key in keys if key not in known]
    if missing:
        raise UsageError(
            f"environment {name!r} has no observation {missing[0]!r}{nearest(missing[0], known)}; "
            + (f"it has {', '.join(known)}" if known else "its observation is no Dict: leave ?observe= out")
        )
    return spaces.Dict([(key, space[key]) for key in keys])


def group_sizes(space: Any, name: str) -> dict[str, int]:
    """How many numbers each part of a Dict has."""
    return {key: observation_size(part, name) for key, part in space.items()} if isinstance(space, spaces.Dict) else {}


def observation_size(space: Any, name: str) -> int:
    if isinstance(space, spaces.Box):
        return int(np.prod(space.shape))
    if isinstance(space, spaces.Dict):
        return sum(observation_size(part, name) for part in space.values())
    raise UsageError(
        f"environment {name!r} has observations of kind {type(space).__name__}; "
        "Repolicy takes Box, and Dict made of Box: wrap it in gymnasium.wrappers.FlattenObservation"
    )


def action_space(space: Any, name: str) -> ActionSpace:
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


def native(actions: np.ndarray, space: ActionSpace, dtype: Any) -> np.ndarray:
    """`[N, A]` as stored, in the environment's own shape and type. Never clipped."""
    actions = actions.astype(dtype)
    return actions[:, 0] if space.kind == "discrete" and len(space.sizes) == 1 else actions


def flat(observations: Any, count: int, keys: tuple[str, ...] = ()) -> np.ndarray:
    """Observations as rows of numbers; of a Dict, these parts or all."""
    if isinstance(observations, dict):
        parts = [observations[key] for key in keys] if keys else observations.values()
        return np.concatenate([flat(part, count) for part in parts], axis=1)
    return np.array(observations, dtype=np.float32).reshape(count, -1)


def numeric(info: dict[str, Any], count: int) -> Info:
    return {
        key: value
        for key, value in info.items()
        if isinstance(value, np.ndarray) and value.shape == (count,) and value.dtype.kind in "fiu" and key != "env_id"
    }


def shapes(observation: Any) -> Any:
    return (
        {key: shapes(part) for key, part in observation.items()}
        if isinstance(observation, dict)
        else np.shape(observation)
    )


def space_shapes(space: Any) -> Any:
    return {key: space_shapes(part) for key, part in space.items()} if isinstance(space, spaces.Dict) else space.shape
