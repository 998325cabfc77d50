"""Small decision processes solved exactly: the theory behind Repolicy, executable.

Everything is float64, enumerated or solved rather than sampled, and small enough to read in a sitting.
"""

from repolicy.exact.estimators import (
    advantage_gradient,
    constant_gradient,
    delta_gradient,
    entropy_gradient,
    estimator_gradient,
    score_gradient,
)
from repolicy.exact.linear_quadratic import (
    LinearGaussian,
    LinearQuadratic,
    LinearQuadraticOptimum,
    linear_quadratic_augmented,
    linear_quadratic_optimal,
    quadratic_cost,
)
from repolicy.exact.mdp import MDP
from repolicy.exact.solve import (
    Solution,
    Trajectories,
    Value,
    enumerate_trajectories,
    evaluate,
    exact_gradient,
    expected_return,
    soft_optimal,
    solve_augmented,
    solve_residual,
    state_distributions,
)

__all__ = [
    "MDP",
    "LinearGaussian",
    "LinearQuadratic",
    "LinearQuadraticOptimum",
    "Solution",
    "Trajectories",
    "Value",
    "advantage_gradient",
    "constant_gradient",
    "delta_gradient",
    "entropy_gradient",
    "enumerate_trajectories",
    "estimator_gradient",
    "evaluate",
    "exact_gradient",
    "expected_return",
    "linear_quadratic_augmented",
    "linear_quadratic_optimal",
    "quadratic_cost",
    "score_gradient",
    "soft_optimal",
    "solve_augmented",
    "solve_residual",
    "state_distributions",
]
