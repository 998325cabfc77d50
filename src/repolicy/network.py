"""The network: a multi-layer perceptron with a hand-written backward pass, and parameters laid out flat.

For layers of 64 units the time goes into memory traffic and tanh, not into multiplication. So activations work in
place, and what a hidden layer stores is not tanh(x) but σ(2x), which costs two fifths of it: as
tanh(x) = 2σ(2x) − 1, the factors and the shift move into the matrix products around it, where they cost nothing.
"""

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import NamedTuple

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


ACTIVATIONS = {
    "tanh": Activation(
        2.0, 2.0, -1.0, torch.sigmoid_, lambda grad, s: aten.sigmoid_backward.grad_input(grad, s, grad_input=grad)
    ),
    "relu": Activation(
        1.0, 1.0, 0.0, torch.relu_, lambda grad, s: aten.threshold_backward.grad_input(grad, s, 0.0, grad_input=grad)
    ),
    "elu": Activation(
        1.0,
        1.0,
        0.0,
        nn.functional.elu_,
        lambda grad, s: aten.elu_backward.grad_input(grad, 1.0, 1.0, 1.0, True, s, grad_input=grad),
    ),
}


class Product(NamedTuple):
    """A layer before its activation: beta · bias + alpha · inputs @ weight."""

    bias: Tensor
    weight: Tensor  # [inputs, outputs]
    beta: float
    alpha: float


class Mlp(nn.Module):
    """`[B, inputs]` to `[B, outputs]` through hidden layers, initialised orthogonally."""

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
        flat = inputs.reshape(-1, inputs.shape[-1])
        return self._layers(flat, self._products())[-1].reshape(*inputs.shape[:-1], -1)

    @torch.no_grad()
    def snapshot(self) -> Callable[[Tensor], Tensor]:
        """The network with its parameters as they are now, for many small batches `[B, inputs]`."""
        products = self._products()
        return lambda inputs: self._layers(inputs, products)[-1]

    @torch.no_grad()
    def vjp(self, inputs: Tensor) -> tuple[Tensor, Callable[[Tensor], None]]:
        """The outputs `[B, outputs]`, and a function that takes their gradient and sets the parameters' own.

        Autograd would give the same a fifth more slowly.
        """
        layers = self._layers(inputs, self._products())

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

    def _products(self) -> list[Product]:
        """What each layer multiplies, with the factors and shifts of the activations in it."""
        activation, found = ACTIVATIONS[self.activation], []
        outer, shift = 1.0, 0.0  # a layer's inputs are outer · (what is stored of them) + shift
        for index, (weight, bias) in enumerate(self._pairs, start=1):
            inner = activation.inner if index < len(self._pairs) else 1.0
            if shift:
                bias = torch.add(bias, weight.sum(1), alpha=shift)
            found.append(Product(bias, weight.t(), inner, inner * outer))
            outer, shift = activation.outer, activation.shift
        return found

    def _layers(self, inputs: Tensor, products: list[Product]) -> list[Tensor]:
        """The inputs, f of each hidden layer, and the outputs."""
        activate, layers = ACTIVATIONS[self.activation].apply, [inputs]
        for bias, weight, beta, alpha in products:
            layers.append(torch.addmm(bias, layers[-1], weight, beta=beta, alpha=alpha))
            if len(layers) <= len(self._pairs):
                activate(layers[-1])
        return layers


def flatten(parameters: Iterable[nn.Parameter], extra: int = 0) -> tuple[Tensor, Tensor]:
    """Move the parameters into one flat tensor, and their gradients into another with `extra` numbers behind them.

    Each parameter becomes a view, so one all-reduce, one clip and one optimiser step serve them all.
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
