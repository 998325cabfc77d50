"""The scale of rewards: the running std of their discounted return."""

import torch
from torch import Tensor

from repolicy.policies.moments import merged, sums


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
        """Run the discounted returns on over rewards `[T, N]`. Returns the `moments.sums` of all of them, `[3]`."""
        kept = self.gamma * (~ended).double()
        seen = torch.empty_like(rewards)
        running = self._running
        for t in range(len(rewards)):
            seen[t] = running + rewards[t]
            running = seen[t] * kept[t]
        self._running = running
        return sums(seen.unsqueeze(-1))[:, 0]

    def update(self, added: Tensor) -> None:
        self.statistics = merged(self.statistics, added)
