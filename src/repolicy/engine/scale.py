"""The scale of rewards: the running std of their discounted return."""

import torch
from torch import Tensor


class ReturnScale:
    """The running std of the discounted return of the reformulated reward."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.statistics = torch.tensor([1e-4, 0.0, 1.0], dtype=torch.float64)  # count, mean, variance

    @property
    def std(self) -> float:
        return float((self.statistics[2] + 1e-8).sqrt())

    def begin(self, count: int) -> None:
        self._running = torch.zeros(count, dtype=torch.float64)

    def follow(self, rewards: Tensor, ended: Tensor) -> Tensor:
        """Run the discounted returns on over rewards `[T, N]`. Returns (count, sum, sum of squares) of all of them."""
        kept = self.gamma * (~ended).double()
        seen = torch.empty_like(rewards)
        running = self._running
        for t in range(len(rewards)):
            seen[t] = running + rewards[t]
            running = seen[t] * kept[t]
        self._running = running
        return torch.stack([torch.tensor(float(seen.numel()), dtype=torch.float64), seen.sum(), seen.square().sum()])

    def update(self, sums: Tensor) -> None:
        count, mean, var = self.statistics
        new_mean = sums[1] / sums[0]
        new_var = (sums[2] / sums[0] - new_mean.square()).clamp_min(0.0)
        total, delta = count + sums[0], new_mean - mean
        var = (var * count + new_var * sums[0] + delta.square() * count * sums[0] / total) / total
        self.statistics = torch.stack([total, mean + delta * sums[0] / total, var])
