"""The unit in which a critic counts: the running mean and std of the returns that it predicts.

A network learns numbers around 0 of size 1. Returns are not: where each step pays about the same, they are many stds
away from 0, and a critic of plain returns sees little else than their mean.
"""

import torch
from torch import Tensor

from repolicy.policies.network import Mlp
from repolicy.policies.normalizer import merged

MEMORY = 1.0  # all rollouts before count as much as this one: a critic that begins sees its returns move far


class ReturnScale:
    """Mean and std of what each head of a critic predicts, `[H]`."""

    def __init__(self, heads: int = 1) -> None:
        self.statistics = torch.tensor([[0.0], [0.0], [1.0]], dtype=torch.float64).repeat(1, heads)  # as in `merged`

    @property
    def mean(self) -> Tensor:
        return self.statistics[1]

    @property
    def std(self) -> Tensor:
        return (self.statistics[2] + 1e-8).sqrt()

    def update(self, added: Tensor, critic: Mlp) -> None:
        """Take in a rollout's returns, by their `moments.sums`. What the critic predicts stays the same.

        But at first the critic knows nothing, and so its outputs stay, which are about 0: it predicts the mean.
        """
        count, mean, std = self.statistics[0], self.mean, self.std
        self.statistics = merged(torch.stack([count.clamp(max=MEMORY * added[0]), mean, self.statistics[2]]), added)
        if bool(count.any()):
            critic.rescale(std / self.std, (mean - self.mean) / self.std)

    def apply(self, returns: Tensor) -> Tensor:
        """Returns `[..., H]` in this unit."""
        return (returns - self.mean.to(returns.dtype)) / self.std.to(returns.dtype)

    def undo(self, outputs: Tensor) -> Tensor:
        """Return the returns that outputs `[..., H]` stand for."""
        return outputs * self.std.to(outputs.dtype) + self.mean.to(outputs.dtype)
