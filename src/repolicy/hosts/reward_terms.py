"""Wishes with a past as reward terms of Isaac Lab and mjlab.

    @partial(term, Jerk)  # in a module: Isaac Lab's scripts write a term as its name, and find it by that
    def jerk(env):
        return (env.action_manager.action,)

    rewards["jerk"] = RewardTermCfg(func=jerk, weight=0.1)

The functions of `repolicy.addons.gaits` that have no past need no help: they take tensors as they are.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor


def term(wish: Callable[[], Any], reads: Callable[..., Sequence[Tensor]]) -> Callable[..., Tensor]:
    """Return a reward term: a function that returns a reward for each of the N robots in an environment.

    It may be called several times in a step, as a reward and for a limit.

    wish: returns a new wish for one environment, such as a class of `repolicy.addons.gaits`.
    reads: returns the tensors `[N, ...]` of an environment with which the wish is called. It takes the `params` of the
        term's settings, too; each set of them remembers its own steps.
    """
    wishes: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    @functools.wraps(reads)
    def reward(env: Any, **params: Any) -> Tensor:
        of_env, key = wishes.setdefault(env, {}), tuple(map(id, params.values()))  # a manager keeps the objects
        memory: tuple[Any, int, Any] = of_env.get(key) or (wish(), -1, None)
        wish_of_env, step, paid = memory
        if step != env.common_step_counter:  # both count a step before they compute its reward
            paid = wish_of_env(*reads(env, **params), env.episode_length_buf == 1)
            of_env[key] = wish_of_env, env.common_step_counter, paid
        return paid

    return reward
