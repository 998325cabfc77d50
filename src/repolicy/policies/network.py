"""The network: a multi-layer perceptron with a hand-written backward pass, and parameters laid out flat.

For layers of 64 units the time goes into memory traffic and tanh, not into multiplication. So activations work in
place, and what a hidden layer stores is not tanh(x) but σ(2x), which costs two fifths of it: as
tanh(x) = 2σ(2x) − 1, the factors and the shift move into the matrix products around it, where they cost nothing.
"""

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

aten = torch.ops.aten


class Activation(NamedTuple):
    """y = outer · f(inner · x) + shift, with f in place, and f's gradient from its *value*, in place as well."""

    inner: float
    outer: float
    shift: float
    apply: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]
    plain: Callable[[np.ndarray], np.ndarray]  # y itself, in NumPy


ACTIVATIONS = {
    "tanh": Activation(
        2.0,
        2.0,
        -1.0,
        torch.sigmoid_,
        lambda grad, s: aten.sigmoid_backward.grad_input(grad, s, grad_input=grad),
        lambda x: np.tanh(x, out=x),
    ),
    "relu": Activation(
        1.0,
        1.0,
        0.0,
        torch.relu_,
        lambda grad, s: aten.threshold_backward.grad_input(grad, s, 0.0, grad_input=grad),
        lambda x: np.maximum(x, 0.0, out=x),
    ),
    "elu": Activation(
        1.0,
        1.0,
        0.0,
        nn.functional.elu_,
        lambda grad, s: aten.elu_backward.grad_input(grad, 1.0, 1.0, 1.0, True, s, grad_input=grad),
        lambda x: np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0))),
    ),
}


class Mlp(nn.Module):
    """`[B, inputs]` to `[B, outputs]` through hidden layers, initialized orthogonally."""

    def __init__(
        self, inputs: int, hidden: tuple[int, ...], outputs: int, activation: str = "tanh", last_gain: float = 1.0
    ) -> None:
        super().__init__()
        self.activation = activation
        sizes = (inputs, *hidden, outputs)
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(b, a)) for a, b in pairwise(sizes))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(b)) for b in sizes[1:])
        self._pairs = [*zip(self.weights, self.biases, strict=True)]  # a ParameterList takes long to walk
        for weight in self.weights:
            nn.init.orthogonal_(weight, last_gain if weight is self.weights[-1] else math.sqrt(2.0))

    def forward(self, inputs: Tensor) -> Tensor:
        return self._layers(inputs.reshape(-1, inputs.shape[-1]))[-1].reshape(*inputs.shape[:-1], -1)

    def snapshot(self) -> Callable[[np.ndarray], np.ndarray]:
        """The network as it is now, in NumPy, for small batches `[B, inputs]`."""
        activate = ACTIVATIONS[self.activation].plain
        *hidden, (last_weight, last_bias) = [
            (weight.detach().t().contiguous().numpy(), bias.detach().clone().numpy()) for weight, bias in self._pairs
        ]

        def run(inputs: np.ndarray) -> np.ndarray:
            for weight, bias in hidden:
                inputs = inputs @ weight
                inputs += bias
                inputs = activate(inputs)
            outputs: np.ndarray = inputs @ last_weight
            outputs += last_bias
            return outputs

        return run

    @torch.no_grad()
    def vjp(self, inputs: Tensor) -> tuple[Tensor, Callable[[Tensor], None]]:
        """The outputs `[B, outputs]`, and a function that takes their gradient and sets the parameters' own.

        Autograd would give the same a fifth more slowly.
        """
        layers = self._layers(inputs)

        @torch.no_grad()
        def backward(grad: Tensor) -> None:
            activation = ACTIVATIONS[self.activation]
            for index in range(len(self._pairs) - 1, 0, -1):
                weight, bias = self._pairs[index]
                torch.sum(grad, 0, out=bias.grad)
                # y = outer · f + shift, so Σ grad yᵀ = outer · Σ grad fᵀ + shift · Σ grad
                shifts = torch.mul(bias.grad, activation.shift).unsqueeze(1)
                torch.addmm(shifts, grad.t(), layers[index], alpha=activation.outer, out=weight.grad)
                grad = activation.backward(grad @ (activation.outer * activation.inner * weight), layers[index])
            weight, bias = self._pairs[0]
            torch.sum(grad, 0, out=bias.grad)
            torch.mm(grad.t(), inputs, out=weight.grad)

        return layers[-1], backward

    def _layers(self, inputs: Tensor) -> list[Tensor]:
        """The inputs, f of each hidden layer, and the outputs."""
        activation, layers = ACTIVATIONS[self.activation], [inputs]
        outer, shift = 1.0, 0.0  # the layer's inputs are outer · layers[-1] + shift
        for weight, bias in self._pairs:
            if shift:
                bias = torch.add(bias, weight.sum(1), alpha=shift)
            if len(layers) == len(self._pairs):
                return [*layers, torch.addmm(bias, layers[-1], weight.t(), alpha=outer)]
            inner = activation.inner
            layers.append(activation.apply(torch.addmm(bias, layers[-1], weight.t(), beta=inner, alpha=inner * outer)))
            outer, shift = activation.outer, activation.shift
        raise AssertionError("a network has at least one layer")


def flatten(parameters: Iterable[nn.Parameter], extra: int = 0) -> tuple[Tensor, Tensor]:
    """Move the parameters into one flat tensor, and their gradients into another with `extra` numbers behind them.

    Each parameter becomes a view, so one all-reduce, one clip and one optimizer step serve them all.
    """
    parameters = list(parameters)
    values = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    gradients = torch.zeros(values.numel() + extra)
    start = 0
    for parameter in parameters:
        stop = start + parameter.numel()
        parameter.data = values[start:stop].view_as(parameter)
        parameter.grad = gradients[start:stop].view_as(parameter)
        start = stop
    return values, gradients
