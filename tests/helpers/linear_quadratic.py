"""Linear–quadratic control: continuous states and actions whose maximum-entropy optimum has a closed form.

The cost is one quadratic form of state and control together. So it can also contain a Gaussian prior's log-probability,
and the augmented problem is again linear–quadratic.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from repolicy.errors import NumericError
from repolicy.exact.mdp import check_discount, check_temperature, float64

MAX_ITERATIONS = 100_000


@dataclass(frozen=True, eq=False)
class LinearQuadratic:
    """x′ = dynamics·x + control·u, with the reward constant − zᵀ·cost·z for z = (x, u), over an infinite horizon.

    dynamics: [n, n]; control: [n, m]; cost: [n + m, n + m], made symmetric; plain numbers where n = m = 1.
    """

    dynamics: Tensor
    control: Tensor
    cost: Tensor
    discount: float
    constant: float = 0.0

    def __post_init__(self) -> None:
        dynamics, control = _matrix("dynamics", self.dynamics), _matrix("control", self.control)
        size = len(dynamics) + control.shape[-1]
        cost = float64("cost", self.cost, [size, size])
        check_discount(self.discount)
        for name, value in (("dynamics", dynamics), ("control", control), ("cost", (cost + cost.T) / 2)):
            object.__setattr__(self, name, value)


def quadratic_cost(state: Tensor | float, control: Tensor | float) -> Tensor:
    """Return the joint cost of xᵀ·state·x + uᵀ·control·u; plain numbers where n = m = 1."""
    return torch.block_diag(_matrix("state", state), _matrix("control", control))  # type: ignore[no-untyped-call]


@dataclass(frozen=True, eq=False)
class LinearGaussian:
    """The policy u ~ N(−gain·x, covariance); gain: [m, n], covariance: [m, m]. It can serve as a prior."""

    gain: Tensor
    covariance: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "gain", _matrix("gain", self.gain))
        object.__setattr__(self, "covariance", _matrix("covariance", self.covariance))

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return log π(action|obs) for obs [..., n] and action [..., m], [...]."""
        mean = -obs.double() @ self.gain.T
        normal = torch.distributions.MultivariateNormal(mean, self.covariance, validate_args=False)
        return normal.log_prob(action.double())  # type: ignore[no-untyped-call, unused-ignore]


@dataclass(frozen=True, eq=False)
class LinearQuadraticOptimum:
    """The optimal policy and its soft value V(x) = constant − xᵀ·matrix·x."""

    policy: LinearGaussian
    matrix: Tensor
    constant: float

    def value(self, obs: Tensor) -> Tensor:
        """Return V of each observation [..., n], [...]."""
        return self.constant - ((obs @ self.matrix) * obs).sum(-1)


def linear_quadratic_optimal(system: LinearQuadratic, alpha: float) -> LinearQuadraticOptimum:
    """Return the maximum-entropy optimum at temperature alpha: the classical gain, with covariance α/2 · H_uu⁻¹.

    H is the quadratic form of −Q: cost + γ·[dynamics control]ᵀ·P·[dynamics control]. The soft maximum of a quadratic Q
    is its maximum plus a constant, so P is the ordinary Riccati solution, found by iterating it.
    """
    check_temperature(alpha)
    n = len(system.dynamics)
    moves = torch.cat([system.dynamics, system.control], -1)
    matrix, last = torch.zeros_like(system.dynamics), math.inf
    for _ in range(MAX_ITERATIONS):
        form = system.cost + system.discount * moves.T @ matrix @ moves
        gain = torch.cholesky_solve(form[n:, :n], torch.linalg.cholesky(form[n:, n:]))
        update = form[:n, :n] - form[:n, n:] @ gain
        update = (update + update.T) / 2
        change = (update - matrix).abs().max().item() / form.abs().max().item()
        matrix = update
        if not math.isfinite(change) or change == 0 or 1e-13 > change >= last:  # nothing left but rounding
            break
        last = change
    if not change < 1e-13:
        raise NumericError("the Riccati iteration did not settle; no control keeps the discounted cost finite")
    precision = form[n:, n:] * 2 / alpha
    covariance = torch.linalg.inv(precision)
    soft_maximum = alpha / 2 * torch.logdet(2 * math.pi * covariance).item()  # α log ∫ exp(−uᵀ·H_uu·u / α) du
    constant = (system.constant + soft_maximum) / (1 - system.discount)
    return LinearQuadraticOptimum(LinearGaussian(gain, covariance), matrix, constant)


def linear_quadratic_augmented(system: LinearQuadratic, prior: LinearGaussian, omega: float) -> LinearQuadratic:
    """Return the problem with omega · log prior(u|x) added to its reward: M^aug of the paper, omega being its ω′."""
    z_to_noise = torch.cat([prior.gain, torch.eye(len(prior.gain), dtype=torch.float64)], -1)  # u + gain·x
    cost = system.cost + omega / 2 * z_to_noise.T @ torch.linalg.solve(prior.covariance, z_to_noise)
    constant = system.constant - omega / 2 * torch.logdet(2 * math.pi * prior.covariance).item()
    return replace(system, cost=cost, constant=constant)


def _matrix(name: str, value: Tensor | float) -> Tensor:
    """Return a float64 matrix, [1, 1] from a plain number."""
    return torch.atleast_2d(float64(name, value))
