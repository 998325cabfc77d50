"""A policy of which it is known what a nat is worth."""

import math
from typing import Any

import linear_quadratic as lq
import numpy as np
import torch
from tiny_envs import CONTROL, CONTROL_COST, DYNAMICS, STATE_COST, LinearQuadratic, Tiny

from repolicy.policies.distributions import ActionSpace
from repolicy.policies.policy import Policy, PolicySpec

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
    problem = lq.LinearQuadratic(DYNAMICS, CONTROL, lq.quadratic_cost(STATE_COST, CONTROL_COST), 0.9999)
    best = lq.linear_quadratic_optimal(problem, ALPHA).policy
    actions = ActionSpace("continuous", (1,), (-1.0,), (1.0,))
    policy = Policy(PolicySpec(1, actions, hidden=(2,), activation="relu", min_std=0.0))
    with torch.no_grad():
        policy.network.weights[0].copy_(torch.tensor([[1.0], [-1.0]]))
        policy.network.weights[1].copy_(float(best.gain) * torch.tensor([[-1.0, 1.0]]))
        policy.log_std.fill_(0.5 * math.log(float(best.covariance)))
    return policy
