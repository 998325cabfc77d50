"""The network: a multi-layer perceptron, in torch to learn and in NumPy to act, and parameters laid out flat."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from repolicy.errors import UsageError

# Each in torch and in NumPy, where it may write into its input; the second argument is leaky_relu's slope.
ACTIVATIONS: dict[str, tuple[Callable[[Tensor, float], Tensor], Callable[[np.ndarray, float], np.ndarray]]] = {
    "tanh": (lambda x, _: torch.tanh(x), lambda x, _: np.tanh(x, out=x)),
    "relu": (lambda x, _: torch.relu(x), lambda x, _: np.maximum(x, 0.0, out=x)),
    "elu": (lambda x, _: nn.functional.elu(x), lambda x, _: np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0)))),
    "swish": (lambda x, _: nn.functional.silu(x), lambda x, _: x * (0.5 * np.tanh(0.5 * x) + 0.5)),
    "gelu": (lambda x, _: nn.functional.gelu(x), lambda x, _: nn.functional.gelu(torch.from_numpy(x)).numpy()),
    "gelu_tanh": (
        lambda x, _: nn.functional.gelu(x, approximate="tanh"),
        lambda x, _: nn.functional.gelu(torch.from_numpy(x), approximate="tanh").numpy(),
    ),
    "leaky_relu": (
        lambda x, slope: nn.functional.leaky_relu(x, slope),
        lambda x, slope: np.where(x > 0.0, x, slope * x),
    ),
}


class Norm(nn.LayerNorm):
    """A LayerNorm, before or after its layer's activation."""

    def __init__(self, size: int, place: str, epsilon: float) -> None:
        super().__init__(size, epsilon)
        self.place = place

    def snapshot(self) -> Callable[[np.ndarray], np.ndarray]:
        """Return it as it is now, in NumPy."""
        weight, bias = self.weight.detach().clone().numpy(), self.bias.detach().clone().numpy()

        def run(inputs: np.ndarray) -> np.ndarray:
            inputs = inputs - inputs.mean(-1, keepdims=True)
            variance = np.square(inputs).mean(-1, keepdims=True)
            return inputs / np.sqrt(variance + self.eps) * weight + bias

        return run


