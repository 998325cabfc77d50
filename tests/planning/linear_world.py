"""Linear–quadratic control as a planner's model, whose best plans are known in closed form."""

import numpy as np
import torch
from known_optimum import ALPHA, DISCOUNT, WISH_CONTROL_COST, WISH_STATE_COST, as_policy, optimum, wish
from linear_quadratic import (
    LinearQuadratic,
    LinearQuadraticOptimum,
    linear_quadratic_augmented,
    linear_quadratic_optimal,
    quadratic_cost,
)
from tiny_envs import CONTROL, CONTROL_COST, DYNAMICS, STATE_COST

from repolicy.addons.addon import Addon, AddonTerm
from repolicy.planning.planner import Planner, Search
from repolicy.planning.scoring import Score
from repolicy.planning.simulators import Simulated

OMEGA = 0.8 * ALPHA
PRIOR = optimum(STATE_COST, CONTROL_COST, ALPHA)


class LinearModel:
    """x′ = a·x + b·u. A state beyond `edge` ends the episode; one beyond `broken` breaks the simulation."""

    name, seconds, backend, unknown_info = "linear", 1.0, "auto", frozenset[str]()

    def __init__(self, edge: float = np.inf, broken: float = np.inf) -> None:
        self.edge, self.broken = edge, broken

    def watch(self, envs: object) -> None: ...

    def states(self, observations: np.ndarray) -> np.ndarray:
        return observations.astype(np.float64)

    def step(self, states: np.ndarray, actions: np.ndarray) -> Simulated:
        after = DYNAMICS * states + CONTROL * actions
        size = np.abs(after[:, 0])
        return Simulated(after, after.astype(np.float32), {}, size > self.edge, size > self.broken)


def augmented(alpha: float, discount: float = DISCOUNT) -> LinearQuadraticOptimum:
    """The residual optimum, and its soft value: what is still to come after a plan's end."""
    alone = LinearQuadratic(DYNAMICS, CONTROL, quadratic_cost(WISH_STATE_COST, WISH_CONTROL_COST), discount)
    return linear_quadratic_optimal(linear_quadratic_augmented(alone, PRIOR, OMEGA), alpha)


def planner(alpha: float = 0.1, discount: float = DISCOUNT, model: LinearModel | None = None, **search) -> Planner:
    """For the wish of `known_optimum`, with the exact value at the plan's end, and λ = α̂ unless it says otherwise."""
    found = augmented(alpha, discount)

    def value(observations: np.ndarray) -> np.ndarray:
        return (found.value(torch.from_numpy(observations).double()) - found.constant).numpy()

    score = Score(Addon((AddonTerm("wish", wish),)), OMEGA, 0.0, discount, None, value)
    given = {"samples": 2000, "horizon": 3, "knots": 0, "noise": 1.0, "temperature": alpha, "discount": discount}
    return Planner(as_policy(PRIOR), model or LinearModel(), score, Search(**given | search))


def looked(made: Planner, x: float = 1.0, seed: int = 0, plans: np.ndarray | None = None):
    """What a planner sees in one state: the first actions, and their weights."""
    search = made.search
    knots = min(search.knots or search.horizon, search.horizon)
    draws = np.random.default_rng(seed).standard_normal((1, search.samples, knots, 1))
    plans = np.zeros((1, search.horizon, 1)) if plans is None else plans
    return made.candidates(np.array([[x]], np.float32), plans, draws)


def first_action(made: Planner, x: float = 1.0, seed: int = 0, plans: np.ndarray | None = None) -> tuple[float, float]:
    """Mean and variance of the first action."""
    found = looked(made, x, seed, plans)
    std = float(PRIOR.covariance) ** 0.5
    actions = -float(PRIOR.gain) * x + std * found.deviations[0, :, 0, 0]
    mean = float(found.weights[0] @ actions)
    return mean, float(found.weights[0] @ (actions - mean) ** 2)
