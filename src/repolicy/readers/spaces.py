"""Read Gymnasium's and gym's spaces from a pickle, where they are object stubs."""

import math
from typing import Any

import numpy as np

from repolicy.policies import ActionSpace
from repolicy.readers.description import CannotCopyError

MAX_SWITCHES = 100_000


def observations_of(space: Any) -> tuple[tuple[str, int], ...]:
    """Return (key, size) of each part of a Dict observation; for other spaces one part with an empty key."""
    if space.last != "Dict":
        return (("", _size(space)),)
    return tuple((str(key), _size(part)) for key, part in space.state["spaces"].items())


def _size(space: Any) -> int:
    if space.last != "Box":
        raise CannotCopyError(f"its observations are a {space.last}, and no numbers")
    shape = space.state.get("_shape", space.state.get("shape"))
    if len(shape) == 3 and getattr(space.state.get("dtype"), "name", "") == "uint8":
        raise CannotCopyError("its observations are images, which Stable-Baselines3 turns and divides by 255")
    return math.prod(map(int, shape))  # int(): a damaged file may hold texts, which times a number become huge


def has_switches(space: Any) -> bool:
    """Return whether the space is MultiBinary. `actions_of` turns each on-off action into a choice of two."""
    return bool(space.last == "MultiBinary")


def actions_of(space: Any) -> ActionSpace:
    """Return a flattened action space. Choices must count from 0, as those of policies do."""
    if space.last == "Box":
        low, high = (tuple(float(x) for x in space.state[name].reshape(-1)) for name in ("low", "high"))
        return ActionSpace("continuous", (len(low),), low, high)
    if space.last in ("Discrete", "MultiDiscrete") and np.any(first := space.state.get("start", 0)):
        problem = f"the policy's choices begin at {first}, and what trained it may have sent them counted from 0"
        raise CannotCopyError(f"{problem}: train it where they begin at 0")
    if space.last == "Discrete":
        return ActionSpace("discrete", (int(space.state["n"]),))
    if space.last == "MultiDiscrete":
        return ActionSpace("discrete", tuple(int(size) for size in space.state["nvec"].reshape(-1)))
    if has_switches(space):
        sizes = space.state["n"]
        count = math.prod(map(int, sizes)) if np.iterable(sizes) else int(sizes)
        if count > MAX_SWITCHES:
            raise ValueError(f"{count:,} switches")
        return ActionSpace("discrete", (2,) * count)
    raise CannotCopyError(f"its actions are a {space.last}")
