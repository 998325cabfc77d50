"""Running statistics of observations."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

BOUND = 10.0  # of normalised observations


class Normaliser(nn.Module):
    """Observations to zero mean and unit variance, by running statistics; the result is clipped to ±10.

    The statistics change only in `update`, between rollouts, so that what a policy saw while acting is what it sees
    while learning.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("var", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self._refresh()
        self.register_load_state_dict_post_hook(lambda module, _: module._refresh())

    def forward(self, observations: Tensor) -> Tensor:
        return ((observations - self._shift) * self._scale).clamp_(-BOUND, BOUND)

    def snapshot(self) -> Callable[[np.ndarray], np.ndarray]:
        """The normaliser as it is now, in NumPy; it gives the same bits."""
        shift, scale = self._shift.numpy(), self._scale.numpy()

        def normalise(observations: np.ndarray) -> np.ndarray:
            inputs: np.ndarray = observations - shift
            inputs *= scale
            np.minimum(inputs, BOUND, out=inputs)
            return np.maximum(inputs, -BOUND, out=inputs)

        return normalise

    def update(self, moments: Tensor) -> None:
        """Take in `moments = [1, O] + [2, O]`-packed sums: row 0 the count, rows 1 and 2 sums of x and of x²."""
        count, mean = moments[0, 0], moments[1] / moments[0, 0]
        var = (moments[2] / count - mean.square()).clamp_min_(0.0)
        total = self.count + count
        delta = mean - self.mean
        self.var = (self.var * self.count + var * count + delta.square() * self.count * count / total) / total
        self.mean = self.mean + delta * count / total
        self.count = total
        self._refresh()

    def _refresh(self) -> None:
        self._shift = self.mean.float()
        self._scale = (self.var + 1e-8).rsqrt().float()


def moments(observations: np.ndarray) -> Tensor:
    """The sums that `Normaliser.update` takes in, `[3, O]` in float64: they add up across ranks."""
    flat = torch.from_numpy(observations).reshape(-1, observations.shape[-1]).double()
    return torch.stack(
        [torch.full((flat.shape[1],), float(flat.shape[0]), dtype=torch.float64), flat.sum(0), flat.square().sum(0)]
    )
