"""Wishes with a past as reward terms of Isaac Lab and mjlab.

    from repolicy.envs.gaits import Jerk
    rewards["jerk"] = RewardTermCfg(func=term(Jerk, lambda env: (env.action_manager.action,)), weight=0.1)

The functions of `repolicy.envs.gaits` that have no past need no help: they take tensors as they are.
"""

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor


def term(wish: Callable[[], Any], reads: Callable[[Any], Sequence[Tensor]]) -> Callable[[Any], Tensor]:
    """Return a term: a function of an environment, whose result is a reward for each of its N robots.

    wish: makes an object of a class of `repolicy.envs.gaits`, such as the class itself, for one environment.
    reads: returns what that is called with, tensors `[N, ...]`, from an environment.
    """
    objects: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def paid(env: Any) -> Tensor:
        if env not in objects:
            objects[env] = wish()
        found: Tensor = objects[env](*reads(env), env.episode_length_buf == 1)  # which both count up before they pay
        return found

    return paid
