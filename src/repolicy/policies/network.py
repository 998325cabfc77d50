"""A multi-layer perceptron that learns in torch and acts in NumPy, its optimizer, and sums of such networks."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from repolicy.errors import UsageError

# Each activation in torch and in NumPy, where it may overwrite its input. The second argument is leaky_relu's slope.
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
    """A LayerNorm; `place` says whether it is "before" or "after" the activation of its layer."""

    def __init__(self, size: int, place: str, epsilon: float) -> None:
        super().__init__(size, epsilon)
        self.place = place

    def snapshot(self) -> Callable[[np.ndarray], np.ndarray]:
        """Return the LayerNorm with its current weights, in NumPy."""
        weight, bias = self.weight.detach().clone().numpy(), self.bias.detach().clone().numpy()

        def run(inputs: np.ndarray) -> np.ndarray:
            inputs = inputs - inputs.mean(-1, keepdims=True)
            variance = np.square(inputs).mean(-1, keepdims=True)
            return inputs / np.sqrt(variance + self.eps) * weight + bias

        return run


def tensors_of(parameters: nn.ParameterList) -> dict[str, Tensor]:
    """Return the tensors that the list holds now, such as those of `functional_call`; iterating over it is slow."""
    return cast("dict[str, Tensor]", parameters._parameters)


class Mlp(nn.Module):
    """A network from `[B, inputs]` to `[B, outputs]` with hidden layers, initialized orthogonally.

    `norms` has an entry for each hidden layer: "before" or "after" the activation, or "" for no LayerNorm.
    """

    scales: Sequence[slice] = ()  # where the films hold the scale of each layer; only `FilmMlp` has films
    shifts: Sequence[slice] = ()  # where they hold its shift

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
        self.norms = nn.ModuleDict()
        for index, (size, place) in enumerate(zip(hidden, norms, strict=False)):
            if place:
                self.norms[str(index)] = Norm(size, place, epsilon)
        sizes = (inputs, *hidden, outputs)
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(after, before)) for before, after in pairwise(sizes))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes[1:])
        for weight in self.weights:
            nn.init.orthogonal_(weight, last_gain if weight is self.weights[-1] else math.sqrt(2.0))

    def forward(self, inputs: Tensor, films: Tensor | None = None) -> Tensor:
        """Return the outputs. `films` `[B, F]` scale and shift each layer, at the places in `scales` and `shifts`."""
        weights, biases = tensors_of(self.weights), tensors_of(self.biases)
        norms = cast("dict[str, Norm]", self.norms._modules)
        activate, last = ACTIVATIONS[self.activation][0], len(weights) - 1
        for index, (weight, bias) in enumerate(zip(weights.values(), biases.values(), strict=True)):
            norm = norms.get(str(index))
            inputs = nn.functional.linear(inputs, weight, bias)
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
        """Change the last layer, so that the outputs `[..., O]` become factor · outputs + offset."""
        self.weights[-1].mul_(factor.unsqueeze(-1))
        self.biases[-1].mul_(factor).add_(offset)

    def snapshot(self) -> Callable[..., np.ndarray]:
        """Return the network with its current weights, in NumPy, which is faster for small batches `[B, inputs]`.

        The returned function takes films as `forward` does.
        """
        weights, biases = tensors_of(self.weights), tensors_of(self.biases)
        activate, slope, last = ACTIVATIONS[self.activation][1], self.slope, len(weights) - 1
        norms = {(n, norm.place): norm.snapshot() for n in range(last) if (norm := self.norm(n)) is not None}
        layers = [
            (weight.detach().clone().t().contiguous().numpy(), bias.detach().clone().numpy())
            for weight, bias in zip(weights.values(), biases.values(), strict=True)
        ]

        @np.errstate(all="ignore")  # silent as torch is: on ARM, NumPy's matmul warns of finite numbers, too
        def run(inputs: np.ndarray, films: np.ndarray | None = None) -> np.ndarray:
            for index, (weight, bias) in enumerate(layers):
                inputs = inputs @ weight
                inputs += bias
                if normalize := norms.get((index, "before")):
                    inputs = normalize(inputs)
                if films is not None:
                    inputs *= films[:, self.scales[index]]
                    inputs += films[:, self.shifts[index]]
                if index < last:
                    inputs = activate(inputs, slope)
                if normalize := norms.get((index, "after")):
                    inputs = normalize(inputs)
            return inputs

        return run

    def norm(self, index: int) -> Norm | None:
        """Return the LayerNorm of a layer, or None if it has none."""
        return cast(Norm, self.norms[str(index)]) if str(index) in self.norms else None


def flatten(parameters: Iterable[nn.Parameter], extra: int = 0) -> tuple[Tensor, Tensor]:
    """Move the parameters into one flat tensor, and their gradients into another one with room for `extra` numbers.

    Each parameter becomes a view, so one all-reduce, one clip and one optimizer step are enough. Return both tensors.
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


