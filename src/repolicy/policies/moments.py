"""Count, mean and variance of numbers that come in batches, and from several ranks."""

import numpy as np
import torch
from torch import Tensor


def sums(values: Tensor | np.ndarray) -> Tensor:
    """Of values `[..., F]` their count, Σ x and Σ x², `[3, F]` in float64: what adds up across batches and ranks."""
    values = torch.as_tensor(values)
    flat = values.reshape(-1, values.shape[-1]).double()
    return torch.stack([flat.new_full(flat.shape[1:], float(len(flat))), flat.sum(0), flat.square().sum(0)])


def merged(statistics: Tensor, added: Tensor) -> Tensor:
    """Statistics `[3, F]` (count, mean, variance) that have taken in sums `[3, F]`."""
    count, mean, var = statistics
    new_count, new_mean = added[0], added[1] / added[0]
    new_var = (added[2] / added[0] - new_mean.square()).clamp_min(0.0)
    total, delta = count + new_count, new_mean - mean
    var = (var * count + new_var * new_count + delta.square() * count * new_count / total) / total
    return torch.stack([total, mean + delta * new_count / total, var])
