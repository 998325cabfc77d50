"""Adam for parameters in one flat tensor. It is short; torch's own imports a compiler, which takes seconds."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from repolicy.policies.network import flatten

BETA_MEAN, BETA_VAR = 0.9, 0.999


def adam_step(
    values: Tensor, gradient: Tensor, mean: Tensor, var: Tensor, *,
    steps: int, rate: float, epsilon: float, quick: slice = slice(0, 0), factor: float = 1.0,
) -> None:  # fmt: skip
    """Take step number `steps`: update the values and both moments in place. `quick` has `factor` times the rate."""
    mean.lerp_(gradient, 1.0 - BETA_MEAN)
    var.mul_(BETA_VAR).addcmul_(gradient, gradient, value=1.0 - BETA_VAR)
    scale = (var / (1.0 - BETA_VAR**steps)).sqrt_().add_(epsilon)
    if factor != 1.0:
        scale[quick].div_(factor)
    values.addcdiv_(mean, scale, value=-rate / (1.0 - BETA_MEAN**steps))


class Adam:
    """An optimizer of parameters; the `quick` ones have `factor` times the learning rate."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], rate: float, quick: Iterable[nn.Parameter] = (), factor: float = 1.0
    ) -> None:
        ordinary = list(parameters)
        self.rate, self._factor, self._steps = rate, factor, 0
        self._quick = slice(sum(parameter.numel() for parameter in ordinary), None)
        self._values, self._gradient = flatten([*ordinary, *quick])
        self._mean, self._var = torch.zeros_like(self._values), torch.zeros_like(self._values)

    def descend(self, loss: Tensor) -> None:
        """Compute the gradient of the loss and take one step."""
        self._gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]  # the gradients are views of `_gradient`
        self._steps += 1
        adam_step(
            self._values, self._gradient, self._mean, self._var,
            steps=self._steps, rate=self.rate, epsilon=1e-8, quick=self._quick, factor=self._factor,
        )  # fmt: skip
