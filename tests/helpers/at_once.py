"""Linear–quadratic environments, stepped all at once: the same bits in less time, for runs of many steps."""

from typing import Any

import numpy as np
from gymnasium.utils.seeding import np_random
from tiny_envs import CONTROL, CONTROL_COST, DYNAMICS, STATE_COST, LinearQuadratic, tiny

from repolicy.envs.batches import GymnasiumEnvs
from repolicy.envs.names import env_maker
from repolicy.envs.step import Batch, Envs


class AtOnce(Batch):
    """What `GymnasiumEnvs` answers for these two environments."""

    backend, limit = "gymnasium", None

    def __init__(self, name: str, count: int, seed: int) -> None:
        self.name, self.count, self._seed = name, count, seed
        self._one: LinearQuadratic = env_maker(name)()
        self.note_spaces(self._one.observation_space, self._one.action_space, critic=False)

    def reset(self) -> np.ndarray:
        self._random = [np_random(self._seed + n)[0] for n in range(self.count)]
        self._x, self._t = np.zeros(self.count), np.zeros(self.count, int)
        return self.renew(np.ones(self.count, bool), np.zeros((self.count, 1), np.float32))

    def renew(self, which: np.ndarray, observations: np.ndarray) -> np.ndarray:
        for n in np.flatnonzero(which):
            self._x[n] = self._random[n].uniform(-2.0, 2.0)
        self._t[which] = 0
        return np.where(which[:, None], self._x[:, None].astype(np.float32), observations)

    def _step(self, actions: np.ndarray) -> Any:
        u = actions[:, 0].astype(np.float64)
        rewards = -(STATE_COST * self._x**2 + CONTROL_COST * u**2)
        self._x = DYNAMICS * self._x + CONTROL * u
        self._t += 1
        seen, info = self._x[:, None].astype(np.float32), {"distance": np.abs(self._x)}
        never = np.zeros(self.count, bool)
        return seen, np.full(self.count, self._one.reward(rewards)), never, self._t == 8, info

    def close(self) -> None: ...


def batch(name: str, count: int, seed: int, make_one: Any = None, *, critic: bool = False) -> Envs:
    """Stand in for `repolicy.envs.making.GymnasiumEnvs`."""
    if name in (tiny("LinearQuadratic"), tiny("WithoutReward")):
        return AtOnce(name, count, seed)
    return GymnasiumEnvs(name, count, seed, make_one, critic=critic)
