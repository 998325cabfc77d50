"""A density model of the states that the prior visits: Student's t over observations, constant inside their range.

The prior's log-probability judges actions only. In a state that the prior never visits, any action may still have a
high probability; the density shows that the state is unfamiliar. A prior sometimes falls, more often with some seeds.
So the width is fitted to the likeliest stretches of time, and the tails are heavy.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from repolicy.errors import UsageError
from repolicy.policies.normalizer import OBSERVATION_BOUND, Normalizer

QUANTILE = 0.25  # share of the prior's own states that have a cost: the least likely ones
MAX_COST = 60.0  # nats, the maximal cost of a state
FREEDOM = 5.0  # degrees of freedom of Student's t
STRETCH = 50  # number of consecutive states that are used for the fit together, or not at all
LIKELY_SHARE = 0.8  # share of the stretches to which the Gaussian is fitted
ROUNDS = 10  # number of times to choose stretches and fit the Gaussian to them
USUAL_ENDS = 0.9  # share of the prior's episodes that end by themselves, from which on so many ends are free
RIDGE = 1e-4  # added to the covariance, as a share of the observations' variances
MIN_VARIANCE = 1e-10  # an observation with less variance counts as constant under the prior


@dataclass(frozen=True, eq=False)
class Density:
    """Student's t over normalized observations, in float64.

    |(x − mean) · whitening|² is the squared distance of x. An observation that is constant under the prior has a row of
    0 in `whitening`, and does not count.
    """

    mean: Tensor  # [O]
    whitening: Tensor  # [O, O]
    edge: Tensor  # [], the squared distance below which three quarters of the prior's states lie
    shift: Tensor  # [O], of the normalizer with which the density was fitted
    scale: Tensor  # [O], of this normalizer
    usual_end: Tensor  # [], the familiarity that nine tenths of the prior's ends have, where nearly all episodes end
    bound: float = OBSERVATION_BOUND  # of this normalizer; a file has it with the prior

    def familiarity(self, inputs: Tensor) -> Tensor:
        """Return 0 for normalized observations `[..., O]` inside the prior's range, else minus their cost in nats."""
        distances = squared_distances(inputs, self.mean, self.whitening)
        half = 0.5 * (FREEDOM + (self.whitening != 0).any(1).sum())  # stays a tensor, so nothing waits for a GPU
        return -(half * torch.log((FREEDOM + distances) / (FREEDOM + self.edge))).clamp_(0.0, MAX_COST)

    def normalized(self, observations: Tensor) -> Tensor:
        """Return raw observations `[..., O]` normalized as in the fit."""
        return ((observations - self.shift.float()) * self.scale.float()).clamp_(-self.bound, self.bound)

    def to(self, device: torch.device | str) -> "Density":
        return replace(self, **{name: getattr(self, name).to(device) for name in PARTS})

    def tensors(self) -> dict[str, Tensor]:
        return {f"states.{name}": getattr(self, name) for name in PARTS}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], bound: float = OBSERVATION_BOUND) -> "Density":
        """Return the density that `tensors` stored, of a normalizer with this bound.

        Raise ValueError if shapes, types or values are wrong.
        """
        older = {"states.usual_end": torch.zeros((), dtype=torch.float64)}
        parts: list[Any] = [(older | tensors)[f"states.{name}"] for name in PARTS]
        size = len(parts[0]) if parts[0].dim() else 0
        shapes = [[size], [size, size], [], [size], [size], []]
        for name, part, shape in zip(PARTS, parts, shapes, strict=True):
            if list(part.shape) != shape or part.dtype != torch.float64 or not bool(torch.isfinite(part).all()):
                raise ValueError(f"states.{name} is {list(part.shape)} {part.dtype}, not finite float64 {shape}")
        return replace(cls(*parts), bound=bound)

    def check_normalizer(self, normalizer: Normalizer) -> None:
        """Raise if the density was fitted with another normalizer, because it would then be wrong in every state."""
        shift, scale = normalizer.shift.double(), normalizer.scale.double()
        if not (torch.equal(self.shift, shift) and torch.equal(self.scale, scale)):
            raise UsageError("the density of states was fitted with another normalizer than the prior's: begin anew")


PARTS = ("mean", "whitening", "edge", "shift", "scale", "usual_end")


def fit_density(inputs: Tensor, normalizer: Normalizer, ends: Tensor | None = None, episodes: int = 1) -> Density:
    """Fit the density to normalized observations `[M, O]` of the prior, in the order of time.

    ends: those `[K, O]` that terminated some of its `episodes`. Where nine tenths of these end so, ends are what the
    prior is for, and nine tenths of its ends are free.
    """
    inputs = inputs.double()
    variances = inputs.var(0, correction=0)
    changing = torch.nonzero(variances > MIN_VARIANCE).flatten()
    if not len(changing):
        raise UsageError("no observation changes under the prior, so it has no states to learn: --states 0 goes on")
    mean, whitening = inputs.mean(0), inputs.new_zeros(len(variances), len(variances))
    mean[changing], whitening[changing[:, None], changing] = fit_likeliest_stretches(inputs[:, changing])
    stride = max(1, len(inputs) // 100_000)  # torch.quantile takes a limited number of values
    edge = torch.quantile(squared_distances(inputs, mean, whitening)[::stride], 1.0 - QUANTILE)
    shift, scale = normalizer.shift.double(), normalizer.scale.double()
    density = Density(mean, whitening, edge, shift, scale, torch.zeros_like(edge), normalizer.bound)
    if ends is None or not ends_are_usual(len(ends), episodes):
        return density
    return replace(
        density, usual_end=torch.quantile(density.familiarity(ends), 1.0 - USUAL_ENDS, interpolation="lower")
    )


def ends_are_usual(ends: int, episodes: int) -> bool:
    """Return whether nearly all episodes of a prior end by themselves, as at a goal, so that an end is no failure."""
    return ends > 0 and ends >= USUAL_ENDS * episodes


def fit_likeliest_stretches(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean `[O]` and the whitening `[O, O]` of the likeliest stretches of states `[M, O]`.

    Alternate between fitting a Gaussian to the stretches and choosing the likeliest stretches under it. Stop early if
    an observation would hardly change in them.
    """
    variances, size, likely = inputs.var(0, correction=0), inputs.shape[1], inputs
    for _ in range(ROUNDS):
        mean = likely.mean(0)
        covariance = (likely - mean).T @ (likely - mean) / len(likely)
        lower = torch.linalg.cholesky(covariance + RIDGE * variances.diag())
        # C = L·Lᵀ, so |L⁻¹·x|² = xᵀ·C⁻¹·x, and a row vector x is whitened by L⁻ᵀ
        identity = torch.eye(size, dtype=lower.dtype, device=lower.device)
        whitening = torch.linalg.solve_triangular(lower, identity, upper=False).T
        stretches = squared_distances(inputs, mean, whitening).split(STRETCH)
        distances = torch.stack([stretch.mean() for stretch in stretches])
        is_likely = distances <= distances.kthvalue(max(1, int(LIKELY_SHARE * len(distances)))).values
        likely = inputs[is_likely.repeat_interleave(STRETCH)[: len(inputs)]]
        if bool((likely.var(0, correction=0) < RIDGE * variances).any()):
            break
    return mean, whitening


def squared_distances(inputs: Tensor, mean: Tensor, whitening: Tensor) -> Tensor:
    """Return the squared distances `[...]` of inputs `[..., O]` from the mean."""
    return ((inputs.double() - mean) @ whitening).square().sum(-1)
