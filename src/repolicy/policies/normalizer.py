"""The normalizer of observations, and its running statistics."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

OBSERVATION_BOUND = 10.0  # normalized observations are clipped to this, unless the policy sets another bound
CONSTANT_VARIANCE = 1e-15  # by the square of the mean: at most a rounding error, and less than float32 can tell apart
MIN_VARIANCE = 1e-20  # a constant around 0 has at most this
EPSILON = 1e-8  # added to a variance, but to none that is smaller


class Normalizer(nn.Module):
    """A module that brings observations to zero mean and unit variance by running statistics, clipped to ±`bound`.

    The statistics change only in `update`, between rollouts. So a policy gets equal inputs when it acts and learns.
    `var + EPSILON` is the square of the unit of its inputs, so `var` is below 0 where the variance is below EPSILON.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, size: int, bound: float | None = OBSERVATION_BOUND) -> None:
        super().__init__()
        self.bound = float("inf") if bound is None else bound
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("var", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(size), persistent=False)
        self.register_buffer("scale", torch.ones(size), persistent=False)
        self._refresh()
        self.register_load_state_dict_post_hook(_after_loading)

    def forward(self, observations: Tensor) -> Tensor:
        return ((observations - self.shift) * self.scale).clamp_(-self.bound, self.bound)

    @property
    def variance(self) -> Tensor:
        """Return the variance `[O]` of the observations."""
        return torch.where(self.var < 0.0, self.var + EPSILON, self.var)

    def snapshot(self) -> Callable[[np.ndarray], np.ndarray]:
        """Return the normalizer with its current statistics, in NumPy. Its results are bit-identical."""
        shift, scale, bound = self.shift.cpu().numpy(), self.scale.cpu().numpy(), self.bound

        def normalize(observations: np.ndarray) -> np.ndarray:
            inputs: np.ndarray = observations - shift
            inputs *= scale
            np.minimum(inputs, bound, out=inputs)
            return np.maximum(inputs, -bound, out=inputs)

        return normalize

    def denormalized_noise(self, noise: Tensor) -> Tensor:
        """Return observations with the running mean and variance, from noise `[..., O]` of unit variance."""
        return (self.mean + self.variance.sqrt() * noise).float()

    def update(self, added: Tensor) -> None:
        """Add a batch of observations, given as their `moment_sums` `[3, O]`."""
        count = self.count.expand_as(self.mean)
        statistics = merge_moments(torch.stack([count, self.mean, self.variance]), added.to(self.mean.device))
        self.count, self.mean = statistics[0, 0].clone(), statistics[1].clone()
        self.var = statistics[2] + (epsilon_for(statistics[2], self.mean) - EPSILON)
        self._refresh()

    def keep_constants(self) -> None:
        """Set the variance of observations that were constant to 1: then a small later change is a small input.

        With a variance of 0 it would be many stds, and no weight was trained on such an input. The inputs of the
        constants themselves stay 0.
        """
        self.var = torch.where(is_constant(self.variance, self.mean), 1.0, self.var)
        self._refresh()

    def _refresh(self) -> None:
        self.shift = self.mean.float()
        self.scale = (self.var + EPSILON).rsqrt().float()


def _after_loading(normalizer: Normalizer, _: object) -> None:  # with a name, because a lambda cannot be pickled
    normalizer._refresh()


def is_constant(var: Tensor, mean: Tensor) -> Tensor:
    """Return whether values with this variance and mean never changed, but for rounding errors."""
    return var <= CONSTANT_VARIANCE * mean.square() + MIN_VARIANCE


def epsilon_for(var: Tensor, mean: Tensor) -> Tensor:
    """Return what is added to a variance before values are divided by its root: nothing where it is small itself."""
    return EPSILON * ((var >= EPSILON) | is_constant(var, mean)).to(var)


# Statistics over batches ----------------------------------------------------------------------------------------------


def moment_sums(values: Tensor | np.ndarray) -> Tensor:
    """Return count, Σ x and Σ x² of values `[..., F]` as `[3, F]`, in float64. They add up over batches and ranks."""
    values = torch.as_tensor(values)
    flat = values.reshape(-1, values.shape[-1]).double()
    return torch.stack([flat.new_full(flat.shape[1:], float(len(flat))), flat.sum(0), flat.square().sum(0)])


def merge_moments(statistics: Tensor, added: Tensor) -> Tensor:
    """Return statistics `[3, F]` (count, mean, variance) after adding the sums `[3, F]` of a batch."""
    count, mean, var = statistics
    new_count, new_mean = added[0], added[1] / added[0]
    new_var = (added[2] / added[0] - new_mean.square()).clamp_min(0.0)
    total, delta = count + new_count, new_mean - mean
    var = (var * count + new_var * new_count + delta.square() * count * new_count / total) / total
    return torch.stack([total, mean + delta * new_count / total, var])
