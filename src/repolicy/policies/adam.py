"""Adam for parameters that live in one flat tensor.

It is four lines, while torch's own imports a compiler first, which takes seconds.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from repolicy.policies.network import flatten

BETA_MEAN, BETA_VAR = 0.9, 0.999


def adam_step(
    values: Tensor, gradient: Tensor, mean: Tensor, var: Tensor, *,
    steps: int, rate: float, epsilon: float, quick: slice = slice(0, 0), factor: float = 1.0,
) -> None:  # fmt: skip
    """Take the `steps`-th step, in place; `mean` and `var` are its moments. The `quick` go `factor` times as far."""
    mean.lerp_(gradient, 1.0 - BETA_MEAN)
    var.mul_(BETA_VAR).addcmul_(gradient, gradient, value=1.0 - BETA_VAR)
    scale = (var / (1.0 - BETA_VAR**steps)).sqrt_().add_(epsilon)
    if factor != 1.0:
        scale[quick].div_(factor)
    values.addcdiv_(mean, scale, value=-rate / (1.0 - BETA_MEAN**steps))


class Adam:
    """Descends a loss of parameters; the `quick` ones have a learning rate `factor` times as large."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        rate: float,
        quick: Iterable[nn.Parameter] = (),
        factor: float = 1.0,
    ) -> None:
        others = list(parameters)
        self.rate, self._factor, self._steps = rate, factor, 0
        self._quick = slice(sum(each.numel() for each in others), None)
        self._values, self._gradient = flatten([*others, *quick])
        self._mean, self._var = torch.zeros_like(self._values), torch.zeros_like(self._values)

    def descend(self, loss: Tensor) -> None:
        """Take a step that makes the loss smaller."""
        self._gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]  # adds to the gradients, which are views of one tensor
        self._steps += 1
        adam_step(
            self._values, self._gradient, self._mean, self._var,
            steps=self._steps, rate=self.rate, epsilon=1e-8, quick=self._quick, factor=self._factor,
        )  # fmt: skip