class Mlp(nn.Module):
    """`[B, inputs]` to `[B, outputs]` through hidden layers, initialized orthogonally.

    `norms` names, for each hidden layer, where its LayerNorm is: "before" or "after" the activation, or "" for nowhere.
    """

    scales: Sequence[slice] = ()  # of each layer, for a network with films
    shifts: Sequence[slice] = ()

    def __init__(
        self,
        inputs: int,
        hidden: tuple[int, ...],
        outputs: int,
        activation: str = "tanh",
        last_gain: float = 1.0,
        *,
        slope: float = 0.01,
        norms: tuple[str, ...] = (),
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        self.activation, self.slope = activation, slope
        placed = enumerate(zip(hidden, norms, strict=False))
        self.norms = nn.ModuleDict({str(n): Norm(size, place, epsilon) for n, (size, place) in placed if place})
        sizes = (inputs, *hidden, outputs)
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(b, a)) for a, b in pairwise(sizes))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(b)) for b in sizes[1:])
        self._pairs = [*zip(self.weights, self.biases, strict=True)]  # a ParameterList takes long to walk
        for weight in self.weights:
            nn.init.orthogonal_(weight, last_gain if weight is self.weights[-1] else math.sqrt(2.0))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Mlp":
        super()._apply(fn, recurse)
        self._pairs = [*zip(self.weights, self.biases, strict=True)]  # on some devices the parameters are new ones
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        return self.through(inputs)

    def through(self, inputs: Tensor, films: Tensor | None = None) -> Tensor:
        """Return the outputs; `films` scale and shift what each layer computes, where `scales` and `shifts` say."""
        activate, last = ACTIVATIONS[self.activation][0], len(self._pairs) - 1
        for index, (weight, bias) in enumerate(self._pairs):
            norm, inputs = self.norm(index), nn.functional.linear(inputs, weight, bias)
            if norm is not None and norm.place == "before":
                inputs = norm(inputs)
            if films is not None:
                inputs = inputs * films[:, self.scales[index]] + films[:, self.shifts[index]]
            if index < last:
                inputs = activate(inputs, self.slope)
            if norm is not None and norm.place == "after":
                inputs = norm(inputs)
        return inputs

    @torch.no_grad()
    def rescale(self, factor: Tensor, offset: Tensor) -> None:
        """Change the outputs `[..., O]` to factor · what they were + offset."""
        self.weights[-1].mul_(factor.unsqueeze(-1))
        self.biases[-1].mul_(factor).add_(offset)

    def snapshot(self) -> Callable[..., np.ndarray]:
        """Return the network as it is now, in NumPy, for small batches `[B, inputs]`; it takes films as `through`."""
        activate, slope, last = ACTIVATIONS[self.activation][1], self.slope, len(self._pairs) - 1
        before = [self._norm_at("before", index) for index in range(len(self._pairs))]
        after = [self._norm_at("after", index) for index in range(len(self._pairs))]
        layers = [
            (weight.detach().clone().t().contiguous().numpy(), bias.detach().clone().numpy())
            for weight, bias in self._pairs
        ]

        def run(inputs: np.ndarray, films: np.ndarray | None = None) -> np.ndarray:
            for index, (weight, bias) in enumerate(layers):
                inputs = inputs @ weight
                inputs += bias
                if (normalize := before[index]) is not None:
                    inputs = normalize(inputs)
                if films is not None:
                    inputs *= films[:, self.scales[index]]
                    inputs += films[:, self.shifts[index]]
                if index < last:
                    inputs = activate(inputs, slope)
                if (normalize := after[index]) is not None:
                    inputs = normalize(inputs)
            return inputs

        return run

    def norm(self, index: int) -> Norm | None:
        """Return the LayerNorm of a hidden layer."""
        return cast(Norm, self.norms[str(index)]) if str(index) in self.norms else None

    def _norm_at(self, place: str, index: int) -> Callable[[np.ndarray], np.ndarray] | None:
        """Return a layer's LayerNorm in NumPy, where it has one at this place."""
        norm = self.norm(index)
        return norm.snapshot() if norm is not None and norm.place == place else None


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


# The layers of networks, and their sums -------------------------------------------------------------------------------


Layers = Sequence[tuple[Tensor, Tensor]]
# Activations that other libraries' networks have as modules, too.
ACTIVATION_MODULES: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "swish": nn.SiLU}


def layers_of(network: Mlp) -> Layers:
    """Return the layers of a network, without gradient."""
    if network.norms:
        raise UsageError("the policy's network has LayerNorms, and this takes none")
    return [(weight.detach(), bias.detach()) for weight, bias in zip(network.weights, network.biases, strict=True)]


def load_layers(network: Mlp, layers: Layers) -> None:
    """Give a network these layers, which must be of its sizes."""
    weights, biases = zip(*layers, strict=True)
    network.load_state_dict(
        {f"weights.{index}": weight for index, weight in enumerate(weights)}
        | {f"biases.{index}": bias for index, bias in enumerate(biases)}
    )


def scale_outputs(layers: Layers, factor: float | Tensor) -> Layers:
    """Return the layers of a network that gives `factor` times what this one gives; of its outputs, `[outputs]`."""
    *hidden, (weight, bias) = layers
    factor = torch.as_tensor(factor, dtype=weight.dtype)
    return [*hidden, (weight * factor.reshape(-1, 1), bias * factor)]


def add_networks(one: Layers, other: Layers) -> Layers:
    """Return the layers of a network that gives the sum of what two networks of equally many layers give."""
    (first, *_), (second, *_) = one, other
    layers = [(torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]]))]
    for (a, b), (c, d) in zip(one[1:-1], other[1:-1], strict=True):
        layers.append((torch.block_diag(a, c), torch.cat([b, d])))
    return [*layers, (torch.cat([one[-1][0], other[-1][0]], 1), one[-1][1] + other[-1][1])]