# Adam; torch's own imports a compiler, which takes seconds ------------------------------------------------------------


BETA_MEAN, BETA_VAR = 0.9, 0.999


def adam_step(
    values: Tensor, gradient: Tensor, mean: Tensor, var: Tensor, *,
    steps: int, rate: float, epsilon: float, quick: slice = slice(0, 0), factor: float | Tensor = 1.0,
) -> None:  # fmt: skip
    """Take step number `steps`: update the values and both moments in place. `quick` has `factor` times the rate."""
    mean.lerp_(gradient, 1.0 - BETA_MEAN)
    var.mul_(BETA_VAR).addcmul_(gradient, gradient, value=1.0 - BETA_VAR)
    scale = (var / (1.0 - BETA_VAR**steps)).sqrt_().add_(epsilon)
    if isinstance(factor, Tensor) or factor != 1.0:
        scale[quick].div_(factor)
    values.addcdiv_(mean, scale, value=-rate / (1.0 - BETA_MEAN**steps))


class Adam:
    """An optimizer of parameters; the `quick` ones have `factor` times the learning rate, a number or one for each."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        rate: float,
        quick: Iterable[nn.Parameter] = (),
        factor: float | Tensor = 1.0,
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


# Layers, and sums of networks ----------------------------------------------------------------------------------------


Layers = Sequence[tuple[Tensor, Tensor]]
# Activations that are modules in the networks of other libraries.
ACTIVATION_MODULES: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "swish": nn.SiLU}


def layers_of(network: Mlp) -> Layers:
    """Return weight and bias of each layer, without gradients."""
    if network.norms:
        raise UsageError("the policy's network has LayerNorms, and this takes none")
    return [(weight.detach(), bias.detach()) for weight, bias in zip(network.weights, network.biases, strict=True)]


def load_layers(network: Mlp, layers: Layers) -> None:
    """Load weights and biases, which must have the network's sizes."""
    state: dict[str, Tensor] = {}
    for index, (weight, bias) in enumerate(layers):
        state |= {f"weights.{index}": weight, f"biases.{index}": bias}
    network.load_state_dict(state)


def scale_outputs(layers: Layers, factor: float | Tensor) -> Layers:
    """Return the layers of a network whose outputs are `factor` times these; one number, or one per output."""
    *hidden, (weight, bias) = layers
    factor = torch.as_tensor(factor, dtype=weight.dtype)
    return [*hidden, (weight * factor.reshape(-1, 1), bias * factor)]


def add_networks(one: Layers, other: Layers) -> Layers:
    """Return the layers of a network whose outputs are the sum of two networks' outputs. Both must be equally deep."""
    layers = []
    last = len(one) - 1
    for index, ((weight, bias), (other_weight, other_bias)) in enumerate(zip(one, other, strict=True)):
        if index == 0:  # both networks read the same inputs
            layers.append((torch.cat([weight, other_weight]), torch.cat([bias, other_bias])))
        elif index < last:
            layers.append((torch.block_diag(weight, other_weight), torch.cat([bias, other_bias])))
        else:
            layers.append((torch.cat([weight, other_weight], 1), bias + other_bias))
    return layers
