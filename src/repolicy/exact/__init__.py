"""Small decision processes solved exactly: the theory behind Repolicy, executable.

Everything is float64, enumerated or solved rather than sampled, and small enough to read in a sitting.
"""

from repolicy.exact.estimators import estimator_gradient
from repolicy.exact.mdp import MDP
from repolicy.exact.solve import (
    Solution,
    enumerate_trajectories,
    evaluate,
    exact_gradient,
    soft_optimal,
    solve_augmented,
    solve_residual,
)

__all__ = [
    "MDP", "Solution", "enumerate_trajectories", "estimator_gradient", "evaluate", "exact_gradient", "soft_optimal",
    "solve_augmented", "solve_residual",
]  # fmt: skip
