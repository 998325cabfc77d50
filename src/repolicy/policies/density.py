"""How familiar a state is to the prior: a Gaussian over its own observations, silent inside their range.

log prior judges actions. In a state where the prior is helpless any action is likely, so it cannot tell that the state
itself is one that the prior would never be in. This can.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from repolicy.errors import UsageError
from repolicy.policies.normalizer import Normalizer

QUANTILE = 0.25  # the least likely quarter of the prior's own states costs something
MOST = 60.0  # nats, the most that one state can cost
RIDGE = 1e-4  # added to the covariance, as a share of its diagonal
CONSTANT = 1e-10  # with less variance than this, an observation counts as one that the prior never changes


@dataclass(frozen=True, eq=False)
class Density:
    """A Gaussian over normalized observations, in float64.

    mean: [O]; whitening: [O, O], so that |(x − mean) · whitening|² is the squared Mahalanobis distance (an observation
    that is constant under the prior has a row of 0, and does not count); edge: [], the distance below which three
    quarters of the prior's states lie; shift, scale: [O] each, of the normalizer that it was fitted behind.
    """

    mean: Tensor
    whitening: Tensor
    edge: Tensor
    shift: Tensor
    scale: Tensor

    def familiarity(self, inputs: Tensor) -> Tensor:
        """Of normalized observations `[..., O]`: 0 inside the prior's range, below it minus the missing nats."""
        missing = 0.5 * (distances(inputs, self.mean, self.whitening) - self.edge)
        return -missing.clamp_(0.0, MOST)

    @property
    def left_out(self) -> list[int]:
        """The observations that the prior never changes."""
        return torch.nonzero((self.whitening == 0).all(1)).flatten().tolist()

    def tensors(self) -> dict[str, Tensor]:
        return {f"states.{name}": getattr(self, name) for name in PARTS}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "Density":
        """What `tensors` gave; ValueError where these are none of a density's."""
        parts = [tensors[f"states.{name}"] for name in PARTS]
        size = len(parts[0]) if parts[0].dim() else 0
        shapes = [[size], [size, size], [], [size], [size]]
        for name, part, shape in zip(PARTS, parts, shapes, strict=True):
            if list(part.shape) != shape or part.dtype != torch.float64 or not bool(torch.isfinite(part).all()):
                raise ValueError(f"states.{name} is {list(part.shape)} {part.dtype}, not finite float64 {shape}")
        return cls(*parts)

    def check_normalizer(self, normalizer: Normalizer) -> None:
        """Raise where it was fitted behind another one: the same state would then look like another."""
        shift, scale = normalizer.shift.double(), normalizer.scale.double()
        if not (torch.equal(self.shift, shift) and torch.equal(self.scale, scale)):
            raise UsageError(
                "the density of the prior's states was fitted behind another observation normalizer than the prior's; "
                "begin a run of its own, which fits it again"
            )


PARTS = ("mean", "whitening", "edge", "shift", "scale")


def fitted(inputs: Tensor, normalizer: Normalizer) -> Density:
    """The density of normalized observations `[M, O]` of the prior's own."""
    inputs = inputs.double()
    mean = inputs.mean(0)
    away = inputs - mean
    covariance = away.T @ away / len(inputs)
    varies = covariance.diagonal() > CONSTANT
    if not bool(varies.any()):
        raise UsageError("no observation changes under the prior, so it has no states to learn: --states 0 goes on")
    some = torch.nonzero(varies).flatten()
    inner = covariance[some][:, some]
    lower = torch.linalg.cholesky(inner + RIDGE * inner.diagonal().diag())
    whitening = torch.zeros_like(covariance)
    # C = L·Lᵀ, so |L⁻¹·x|² = xᵀ·C⁻¹·x, and a row vector x is whitened by L⁻ᵀ
    inverse = torch.linalg.solve_triangular(lower, torch.eye(len(some), dtype=torch.float64), upper=False)
    whitening[some[:, None], some] = inverse.T
    edge = torch.quantile(distances(inputs, mean, whitening)[:: max(1, len(inputs) // 100_000)], 1.0 - QUANTILE)
    return Density(mean, whitening, edge, normalizer.shift.double(), normalizer.scale.double())


def distances(inputs: Tensor, mean: Tensor, whitening: Tensor) -> Tensor:
    """Squared Mahalanobis distances of `[..., O]`."""
    return ((inputs.double() - mean) @ whitening).square().sum(-1)
