"""Gymnasium's spaces, and those of gym before it, as a pickle holds them."""

import math
from typing import Any

import numpy as np

from repolicy.errors import FileError
from repolicy.policies.distributions import ActionSpace
from repolicy.readers.described import CannotCopyError
from repolicy.readers.pickles import Shell

MOST_SWITCHES = 100_000


def observations_of(space: Any, where: str) -> tuple[tuple[str, int], ...]:
    """Return how many numbers an observation has: one group without a name, or those of a Dict."""
    if not isinstance(space, Shell) or space.last != "Dict":
        return (("", _size(space, where)),)
    parts = space.state.get("spaces")
    if not isinstance(parts, dict) or not parts:
        raise FileError(f"{where} is damaged: its Dict of observations is empty")
    return tuple((str(key), _size(part, where)) for key, part in parts.items())


def _size(space: Any, where: str) -> int:
    if not isinstance(space, Shell):
        raise FileError(f"{where} does not say which observations its policy takes")
    if space.last != "Box":
        raise CannotCopyError(f"{where} cannot be copied: its observations are a {space.last}, and no numbers")
    shape = space.state.get("_shape", space.state.get("shape"))
    if not isinstance(shape, tuple) or not all(isinstance(size, int) for size in shape):
        raise FileError(f"{where} is damaged: a space of it has no shape")
    if len(shape) == 3 and getattr(space.state.get("dtype"), "name", "") == "uint8":
        raise CannotCopyError(
            f"{where} cannot be copied: its observations are images, which Stable-Baselines3 turns and divides by 255"
        )
    return math.prod(shape)


def actions_of(space: Any, where: str) -> tuple[ActionSpace, bool]:
    """Return the action space, and whether it is one of switches."""
    if not isinstance(space, Shell):
        raise FileError(f"{where} does not say which actions its policy gives")
    try:
        if space.last == "Box":
            low, high = (tuple(float(x) for x in space.state[name].reshape(-1)) for name in ("low", "high"))
            if len(low) == len(high):
                return ActionSpace("continuous", (len(low),), low, high), False
            raise ValueError(f"{len(low)} lower bounds and {len(high)} upper ones")
        if space.last == "Discrete":
            return ActionSpace("discrete", (int(space.state["n"]),)), False
        if space.last == "MultiDiscrete":
            return ActionSpace("discrete", tuple(int(size) for size in space.state["nvec"].reshape(-1))), False
        if space.last == "MultiBinary":
            sizes = space.state["n"]
            count = math.prod(sizes) if np.iterable(sizes) else int(sizes)
            if count <= MOST_SWITCHES:
                return ActionSpace("discrete", (2,) * count), True
            raise ValueError(f"{count:,} switches")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(f"{where} is damaged: its action space is not whole ({error!r})") from None
    raise CannotCopyError(f"{where} cannot be copied: its actions are a {space.last}")
