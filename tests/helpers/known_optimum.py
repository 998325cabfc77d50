"""Linear–quadratic control whose optimum is known, a prior of it, and a wish for it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from linear_quadratic import LinearGaussian, LinearQuadratic, linear_quadratic_optimal, quadratic_cost
from tiny_envs import CONTROL, CONTROL_COST, DYNAMICS, STATE_COST, tiny

from repolicy.learning.training import customize
from repolicy.objective import Objective
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.policy import Policy, PolicySpec
from repolicy.runs.result import Result
from repolicy.runs.settings import Settings

DISCOUNT = 0.9
ALPHA = 0.2  # the prior's temperature
WISH_STATE_COST, WISH_CONTROL_COST = 0.3, 2.0
SETTINGS = Settings(
    steps=125_000, ranks=1, envs=64, n_steps=16, minibatch=512, checkpoint_every=75, learning_rate=5e-3,
    gamma=DISCOUNT, normalize_observations=False, critic_warmup=0.1, hidden=(32,), evaluation_episodes=4,
)  # fmt: skip
SLOW = replace(SETTINGS, steps=250_000, checkpoint_every=150, learning_rate=3e-3)  # for weights that move


def wish(observations: Any, actions: Any, next_observations: Any, info: Any) -> np.ndarray:
    """The second task's reward: mind the control more."""
    return -(WISH_STATE_COST * observations[..., 0] ** 2 + WISH_CONTROL_COST * actions[..., 0] ** 2)


WISH = f"{__file__}:wish"


def optimum(state_cost: float, control_cost: float, alpha: float, discount: float = DISCOUNT) -> LinearGaussian:
    """The closed-form maximum-entropy optimum of a cost."""
    problem = LinearQuadratic(DYNAMICS, CONTROL, quadratic_cost(state_cost, control_cost), discount)
    return linear_quadratic_optimal(problem, alpha).policy


def of_both(omega: float = 1.0, alpha: float = ALPHA, wish: float = 1.0, control: float = 0.0) -> LinearGaussian:
    """The optimum of the first cost times omega, and the second one times the wish's weight."""
    costs = omega * STATE_COST + wish * WISH_STATE_COST, omega * CONTROL_COST + wish * WISH_CONTROL_COST + control
    return optimum(*costs, alpha)


def as_policy(exact: LinearGaussian) -> Policy:
    """The same distribution as a network: −K·x = −K·relu(x) + K·relu(−x)."""
    spec = PolicySpec(1, ActionSpace("continuous", (1,), (-1.0,), (1.0,)), hidden=(2,), activation="relu", min_std=0.0)
    policy = Policy(spec)
    gain, std = float(exact.gain), math.sqrt(float(exact.covariance))
    with torch.no_grad():
        policy.network.weights[0].copy_(torch.tensor([[1.0], [-1.0]]))
        policy.network.weights[1].copy_(torch.tensor([[-gain, gain]]))
        policy.log_std.fill_(math.log(std))
    return policy


def customized(
    prior: Path, objective: Objective, out: Path, settings: Settings = SETTINGS, env: str = "WithoutReward"
) -> Result:
    return customize(prior, WISH, objective, out, settings, env=tiny(env))


def gain_and_std(policy: Policy) -> tuple[float, float]:
    """What the policy does between −1 and 1, as the line that fits it best, and its std."""
    states = torch.linspace(-1.0, 1.0, 41).unsqueeze(1)
    with torch.no_grad():
        distribution = policy(states)
    return -float((states * distribution.mean).sum() / states.square().sum()), float(distribution.log_std.exp())


def assert_found(policy: Policy, wanted: LinearGaussian, rel: float = 0.05) -> None:
    found, expected = gain_and_std(policy), (float(wanted.gain), math.sqrt(float(wanted.covariance)))
    assert found == pytest.approx(expected, rel=rel)


EXACT = optimum(STATE_COST, CONTROL_COST, ALPHA)
GAIN, STD = float(EXACT.gain), math.sqrt(float(EXACT.covariance))
FEW = replace(SETTINGS, steps=2_048, checkpoint_every=2)


def steer(observations: np.ndarray) -> np.ndarray:
    """The first task's optimum, as somebody would write it by hand."""
    return -GAIN * observations
