"""Gymnasium's spaces, and those of gym before it, as a pickle holds them: shells of their classes."""

import math
from typing import Any

import numpy as np

from repolicy.policies import ActionSpace
from repolicy.readers.description import CannotCopyError

MOST_SWITCHES = 100_000


def observations_of(space: Any) -> tuple[tuple[str, int], ...]:
    """Return how many numbers an observation has: one group without a name, or those of a Dict."""
    if space.last != "Dict":
        return (("", _size(space)),)
    return tuple((str(key), _size(part)) for key, part in space.state["spaces"].items())


def _size(space: Any) -> int:
    if space.last != "Box":
        raise CannotCopyError(f"its observations are a {space.last}, and no numbers")
    shape = space.state.get("_shape", space.state.get("shape"))
    if len(shape) == 3 and getattr(space.state.get("dtype"), "name", "") == "uint8":
        raise CannotCopyError("its observations are images, which Stable-Baselines3 turns and divides by 255")
    return math.prod(map(int, shape))  # a text or a tuple times a number could be as large as a file wishes


def has_switches(space: Any) -> bool:
    """Return whether actions are each on or off; in `actions_of` each is a choice of two."""
    return bool(space.last == "MultiBinary")


def actions_of(space: Any) -> ActionSpace:
    """Return a space of actions laid out flat; choices count from 0, as policies have them."""
    if space.last == "Box":
        low, high = (tuple(float(x) for x in space.state[name].reshape(-1)) for name in ("low", "high"))
        return ActionSpace("continuous", (len(low),), low, high)
    if space.last in ("Discrete", "MultiDiscrete") and np.any(first := space.state.get("start", 0)):
        what = f"the policy's choices begin at {first}, and what trained it may have sent them counted from 0"
        raise CannotCopyError(f"{what}: train it where they begin at 0")
    if space.last == "Discrete":
        return ActionSpace("discrete", (int(space.state["n"]),))
    if space.last == "MultiDiscrete":
        return ActionSpace("discrete", tuple(int(size) for size in space.state["nvec"].reshape(-1)))
    if has_switches(space):
        sizes = space.state["n"]
        count = math.prod(map(int, sizes)) if np.iterable(sizes) else int(sizes)
        if count > MOST_SWITCHES:
            raise ValueError(f"{count:,} switches")
        return ActionSpace("discrete", (2,) * count)
    raise CannotCopyError(f"its actions are a {space.last}")
