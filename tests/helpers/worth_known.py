"""A policy of which it is known what a nat is worth."""

from typing import Any

import known_optimum
import numpy as np
from tiny_envs import CONTROL_COST, STATE_COST, LinearQuadratic, Tiny

from repolicy.policies.policy import Policy

ALPHA = 0.3
LONG, RARELY, CALM = (f"{__file__}:{name}" for name in ("Long", "Rarely", "calm"))


class Long(LinearQuadratic):
    """From 0, cut after 200 steps, so that its ends do not count for much."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        Tiny.reset(self, seed=seed)
        self._x, self._t = 0.0, -192
        return np.zeros(1, np.float32), {}


class Rarely(Tiny):
    """Pays 1 a step, and in one of 32 sampled episodes nothing: what noise costs shows after some rounds."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps, self._broken = 0, False
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        self._broken |= self._steps == 1 and action[0] != 0.0 and self.np_random.random() < 1 / 16
        return np.zeros(1, np.float32), 0.0 if self._broken else 1.0, False, self._steps == 20, {}


def calm(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    return np.zeros(observations.shape[:-1])


def optimum() -> Policy:
    return known_optimum.as_policy(known_optimum.optimum(STATE_COST, CONTROL_COST, ALPHA, 0.9999))


def episodes(returns: np.ndarray, nats: np.ndarray) -> dict[str, np.ndarray]:
    """Return episodes as `worth_of` takes them."""
    return {"basic": returns, "nats": nats}
