"""A density model of the states that the prior visits: Student's t over its observations, constant inside their range.

The prior's log-probability judges actions only. In a state that the prior never visits, it may still give any action a
high probability; the density shows that the state is unfamiliar. The prior sometimes falls, more often with some seeds
than with others. So the width is fitted to the likeliest stretches of time, and the tails are heavy.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from repolicy.errors import UsageError
from repolicy.policies.normalizer import OBSERVATION_BOUND, Normalizer

QUANTILE = 0.25  # share of the prior's own states, the least likely ones, that have a cost
MOST = 60.0  # nats, the maximal cost of a state
FREEDOM = 5.0  # degrees of freedom of Student's t
STRETCH = 50  # consecutive states that are used for the fit together, or not at all
KEPT = 0.8  # share of the stretches to which the Gaussian is fitted
ROUNDS = 10  # of choosing stretches and fitting the Gaussian to them
RIDGE = 1e-4  # added to the covariance, as a share of the observations' variances
CONSTANT = 1e-10  # with less variance than this, an observation counts as one that the prior never changes


@dataclass(frozen=True, eq=False)
class Density:
    """Student's t over normalized observations, in float64.

    mean: [O]; whitening: [O, O], so that |(x − mean) · whitening|² is the squared distance (an observation
    that is constant under the prior has a row of 0, and does not count); edge: [], the distance below which three
    quarters of the prior's states lie; shift, scale: [O] each, of the normalizer that it was fitted behind.
    """

    mean: Tensor
    whitening: Tensor
    edge: Tensor
    shift: Tensor
    scale: Tensor

    def familiarity(self, inputs: Tensor) -> Tensor:
        """Return 0 for normalized observations `[..., O]` inside the prior's range, else minus their cost in nats."""
        away = distances(inputs, self.mean, self.whitening)
        half = 0.5 * (FREEDOM + (self.whitening != 0).any(1).sum())  # on the device: nothing waits for it
        return -(half * torch.log((FREEDOM + away) / (FREEDOM + self.edge))).clamp_(0.0, MOST)

    def normalized(self, observations: Tensor) -> Tensor:
        """Normalize raw observations `[..., O]` as in the fit."""
        return ((observations - self.shift.float()) * self.scale.float()).clamp_(-OBSERVATION_BOUND, OBSERVATION_BOUND)

    def to(self, device: torch.device | str) -> "Density":
        return Density(*(getattr(self, name).to(device) for name in PARTS))

    @property
    def left_out(self) -> list[int]:
        """The observations that the prior never changes."""
        return torch.nonzero((self.whitening == 0).all(1)).flatten().tolist()

    def tensors(self) -> dict[str, Tensor]:
        return {f"states.{name}": getattr(self, name) for name in PARTS}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "Density":
        """Return what `tensors` gave; ValueError where these are none of a density's."""
        parts = [tensors[f"states.{name}"] for name in PARTS]
        size = len(parts[0]) if parts[0].dim() else 0
        shapes = [[size], [size, size], [], [size], [size]]
        for name, part, shape in zip(PARTS, parts, shapes, strict=True):
            if list(part.shape) != shape or part.dtype != torch.float64 or not bool(torch.isfinite(part).all()):
                raise ValueError(f"states.{name} is {list(part.shape)} {part.dtype}, not finite float64 {shape}")
        return cls(*parts)

    def check_normalizer(self, normalizer: Normalizer) -> None:
        """Raise if the density was fitted with another normalizer, as it would then misread every state."""
        shift, scale = normalizer.shift.double(), normalizer.scale.double()
        if not (torch.equal(self.shift, shift) and torch.equal(self.scale, scale)):
            raise UsageError("the states' density was fitted behind another normalizer than the prior's: begin anew")


PARTS = ("mean", "whitening", "edge", "shift", "scale")


def fit_density(inputs: Tensor, normalizer: Normalizer) -> Density:
    """Fit the density to normalized observations `[M, O]` that the prior visited, in the order of time."""
    inputs = inputs.double()
    variances = inputs.var(0, correction=0)
    some = torch.nonzero(variances > CONSTANT).flatten()
    if not len(some):
        raise UsageError("no observation changes under the prior, so it has no states to learn: --states 0 goes on")
    mean, whitening = inputs.mean(0), inputs.new_zeros(len(variances), len(variances))
    mean[some], whitening[some[:, None], some] = fit_likeliest_stretches(inputs[:, some])
    edge = torch.quantile(distances(inputs, mean, whitening)[:: max(1, len(inputs) // 100_000)], 1.0 - QUANTILE)
    return Density(mean, whitening, edge, normalizer.shift.double(), normalizer.scale.double())


def fit_likeliest_stretches(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean `[O]` and the whitening `[O, O]` of the likeliest stretches of states `[M, O]`.

    Alternate between fitting a Gaussian to the stretches and choosing the likeliest stretches under it. Stop early if
    an observation would hardly change in them.
    """
    variances, size, kept = inputs.var(0, correction=0), inputs.shape[1], inputs
    for _ in range(ROUNDS):
        mean = kept.mean(0)
        covariance = (kept - mean).T @ (kept - mean) / len(kept)
        lower = torch.linalg.cholesky(covariance + RIDGE * variances.diag())
        # C = L·Lᵀ, so |L⁻¹·x|² = xᵀ·C⁻¹·x, and a row vector x is whitened by L⁻ᵀ
        one = torch.eye(size, dtype=lower.dtype, device=lower.device)
        whitening = torch.linalg.solve_triangular(lower, one, upper=False).T
        away = torch.stack([each.mean() for each in distances(inputs, mean, whitening).split(STRETCH)])
        near = away <= away.kthvalue(max(1, int(KEPT * len(away)))).values
        kept = inputs[near.repeat_interleave(STRETCH)[: len(inputs)]]
        if bool((kept.var(0, correction=0) < RIDGE * variances).any()):
            break
    return mean, whitening


def distances(inputs: Tensor, mean: Tensor, whitening: Tensor) -> Tensor:
    """Return the squared distances of `[..., O]`."""
    return ((inputs.double() - mean) @ whitening).square().sum(-1)
