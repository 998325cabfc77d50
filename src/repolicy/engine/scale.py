"""The scale of rewards: the running std of their discounted return."""

import torch
from torch import Tensor

from repolicy.policies.moments import merged, sums


class ReturnScale:
    """The running std of the discounted return of the reformulated reward, or of each of several parts of it."""

    def __init__(self, gamma: float, *parts: int) -> None:
        self.gamma, self.parts = gamma, parts
        start = torch.tensor([1e-4, 0.0, 1.0], dtype=torch.float64)  # count, mean, variance
        self.statistics = start.reshape(3, *[1] * len(parts)).repeat(1, *parts)

    @property
    def stds(self) -> Tensor:
        return (self.statistics[2] + 1e-8).sqrt()

    @property
    def std(self) -> float:
        """Of the whole; of several parts, on average."""
        return float(self.stds.mean())

    def begin(self, count: int) -> None:
        self._running = torch.zeros(count, *self.parts, dtype=torch.float64)

    def follow(self, rewards: Tensor, ended: Tensor) -> Tensor:
        """Run the discounted returns on over rewards `[T, N]`, or `[T, N, parts]`. Returns the `moments.sums` of all
        of them, `[3]` or `[3 · parts]`."""
        discounts = self.gamma * (~ended).double().reshape(*ended.shape, *[1] * len(self.parts))
        returns = torch.empty_like(rewards)
        running = self._running
        for t in range(len(rewards)):
            returns[t] = running + rewards[t]
            running = returns[t] * discounts[t]
        self._running = running
        return sums(returns.reshape(-1, *(self.parts or (1,)))).flatten()

    def update(self, added: Tensor) -> None:
        self.statistics = merged(self.statistics, added.reshape(self.statistics.shape))
