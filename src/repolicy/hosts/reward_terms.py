"""Wishes with a past as reward terms of Isaac Lab and mjlab.

    @partial(term, Jerk)  # in a module: Isaac Lab's scripts write a term as its name, and find it by that
    def jerk(env):
        return (env.action_manager.action,)

    rewards["jerk"] = RewardTermCfg(func=jerk, weight=0.1)

The functions of `repolicy.envs.gaits` that have no past need no help: they take tensors as they are.
"""

import functools
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

    @functools.wraps(reads)
    def paid(env: Any) -> Tensor:
        if env not in objects:
            objects[env] = wish()
        return objects[env](*reads(env), env.episode_length_buf == 1)  # which both count up before they pay

    return paid
